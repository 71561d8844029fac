"""What a Prometheus client library reads on /metrics is what `stats` and `stats-tube` tell.

Usage: metrics_test.py HOST:PORT HTTP-HOST:PORT
"""

import math
import sys
import time
import urllib.request

import greenstalk
from prometheus_client.parser import text_string_to_metric_families

# What goes on by itself, or with the asking.
MOVES = {"rusage-utime", "rusage-stime", "uptime", "io-waits", "memory-used", "cmd-stats", "cmd-stats-tube"}
TEXTS = {"version", "id", "hostname", "os", "platform", "io-driver"}


def samples(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def metric(found, scope, key, labels):
    name = key.replace("-", "_")
    total = name.removeprefix("total_") + "_total"
    for candidate in (total, name):
        value = found.get((f"beanring_{scope}{candidate}", labels))
        if value is not None:
            return value
    raise AssertionError(f"{scope}{key} is not in the metrics")


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
        found = samples(sys.argv[2])
        seconds = time.monotonic() - asked
    compared = 0
    info = next(dict(labels) for name, labels in found if name == "beanring_info")
    for key, value in stats.items():
        if key in TEXTS:
            assert info[key.replace("-", "_")] == str(value), key
        elif key not in MOVES:
            # list-tubes came after stats.
            expected = as_number(value) + (key == "cmd-list-tubes")
            assert metric(found, "", key, ()) == expected, key
            compared += 1
    for tube, figures in tubes.items():
        for key, value in figures.items():
            if key != "name":
                told, read = as_number(value), metric(found, "tube_", key, (("tube", tube),))
                # An age in whole seconds goes on between the two.
                latest = told + 1 + math.ceil(seconds) if key == "oldest-ready-age" else told
                assert told <= read <= latest, (tube, key, told, read)
                compared += 1
    assert compared > 70, compared
    for name in ("reply_seconds", "commands_per_enter"):
        count = found[(f"beanring_{name}_count", ())]
        assert count > 0 and found[(f"beanring_{name}_bucket", (("le", "+Inf"),))] == count, name
    print(f"{compared} figures are as stats tells them")


main()
