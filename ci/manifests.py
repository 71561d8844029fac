"""Asserts what makes the files of deploy/ work together with the server, the image and the seccomp profile. An engine and a
cluster know their schemas; this needs neither.

usage: python3 ci/manifests.py             the versions, the Dockerfile and the compose files
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


def compose_replicated():
    """Asserts that the servers of deploy/compose-replicated.yaml find their database, and a commit its standbys."""
    (document,) = read("compose-replicated.yaml")
    services = document["services"]
    servers = {name: each for name, each in services.items() if each["image"] == "beanring"}
    init = servers.pop("init")
    (url,) = {each["environment"]["BEANRING_REPLICATE"] for each in [init, *servers.values()]}
    user, password, hosts, database = re.fullmatch(r"postgres://(\w+):([\w-]+)@([\w,]+)/(\w+)", url).groups()
    host, *others = hosts.split(",")
    assert init["command"] == ["replicate", "init"]
    published = set()
    for name, server in servers.items():
        assert server["environment"]["BEANRING_ADVERTISE"] == name and server["environment"]["BEANRING_WAL_DIR"] == ""
        assert server["depends_on"] == {"init": {"condition": "service_completed_successfully"}}
        assert server["read_only"] is True and server["cap_drop"] == ["ALL"] and "volumes" not in server
        is_below(server["command"], server["mem_limit"])
        published |= {port.rpartition(":")[0] for port in server["ports"]}
    assert len(servers) >= 2 and len(published) == 2 * len(servers), "each server has ports of its own"

    primary = services[host]
    standbys = {name for name, each in services.items() if each["image"].startswith("postgres:")} - {host}
    made = document["configs"]["primary"]["content"]
    (names,) = re.findall(r"synchronous_standby_names = 'ANY 1 \((.*)\)'", made)
    assert set(names.split(", ")) == standbys == set(init["depends_on"])
    assert set(others) == standbys, "each of them may become the primary"
    assert primary["environment"]["POSTGRES_DB"] == database and primary["environment"]["QUEUE_PASSWORD"] == password
    assert f"create role {user} login" in made and f"alter database {database} owner to {user}" in made
    assert f"host={host} " in document["configs"]["standby"]["content"]
    for name in standbys:
        assert services[name]["environment"]["STANDBY"] == name
        assert services[name]["command"] == ["bash", f"/{services[name]['configs'][0]}"]
    mounted = {services[name]["volumes"][0].partition(":")[0] for name in [host, *standbys]}
    assert mounted == set(document["volumes"]), "each database has a volume of its own"


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
    is_replicated = "volumeClaimTemplates" not in spec
    # A label less than the selector has would leave the pod without its set; the selector of a set cannot be changed.
    assert labels.items() <= template["metadata"]["labels"].items()

    services = {service["metadata"]["name"]: service["spec"] for service in by_kind["Service"]}
    assert all(service["selector"] == labels for service in services.values())
    headless = services.pop(spec["serviceName"])
    (clients,) = services.values()
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"] is True
    assert "clusterIP" not in clients and "publishNotReadyAddresses" not in clients

    pod = template["spec"]
    restricted(pod)
    (server,) = pod["containers"]
    assert re.fullmatch(r".+:\d+\.\d+\.\d+", server["image"]), f"{path}: the image has no version"
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    for_clients = [name for name in ("beanstalk", "beanstalks") if name in ports]
    assert [port["targetPort"] for port in clients["ports"]] == for_clients
    assert [port["targetPort"] for port in headless["ports"]] == [*for_clients, "metrics"]

    configs = {config["metadata"]["name"]: config["data"] for config in by_kind["ConfigMap"]}
    (source,) = server["envFrom"]
    variables = configs.pop(source["configMapRef"]["name"])
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
    others = server.get("volumeMounts", [])
    if is_replicated:
        replicated(path, spec, server, variables)
    else:
        (claim,) = spec["volumeClaimTemplates"]
        mount, *others = others
        assert mount == {"name": claim["metadata"]["name"], "mountPath": JOB_LOG} and spec["replicas"] == 1
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    assert sorted(volumes) == sorted(each["name"] for each in others), f"{path}: volumes and mounts differ"
    places = {each["mountPath"]: volumes[each["name"]] for each in others}
    files = ("AUTH", "CONFIG", "HTTP_TOKEN", "TLS_CERT", "TLS_CLIENT_CA", "TLS_KEY")
    for variable in (f"BEANRING_{name}" for name in files):
        if variable in variables:
            directory, _, name = variables[variable].rpartition("/")
            assert name in mounted_names(places[directory], configs), f"{path}: {variable} names no mounted file"
            # The server warns of a token that every user can read.
            assert places[directory].get("secret", {}).get("defaultMode", 0o440) == 0o440

    for policy in by_kind.get("NetworkPolicy", []):
        assert policy["spec"]["podSelector"]["matchLabels"] == labels
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        to = [port["port"] for rule in policy["spec"].get("egress", []) for port in rule["ports"]]
        assert to == ([53, 53, ports["standbys"], 5432] if is_replicated else [])
        assert all(rule["from"] for rule in policy["spec"]["ingress"]), f"{path}: the policy lets everyone in"
    (budget,) = by_kind["PodDisruptionBudget"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    for monitor in by_kind.get("ServiceMonitor", []):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["metrics"]
        assert all(labels.items() <= each["metadata"]["labels"].items() for each in by_kind["Service"])
    for cron_job in by_kind.get("CronJob", []):
        claims = [each["metadata"]["name"] for each in by_kind.get("PersistentVolumeClaim", [])]
        job_log = f"{claim['metadata']['name']}-{stateful_set['metadata']['name']}-0"
        backup(cron_job["spec"], labels, server["image"], job_log, claims)
    for rule in by_kind.get("PrometheusRule", []):
        with open("deploy/alerts.yaml", encoding="utf-8") as file:
            expected = yaml.safe_load(file.read().replace("docs/RUNBOOK.md", runbook_url(rule)))
        same = rule["spec"] == expected
        assert same, f"{path}: the rules are not those of deploy/alerts.yaml: run deploy/kubernetes/update-rules"


def replicated(path, spec, server, variables):
    """Asserts that several servers keep their job log in one database, and reach each other."""
    assert spec["replicas"] >= 2 and spec["podManagementPolicy"] == "Parallel"
    assert variables["BEANRING_WAL_DIR"] == "", f"{path}: the image names a directory of the job log"
    own = {each["name"]: each.get("valueFrom", {}) for each in server["env"]}
    assert own["BEANRING_REPLICATE"]["secretKeyRef"]["name"]
    assert own["BEANRING_ADVERTISE"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    # The default of --advertise.
    assert {"name": "standbys", "containerPort": 11401} in server["ports"]


def restricted(pod):
    """Asserts what the pod security standard "restricted" asks for, and more."""
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
    for container in pod["containers"] + pod.get("initContainers", []):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def mounted_names(volume, configs):
    """Returns the names of the files in a volume made of a ConfigMap or a Secret."""
    if "configMap" in volume:
        return list(configs[volume["configMap"]["name"]])
    # A Secret of TLS, as cert-manager makes it.
    items = volume["secret"].get("items") or [{"path": name} for name in ("tls.crt", "tls.key", "ca.crt")]
    return [item["path"] for item in items]


def runbook_url(rule):
    """Returns where the first alert links to, without the section."""
    return rule["spec"]["groups"][0]["rules"][0]["annotations"]["runbook_url"].partition("#")[0]


def backup(spec, labels, image, job_log, claims):
    """Asserts that a CronJob copies the job log to a volume of its own. `claims` are the claims that the manifests create."""
    assert spec["concurrencyPolicy"] == "Forbid"
    template = spec["jobTemplate"]["spec"]["template"]
    own = template["metadata"]["labels"]
    assert not labels.items() <= own.items(), "the Services would select the pod of a backup"
    pod = template["spec"]
    restricted(pod)
    # A ReadWriteOnce volume is on one node at a time.
    (near,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    volumes = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
    (copy,), (keep,) = pod["initContainers"], pod["containers"]
    assert copy["image"] == image
    source, target = copy["volumeMounts"]
    assert volumes[source["name"]] == job_log and source["mountPath"] == JOB_LOG and source["readOnly"] is True
    assert copy["args"] == ["wal", "backup", JOB_LOG, f"{target['mountPath']}/$(POD_NAME)"]
    assert keep["volumeMounts"] == [target]
    assert not claims or claims == [volumes[target["name"]]]


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
    compose_replicated()
for argument in sys.argv[1:]:
    kubernetes(argument)
