"""Reads deploy/compose.yaml and deploy/kubernetes.yaml, and asserts what makes them work together with the server, the image
and the profile. Their schemas are known to an engine and a cluster; this needs neither."""

import re

import yaml

USER = 65532
LOG_DIR = "/var/lib/beanring"


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
    assert image["ENV"] == f"BEANRING_LOG_DIR={LOG_DIR}"
    assert image["VOLUME"] == LOG_DIR
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
    assert volume in document["volumes"] and place == LOG_DIR
    is_below(server["command"], server["mem_limit"])


def kubernetes():
    service, stateful_set = read("kubernetes.yaml")
    assert (service["kind"], stateful_set["kind"]) == ("Service", "StatefulSet")
    spec = stateful_set["spec"]
    template = spec["template"]
    assert spec["serviceName"] == service["metadata"]["name"]
    labels = template["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == spec["selector"]["matchLabels"]

    pod = template["spec"]
    # Else the Service's own address is set as the variable of a flag.
    assert pod["enableServiceLinks"] is False
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == USER
    assert context["seccompProfile"]["type"] == "Localhost"

    (server,) = pod["containers"]
    (port,) = server["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert server["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    is_below(server["args"], server["resources"]["limits"]["memory"])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["exec"]["command"] == ["/beanring", "healthcheck"]
        # The check has its own time-out of 3 seconds, which prints the reason.
        assert server[probe]["timeoutSeconds"] > 3
    (mount,) = server["volumeMounts"]
    (claim,) = spec["volumeClaimTemplates"]
    assert mount == {"name": claim["metadata"]["name"], "mountPath": LOG_DIR}


dockerfile()
compose()
kubernetes()
