"""The Python client greenstalk, unmodified, through the whole life of a job.

Usage: greenstalk_test.py HOST:PORT | unix:PATH
"""

import sys
import time
import traceback

import greenstalk

ADDRESS = sys.argv[1]
EVERY_BYTE = bytes(range(256))
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def connect(tube, **options):
    if ADDRESS.startswith("unix:"):
        address = ADDRESS.removeprefix("unix:")
    else:
        host, port = ADDRESS.rsplit(":", 1)
        address = (host, int(port))
    return greenstalk.Client(address, use=tube, watch=tube, **options)


def raises(error, function, *args, **kwargs):
    try:
        got = function(*args, **kwargs)
    except error:
        return
    raise AssertionError(f"{function.__name__} gave {got!r}, and not {error.__name__}")


@test
def put_reserve_delete(tube):
    with connect(tube) as client:
        id = client.put("hello", priority=7, delay=0, ttr=30)
        job = client.reserve()
        assert (job.id, job.body) == (id, "hello")
        stats = client.stats_job(job)
        assert stats["tube"] == tube
        assert stats["state"] == "reserved"
        assert (stats["pri"], stats["ttr"], stats["reserves"]) == (7, 30, 1)
        client.delete(job)
        raises(greenstalk.NotFoundError, client.stats_job, job)


@test
def order_by_priority(tube):
    with connect(tube) as client:
        for priority in (5, 1, 9, 1):
            client.put(str(priority), priority=priority)
        assert [client.reserve(timeout=0).body for _ in range(4)] == ["1", "1", "5", "9"]


@test
def binary_bodies(tube):
    with connect(tube, encoding=None) as client:
        largest = client.stats()["max-job-size"]
        for body in (b"", EVERY_BYTE, b"\r\n" * 10, (EVERY_BYTE * (largest // 256 + 1))[:largest]):
            client.put(body)
            job = client.reserve(timeout=0)
            assert job.body == body
            client.delete(job)
        raises(greenstalk.JobTooBigError, client.put, b"x" * (largest + 1))
        assert client.using() == tube


@test
def delay_and_peek(tube):
    with connect(tube) as client:
        raises(greenstalk.NotFoundError, client.peek_ready)
        raises(greenstalk.NotFoundError, client.peek_delayed)
        raises(greenstalk.NotFoundError, client.peek_buried)
        late = client.put("late", delay=100)
        soon = client.put("soon")
        assert client.peek_delayed().id == late
        assert client.peek_ready().id == soon
        assert client.peek(late).body == "late"
        client.bury(client.reserve_job(soon))
        assert client.peek_buried().id == soon


@test
def delay_ends(tube):
    with connect(tube) as client:
        id = client.put("late", delay=1)
        raises(greenstalk.TimedOutError, client.reserve, timeout=0)
        assert client.reserve(timeout=10).id == id


@test
def release_bury_kick(tube):
    with connect(tube) as client:
        id = client.put("x")
        client.release(client.reserve(), priority=3, delay=0)
        assert client.stats_job(id)["pri"] == 3
        client.release(client.reserve(), delay=100)
        assert client.stats_job(id)["state"] == "delayed"
        client.kick_job(id)
        client.bury(client.reserve(), priority=4)
        assert client.stats_job(id)["state"] == "buried"
        assert client.kick(10) == 1
        assert client.kick(10) == 0
        stats = client.stats_job(id)
        assert (stats["state"], stats["pri"]) == ("ready", 4)
        assert (stats["releases"], stats["buries"], stats["kicks"]) == (2, 1, 2)


@test
def reserve_job_in_each_state(tube):
    with connect(tube) as client, connect(tube) as other:
        ready, delayed, buried = client.put("a"), client.put("b", delay=100), client.put("c")
        client.bury(client.reserve_job(buried))
        for id, body in ((ready, "a"), (delayed, "b"), (buried, "c")):
            assert client.reserve_job(id).body == body
            raises(greenstalk.NotFoundError, other.reserve_job, id)


@test
def touch_keeps_a_job(tube):
    with connect(tube) as client, connect(tube) as other:
        client.put("x", ttr=2)
        job = client.reserve()
        for _ in range(3):
            time.sleep(0.9)
            client.touch(job)
        raises(greenstalk.TimedOutError, other.reserve, timeout=0)
        raises(greenstalk.NotFoundError, other.touch, job)
        client.delete(job)


@test
def time_outs(tube):
    with connect(tube) as client:
        raises(greenstalk.TimedOutError, client.reserve, timeout=0)
        raises(greenstalk.TimedOutError, client.reserve, timeout=1)
        id = client.put("x", ttr=1)
        client.reserve()
        raises(greenstalk.DeadlineSoonError, client.reserve)
        raises(greenstalk.DeadlineSoonError, client.reserve, timeout=5)
        client.delete(id)


@test
def others_jobs(tube):
    with connect(tube) as client, connect(tube) as other:
        client.put("x")
        job = client.reserve()
        raises(greenstalk.NotFoundError, other.delete, job)
        raises(greenstalk.NotFoundError, other.release, job)
        raises(greenstalk.NotFoundError, other.bury, job)
        client.close()
        assert other.reserve(timeout=10).id == job.id


@test
def tubes(tube):
    second = tube + "-second"
    with connect(tube) as client:
        assert client.using() == tube
        assert client.watching() == [tube]
        assert client.watch(second) == 2
        assert sorted(client.watching()) == [tube, second]
        assert {tube, second} <= set(client.tubes())
        assert client.ignore(tube) == 1
        raises(greenstalk.NotIgnoredError, client.ignore, second)
        client.put("x")
        stats = client.stats_tube(tube)
        assert (stats["name"], stats["current-jobs-ready"], stats["current-using"]) == (tube, 1, 1)
        raises(greenstalk.TimedOutError, client.reserve, timeout=0)
        raises(greenstalk.NotFoundError, client.stats_tube, tube + "-unheard-of")
        raises(greenstalk.BadFormatError, client.use, "-wrong")


@test
def pause(tube):
    with connect(tube) as client:
        id = client.put("x")
        client.pause_tube(tube, 1)
        assert client.stats_tube(tube)["pause"] == 1
        raises(greenstalk.TimedOutError, client.reserve, timeout=0)
        assert client.reserve(timeout=10).id == id
        raises(greenstalk.NotFoundError, client.pause_tube, tube + "-unheard-of", 1)


@test
def statistics(tube):
    with connect(tube) as client:
        before = client.stats()
        client.delete(client.put("x"))
        after = client.stats()
        assert after["cmd-put"] - before["cmd-put"] == 1
        assert after["total-jobs"] - before["total-jobs"] == 1
        assert after["current-connections"] >= 1
        assert after["draining"] == "false"
        missing = greenstalk.Stats.__annotations__.keys() - after.keys()
        assert not missing, missing


def main():
    failed = 0
    for number, function in enumerate(TESTS):
        try:
            function(f"greenstalk-{number}")
        except Exception:
            failed += 1
            print(f"{function.__name__}:")
            traceback.print_exc(file=sys.stdout)
    print(f"greenstalk {greenstalk.__version__} over {ADDRESS}: {len(TESTS) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
