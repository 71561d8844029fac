"""Does with a server what Kubernetes does with the pod of a rendered manifest: starts it with the variables and files of the
ConfigMaps, probes it, backs it up and restores it, and ends it. ci/deploy calls this in a network namespace, where the ports
are free.

usage: python3 ci/pod.py PROGRAM FILE
"""

import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import yaml

program, manifests = sys.argv[1:]
with open(manifests, encoding="utf-8") as file:
    documents = [each for each in yaml.safe_load_all(file) if each]
objects = {each["kind"]: each for each in documents}
configs = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
pod = objects["StatefulSet"]["spec"]["template"]["spec"]
(container,) = pod["containers"]
variables = dict(configs[container["envFrom"][0]["configMapRef"]["name"]])
# The others are fields of the pod.
variables |= {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
TOKEN = "0123456789abcdef0123456789abcdef"
ports = {port["name"]: port["containerPort"] for port in container["ports"]}


def certificates(scratch):
    """Returns the files of a Secret of TLS: a certificate of the address, with the authority that has signed it."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    names = [pathlib.Path(scratch, name) for name in ("ca.key", "ca.crt", "tls.key", "tls.crt")]
    ca_key, ca, key, certificate = map(str, names)
    subprocess.run([*new, "-subj", "/CN=ca", "-keyout", ca_key, "-out", ca], check=True, capture_output=True)
    leaf = ["-subj", "/CN=queue", "-addext", f"subjectAltName=IP:{address}", "-addext", "basicConstraints=critical,CA:FALSE"]
    new += ["-CA", ca, "-CAkey", ca_key]
    subprocess.run([*new, *leaf, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return {path.name: path.read_text() for path in names[1:]}


def tls_status(scratch):
    """Returns the first word of the reply to stats over TLS, with a client certificate."""
    context = ssl.create_default_context(cafile=f"{scratch}/ca.crt")
    context.load_cert_chain(f"{scratch}/tls.crt", f"{scratch}/tls.key")
    with socket.create_connection((address, ports["beanstalks"]), 10) as plain:
        with context.wrap_socket(plain, server_hostname=address) as client:
            client.sendall(b"stats\r\n")
            return client.recv(100).split()[0]


def mount(scratch):
    """Writes the files of ConfigMaps and Secrets as the kubelet does, and corrects the variables that name them."""
    for volume in pod.get("volumes", []):
        if "configMap" in volume:
            files = configs[volume["configMap"]["name"]]
        elif "items" in volume.get("secret", {}):
            files = {item["path"]: TOKEN for item in volume["secret"]["items"]}
        elif "secret" in volume:
            files = certificates(scratch)
        else:
            continue
        (place,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == volume["name"]]
        directory = pathlib.Path(scratch, volume["name"])
        (directory / "..1").mkdir(parents=True)
        (directory / "..data").symlink_to("..1")
        for name, text in files.items():
            (directory / "..1" / name).write_text(text)
            (directory / "..1" / name).chmod(0o440)
            (directory / name).symlink_to(f"..data/{name}")
        for variable, value in variables.items():
            if value.startswith(f"{place}/"):
                variables[variable] = str(directory / value[len(place) + 1 :])


def start(job_log):
    """Returns a server after its startup probe has succeeded."""
    settings = {"PATH": os.environ["PATH"], **variables, "BEANRING_WAL_DIR": job_log}
    server = subprocess.Popen([program, *container.get("args", [])], env=settings)
    deadline = time.monotonic() + 20
    while probe("startupProbe") != 200:
        assert server.poll() is None and time.monotonic() < deadline, "the startup probe does not succeed"
        time.sleep(0.05)
    return server


def probe(name):
    """Returns the status that the kubelet would get, or None."""
    # The kubelet takes the address of the pod, which is not loopback.
    request = container[name]["httpGet"]
    url = f"http://{address}:{ports[request['port']]}{request['path']}"
    try:
        return urllib.request.urlopen(url, timeout=container[name]["timeoutSeconds"]).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def probes():
    return probe("readinessProbe"), probe("livenessProbe")


class Client:
    def __init__(self):
        self.lines = socket.create_connection((address, ports["beanstalk"]), 10).makefile("rwb")

    def ask(self, command):
        self.lines.write(command.encode() + b"\r\n")
        self.lines.flush()
        return self.lines.readline().decode().strip()


    def read(self, command):
        """Returns the data of a reply such as that to stats."""
        status = self.ask(command).split()
        assert status[0] == "OK", status
        return self.lines.read(int(status[1]) + 2).decode()


def api_status(token):
    """Returns the status of a request to the API from another machine."""
    request = urllib.request.Request(f"http://{address}:{ports['metrics']}/api/v1/tubes")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code


def settings_have_an_effect():
    """The configuration file, the token and the further variables, where the manifests have them."""
    if "BEANRING_CONFIG" in variables:
        assert "max-attempts: 5" in Client().read("tube-config mail"), "the configuration file is not read"
    if "BEANRING_HTTP_TOKEN" in variables:
        assert (api_status(None), api_status(TOKEN)) == (401, 200), "the token is not used"
    if connections := variables.get("BEANRING_MAX_CONNECTIONS"):
        assert f"max-connections: {connections}" in Client().read("stats"), "the further variables are not set"


def back_up(job_log, volume):
    """Runs the containers of the CronJob until it has to remove a backup, beside the running server, which has one job."""
    job = objects["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (copy,), (keep,) = job["initContainers"], job["containers"]
    kept = 2
    assert any(each["name"] == "KEEP" and int(each["value"]) > 0 for each in keep["env"])
    name = objects["CronJob"]["metadata"]["name"]
    # What a killed attempt leaves.
    (volume / f"{name}-28000000-aaaaa" / "incomplete").mkdir(parents=True)
    for number in range(kept + 2):
        pod_name = f"{name}-2900000{number}-bbbbb"
        places = {"/var/lib/beanring": job_log, "/backup/$(POD_NAME)": str(volume / pod_name)}
        subprocess.run([program, *(places.get(each, each) for each in copy["args"])], check=True, stdout=subprocess.DEVNULL)
        script = keep["command"][:2] + [keep["command"][2].replace("cd /backup", f"cd {volume}")]
        names = {"PATH": os.environ["PATH"], "POD_NAME": pod_name, "KEEP": str(kept)}
        subprocess.run(script, env=names, check=True, stdout=subprocess.DEVNULL)
        time.sleep(1.01)
    backups = sorted(each.name for each in volume.iterdir())
    assert len(backups) == kept and all(each.startswith("20") for each in backups), backups
    for each in backups:
        check = subprocess.run([program, "wal", "check", volume / each], check=True, capture_output=True, text=True)
        assert "\n1 job\n" in check.stdout, check.stdout


def restore(job_log, volume):
    """Runs the container of the pod that replaces the job log by the last backup."""
    with open("deploy/kubernetes/restore.yaml", encoding="utf-8") as file:
        (container,) = yaml.safe_load(file)["spec"]["containers"]
    shell, options, script = container["command"]
    script = script.replace("/var/lib/beanring", job_log).replace("cd /backup", f"cd {volume}")
    names = {"PATH": os.environ["PATH"], "BACKUP": max(each.name for each in volume.iterdir())}
    subprocess.run([shell, options, script], env=names, check=True, stdout=subprocess.DEVNULL)


def end(server):
    server.send_signal(signal.SIGTERM)
    assert server.wait(pod["terminationGracePeriodSeconds"]) == 0, "SIGTERM does not end the server in order"


address = "192.0.2.1"
for arguments in ("link set lo up", f"address add {address}/32 dev lo"):
    subprocess.run(["ip", *arguments.split()], check=True)
with tempfile.TemporaryDirectory() as job_log, tempfile.TemporaryDirectory() as scratch:
    mount(scratch)
    server = start(job_log)
    try:
        assert probes() == (200, 200)
        settings_have_an_effect()
        if "BEANRING_TLS_CERT" in variables:
            assert tls_status(scratch) == b"OK", "TLS does not answer"
        client = Client()
        assert client.ask("put 0 0 60 4\r\nwork") == "INSERTED 1"
        assert client.ask("reserve") == "RESERVED 1 4"
        if "CronJob" in objects:
            back_up(job_log, pathlib.Path(scratch, "backups"))
            assert Client().ask("put 0 0 60 4\r\nlate") == "INSERTED 2"

        # Drain mode: not ready, so the Service has no endpoint, but alive, so the kubelet does not restart the pod.
        server.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while probes() != (503, 200):
            assert time.monotonic() < deadline, f"the probes in drain mode return {probes()}"
            time.sleep(0.05)
        assert Client().ask("put 0 0 60 4\r\nmore") == "DRAINING"
        assert Client().ask("undrain") == "NOT_DRAINING"
        assert probes() == (200, 200)

        # The job is reserved, and its client still connected.
        end(server)
        if "CronJob" in objects:
            restore(job_log, pathlib.Path(scratch, "backups"))
        server = start(job_log)
        assert Client().ask("reserve-with-timeout 0") == "RESERVED 1 4", "a reserved job is not ready after a restart"
        if "CronJob" in objects:
            assert Client().ask("peek 2") == "NOT_FOUND", "the job log is not that of the backup"
        end(server)
    finally:
        server.kill()
        server.wait()
