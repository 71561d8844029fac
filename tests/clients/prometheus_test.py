"""The steps of ci/prometheus that need a server and a Prometheus that scrapes it.

Usage: prometheus_test.py STEP HOST:PORT HTTP-HOST:PORT PROMETHEUS-HOST:PORT
"""

import json
import re
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

STEP, SERVER, HTTP, PROMETHEUS = sys.argv[1:]
DASHBOARD = "deploy/grafana.json"
PATIENCE_SECONDS = 45


class Client:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.replies = self.socket.makefile("rb")

    def ask(self, text):
        """Sends a command. Returns the words of the first line of the reply, and skips its data."""
        self.socket.sendall(text.encode() + b"\r\n")
        line = self.replies.readline().decode().split()
        if line[0] in ("RESERVED", "FOUND", "OK"):
            self.replies.read(int(line[-1]) + 2)
        return line

    def put(self, body="x", ttr=60):
        return self.ask(f"put 10 0 {ttr} {len(body)}\r\n{body}")


def connect():
    return wait_for(lambda: Client(SERVER), "the server accepts connections")


def wait_for(attempt, what):
    """Repeats an attempt until its result is true. Returns the result."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            result, error = attempt(), None
        except OSError as failure:
            result, error = None, failure
        if result:
            return result
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE_SECONDS} s: {what} ({error})")
        time.sleep(0.2)


def prometheus(path, **parameters):
    url = f"http://{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{parameters}: {error.read().decode()}") from error
    assert body["status"] == "success", body
    return body["data"]


def query(expression):
    return prometheus("query", query=expression)["result"]


def is_firing(alert):
    return [one for one in prometheus("alerts")["alerts"] if one["labels"]["alertname"] == alert and one["state"] == "firing"]


def expect_alert(alert):
    firing = wait_for(lambda: is_firing(alert), f"{alert} fires")
    texts = [text for one in firing for text in one["annotations"].values()]
    assert texts and all(text and "<no value>" not in text and "error" not in text for text in texts), texts
    print(f"{alert}: {firing[0]['annotations']['summary']}")


def cycle(client, times):
    """Puts jobs and does with them what workers do."""
    for number in range(times):
        client.put()
        job = client.ask("reserve")[1]
        end = ("delete {}", "release {} 10 0", "bury {} 10")[number % 3]
        client.ask(end.format(job))
    client.ask("kick 1")
    client.ask("delete 999999")


def load():
    """Brings all metrics that a healthy server can have to values other than zero."""
    client = connect()
    for tube in ("mail", "sms", "reports"):
        client.ask(f"use {tube}")
        client.ask(f"watch {tube}")
        cycle(client, 30)
    client.put(ttr=1)
    client.put()
    wait_for(lambda: query('up{job="beanring"} == 1'), "Prometheus scrapes the server")


def expressions():
    """The queries of the dashboard, with their variables filled in, and the names of their panels."""
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    for panel in dashboard["panels"]:
        # A row has none.
        for target in panel.get("targets", []):
            text = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "20s")
            assert "$" not in text, f"a variable without a value: {text}"
            yield panel["title"], text


def dashboard():
    """Each query has data while the server is used. Those of replication, which this server is without, are valid."""
    client = connect()
    for tube in ("mail", "sms"):
        client.ask(f"use {tube}")
        client.ask(f"watch {tube}")
    queries = list(expressions())
    of_replication = [text for _, text in queries if "beanring_replication_" in text]
    assert of_replication, "the dashboard shows replication"
    for text in of_replication:
        query(text)
    without = [(title, text) for title, text in queries if text not in of_replication]
    until = time.monotonic() + PATIENCE_SECONDS
    while without and time.monotonic() < until:
        cycle(client, 6)
        time.sleep(0.5)
        without = [(title, text) for title, text in without if not has_data(text)]
    assert not without, f"queries without data: {without}"
    with urllib.request.urlopen(f"http://{HTTP}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    known = set(re.findall(r"^([a-z_]+)[{ ]", page, re.MULTILINE))
    with open("deploy/alerts.yaml", encoding="utf-8") as file:
        rules = file.read()
    used = set(re.findall(r"\b(?:beanring|process)_[a-z_]+", rules + " ".join(text for _, text in queries)))
    # Only servers with --replicate have these, and this one is without: they must be in the document.
    with open("docs/METRICS.md", encoding="utf-8") as file:
        documented = set(re.findall(r"`(beanring_replication_[a-z_]+)`", file.read()))
    missing = {name for name in used - known if name.removesuffix("_bucket") not in documented}
    assert not missing, f"not on the page: {missing}"
    print(f"{len(queries)} queries, {len(used)} metrics")


def has_data(text):
    values = [float(sample["value"][1]) for sample in query(text)]
    return any(value == value for value in values)


def memory():
    """Puts until the server refuses. The alerts of memory, refusals, old jobs and a tube without a worker fire."""
    client = connect()
    # What a rule of a tube refuses is no alert.
    client.ask("use limited")
    client.ask("tube-config limited max-jobs 1")
    refused = [client.put()[0] for _ in range(3)]
    assert refused == ["INSERTED", "OUT_OF_MEMORY", "OUT_OF_MEMORY"], refused
    wait_for(lambda: query("beanring_rule_refusals_total == 2"), "the refusals by the rule are scraped")
    time.sleep(2)
    assert not is_firing("BeanringRefusing")
    client.ask("use flood")
    while (reply := client.put("x" * 60_000))[0] == "INSERTED":
        pass
    assert reply == ["OUT_OF_MEMORY"], reply
    # A counter has increased only after a scrape without the refusal.
    wait_for(lambda: query('beanring_put_refusals_total{reason="memory"} > 0'), "the refusal is scraped")
    client.put("x" * 60_000)
    for alert in ("BeanringMemoryHigh", "BeanringRefusing", "BeanringNoWorker", "BeanringOldestReadyJob", "BeanringRestarted"):
        expect_alert(alert)
    quiet = ("BeanringDown", "BeanringDraining", "BeanringAcceptPaused", "BeanringDiskFull", "BeanringDiskStalled")
    for alert in quiet:
        assert not is_firing(alert), alert


STEPS = {
    "load": load,
    "dashboard": dashboard,
    "memory": memory,
    "draining": lambda: expect_alert("BeanringDraining"),
    "down": lambda: expect_alert("BeanringDown"),
}
STEPS[STEP]()
