"""A Prometheus client library reads what docs/METRICS.md describes, with the values of `stats` and `stats-tube`.

Usage: metrics_test.py HOST:PORT HTTP-HOST:PORT
"""

import math
import sys
import time
import urllib.request

import greenstalk
from prometheus_client.parser import text_string_to_metric_families

# What changes by itself, or with each request, as CPU times do.
MOVES = {"io-waits", "memory-used", "cmd-stats", "cmd-stats-tube"}
# Metrics of tubes with rules.
RULES = {"rule_refusals", "jobs_dead_lettered", "jobs_retried", "jobs_expired", "rate_waits"}
# Commands that stats does not count.
UNCOUNTED = {"cmd-reserve-job", "cmd-kick-job", "cmd-drain", "cmd-undrain", "cmd-quit"}


def documented():
    """Returns type, labels and key of each metric in the tables of docs/METRICS.md."""
    rows = {}
    with open("docs/METRICS.md", encoding="utf-8") as page:
        for line in page:
            if line.startswith(("| `beanring_", "| `process_")):
                name, kind, labels, key = (cell.strip() for cell in line.split("|")[1:5])
                labels = {label.strip().strip("`") for label in labels.split(",") if label.strip()}
                rows[name.strip("`")] = kind, labels, key.strip("`")
    return rows


def families(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        text = answer.read().decode()
    # The library takes _total from the names of counters.
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + "_total" * (family.type == "counter")
        assert name not in found, name
        found[name] = family
    return found


def expected_key(key, labels):
    for name, value in labels.items():
        key = key.replace(name.upper(), value.replace("_", "-")) if name != "tube" else key
    return key


def as_number(value):
    return {"false": 0.0, "true": 1.0}.get(str(value).lower()) if str(value).isalpha() else float(value)


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    with greenstalk.Client((host, int(port)), use="mail", watch=["mail"]) as queue:
        for number in range(7):
            queue.put(f"job {number}", priority=number)
        queue.bury(queue.reserve())
        queue.delete(queue.reserve())
        queue.reserve()
        asked = time.monotonic()
        stats = queue.stats()
        tubes = {tube: queue.stats_tube(tube) for tube in queue.tubes()}
        found = families(sys.argv[2])
        seconds = time.monotonic() - asked
    # list-tubes came after stats.
    stats["cmd-list-tubes"] += 1
    rows = documented()
    # The job log is off, Linux before 6.2 does not count descriptors, and no tube has rules.
    absent = {"beanring_wal_sync_seconds", "process_open_fds"} | {f"beanring_tube_{name}_total" for name in RULES}
    if "current-tls-connections" not in stats:
        absent |= {name for name in rows if name.startswith(("beanring_tls_", "beanring_proxy_"))}
    if "replication-role" not in stats:
        absent |= {name for name in rows if name.startswith("beanring_replication_")}
    missing = set(rows) - set(found) - absent
    assert not missing and set(found) <= set(rows), (missing, set(found) - set(rows))
    compared = 0
    for name, family in found.items():
        kind, labels, key = rows[name]
        assert family.type == kind, (name, family.type)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, sample
            report = tubes[sample.labels["tube"]] if "tube" in labels else stats
            own_key = expected_key(key, sample.labels)
            if key and own_key not in MOVES | UNCOUNTED and not own_key.endswith("-cpu"):
                value = as_number(report[own_key])
                # An age in whole seconds goes on between the two.
                latest = value + 1 + math.ceil(seconds) if key == "oldest-ready-age" else value
                assert value <= sample.value <= latest, (sample, value)
                compared += 1
    assert compared > 75, compared
    for name in ("reply_time_seconds", "commands_per_iteration"):
        samples = {(one.name, one.labels.get("le")): one.value for one in found[f"beanring_{name}"].samples}
        count = samples[f"beanring_{name}_count", None]
        assert count > 0 and samples[f"beanring_{name}_bucket", "+Inf"] == count, name
    print(f"{compared} values are those of stats")


main()
