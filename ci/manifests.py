"""Asserts what makes the files of deploy/ work together with the server, the image and the seccomp profile. An engine and a
cluster know their schemas; this needs neither.

usage: python3 ci/manifests.py             the versions, the Dockerfile and deploy/compose.yaml
       python3 ci/manifests.py FILE...     manifests of Kubernetes, rendered by kustomize or Helm
"""

import re
import sys

import yaml

USER = 65532
JOB_LOG = "/var/lib/beanring"


def read(name):
    with open(f"deploy/{name}", encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def max_memory(arguments):
    """Returns the value of --max-memory in bytes."""
    return size(arguments[arguments.index("--max-memory") + 1])


def size(text):
    number, unit = re.fullmatch(r"(\d+)([kmg]|[KMG]i)?", text).groups()
    return int(number) << {"k": 10, "m": 20, "g": 30}[unit[0].lower()]


def is_below(arguments, limit):
    assert max_memory(arguments) <= size(limit) * 3 // 4, f"--max-memory is above three quarters of {limit}"


def dockerfile():
    with open("deploy/Dockerfile", encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    last_stage = lines[max(i for i, line in enumerate(lines) if line[0] == "FROM") :]
    image = dict(last_stage)
    assert image["FROM"] == "scratch"
    assert image["USER"] == f"{USER}:{USER}"
    assert image["ENV"] == f"BEANRING_WAL_DIR={JOB_LOG}"
    assert image["VOLUME"] == JOB_LOG
    assert image["STOPSIGNAL"] == "SIGTERM"
    assert image["HEALTHCHECK"].endswith('CMD ["/beanring", "healthcheck"]')
    assert image["ENTRYPOINT"] == '["/beanring"]'


def compose():
    (document,) = read("compose.yaml")
    server = document["services"]["beanring"]
    assert server["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
    assert "seccomp:./seccomp-io-uring.json" in server["security_opt"]
    assert server["read_only"] is True and server["cap_drop"] == ["ALL"]
    volume, _, place = server["volumes"][0].partition(":")
    assert volume in document["volumes"] and place == JOB_LOG
    is_below(server["command"], server["mem_limit"])


def kubernetes(path):
    """Asserts that the rendered manifests of one server fit together."""
    with open(path, encoding="utf-8") as file:
        objects = [document for document in yaml.safe_load_all(file) if document]
    by_kind = {}
    for each in objects:
        by_kind.setdefault(each["kind"], []).append(each)
        assert "namespace" not in each["metadata"], f"{path}: {each['kind']} names a namespace"
    (stateful_set,) = by_kind["StatefulSet"]
    spec = stateful_set["spec"]
    labels = spec["selector"]["matchLabels"]
    template = spec["template"]
    # A label less than the selector has would leave the pod without its set; the selector of a set cannot be changed.
    assert labels.items() <= template["metadata"]["labels"].items()

    services = {service["metadata"]["name"]: service["spec"] for service in by_kind["Service"]}
    assert all(service["selector"] == labels for service in services.values())
    headless = services.pop(spec["serviceName"])
    (clients,) = services.values()
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"] is True
    assert "clusterIP" not in clients and "publishNotReadyAddresses" not in clients

    pod = template["spec"]
    # Else the Service's own address is set as the variable of a flag.
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == USER
    assert context["seccompProfile"] in (
        {"type": "RuntimeDefault"},
        {"type": "Localhost", "localhostProfile": "beanring.json"},
    )

    (server,) = pod["containers"]
    assert re.fullmatch(r".+:\d+\.\d+\.\d+", server["image"]), f"{path}: the image has no version"
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert [port["targetPort"] for port in clients["ports"]] == ["beanstalk"]
    assert [port["targetPort"] for port in headless["ports"]] == ["beanstalk", "metrics"]

    (config,) = by_kind["ConfigMap"]
    assert server["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]
    variables = config["data"]
    assert all(name.startswith("BEANRING_") and isinstance(value, str) for name, value in variables.items())
    # A port alone would be one of the pod's loopback, which no probe reaches.
    assert variables["BEANRING_HTTP"] in (f"0.0.0.0:{ports['metrics']}", f"[::]:{ports['metrics']}")
    limit = server["resources"]["limits"]["memory"]
    assert size(variables["BEANRING_MAX_MEMORY"]) <= size(limit) * 3 // 4, f"{path}: the limit is {limit}"

    for name, probed in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        assert server[name]["httpGet"] == {"path": probed, "port": "metrics"}
    # The liveness probe begins after recovery only because there is a startup probe.
    startup = server["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    (mount,) = server["volumeMounts"]
    (claim,) = spec["volumeClaimTemplates"]
    assert mount == {"name": claim["metadata"]["name"], "mountPath": JOB_LOG}

    (policy,) = by_kind["NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"] and not policy["spec"].get("egress")
    assert all(rule["from"] for rule in policy["spec"]["ingress"]), f"{path}: the policy lets everyone in"
    (budget,) = by_kind["PodDisruptionBudget"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    for monitor in by_kind.get("ServiceMonitor", []):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["metrics"]
        assert all(labels.items() <= each["metadata"]["labels"].items() for each in by_kind["Service"])
    for rule in by_kind.get("PrometheusRule", []):
        with open("deploy/alerts.yaml", encoding="utf-8") as file:
            same = rule["spec"] == yaml.safe_load(file)
        assert same, f"{path}: the rules are not those of deploy/alerts.yaml: run deploy/kubernetes/update-rules"


def versions():
    """Asserts that every file that has the version of the server has the same."""

    def only(pattern, name):
        with open(name, encoding="utf-8") as file:
            (found,) = re.findall(pattern, file.read(), flags=re.MULTILINE)
        return found

    version = only(r'^version = "(.*)"$', "Cargo.toml")
    chart = "deploy/helm/beanring/Chart.yaml"
    assert only(r'^appVersion: "(.*)"$', chart) == version, f"{chart} has another appVersion than Cargo.toml"
    kustomization = "deploy/kubernetes/base/kustomization.yaml"
    assert only(r"newTag: (.*)$", kustomization) == version, f"{kustomization} has another newTag than Cargo.toml"
    with open("CHANGELOG.md", encoding="utf-8") as file:
        assert f"\n## {version} " in file.read(), f"CHANGELOG.md has no section for {version}"


if len(sys.argv) == 1:
    versions()
    dockerfile()
    compose()
for argument in sys.argv[1:]:
    kubernetes(argument)
