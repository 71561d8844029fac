"""Does with a server what Kubernetes does with the pod of a rendered manifest: starts it with the variables of the ConfigMap,
probes it, and ends it. ci/deploy calls this in a network namespace, where the ports are free.

usage: python3 ci/pod.py PROGRAM FILE
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import yaml

program, manifests = sys.argv[1:]
with open(manifests, encoding="utf-8") as file:
    objects = {each["kind"]: each for each in yaml.safe_load_all(file) if each}
pod = objects["StatefulSet"]["spec"]["template"]["spec"]
(container,) = pod["containers"]
ports = {port["name"]: port["containerPort"] for port in container["ports"]}


def start(job_log):
    """Returns a server after its startup probe has succeeded."""
    variables = {**objects["ConfigMap"]["data"], "BEANRING_WAL_DIR": job_log}
    server = subprocess.Popen([program, *container.get("args", [])], env={"PATH": os.environ["PATH"], **variables})
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


def end(server):
    server.send_signal(signal.SIGTERM)
    assert server.wait(pod["terminationGracePeriodSeconds"]) == 0, "SIGTERM does not end the server in order"


address = "192.0.2.1"
for arguments in ("link set lo up", f"address add {address}/32 dev lo"):
    subprocess.run(["ip", *arguments.split()], check=True)
with tempfile.TemporaryDirectory() as job_log:
    server = start(job_log)
    try:
        assert probes() == (200, 200)
        client = Client()
        assert client.ask("put 0 0 60 4\r\nwork") == "INSERTED 1"
        assert client.ask("reserve") == "RESERVED 1 4"

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
        server = start(job_log)
        assert Client().ask("reserve-with-timeout 0") == "RESERVED 1 4", "a reserved job is not ready after a restart"
        end(server)
    finally:
        server.kill()
        server.wait()
