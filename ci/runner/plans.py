"""The steps of ci/test, ci/quick and ci/deep."""

import time
from dataclasses import dataclass, field, replace

from schedule import Step

# Test programs that wait more than they compute, with the number of their tests that run at a time.
WAITING = {"replication": 4, "log": 4, "client": 4, "process": 4}
SYNCING = ("replication", "log")
COMPUTING = ("protocol", "queue", "simulation", "network", "limits", "http", "tls", "auth", "bench", "sources")
# The unit tests, and how cargo names them.
UNITS = {"library": "--lib", "beanring": "--bin beanring", "beanring-bench": "--bin beanring-bench"}
BUILD = ("cargo", "test", "--locked", "--no-run", "--message-format=json-render-diagnostics")
CLIPPY = ("cargo", "clippy", "--locked", "--quiet")
LINTS = ("--", "-D", "warnings")
# What `cargo clippy --all-targets` leaves out, also if they are named beside it.
OTHER_TARGETS = ("--bench", "disk", "--test", "cost")


def tests(name, program, *selected, build="build", threads=None, environment=None, **fields):
    """A step that runs the tests of a program, or those that the arguments select. A command may run the program."""
    threads = threads or WAITING.get(program, 2)
    built = {"build-epoll": "--no-default-features ", "build-long": "--profile long "}.get(build, "")
    cargo = f"cargo test --locked {built}{UNITS.get(program, f'--test {program}')} -- {' '.join(selected)}".strip()
    cargo = " ".join([*fields.get("command", ()), cargo])
    return Step(
        name,
        needs=(build, *fields.pop("needs", ())),
        cores=fields.pop("cores", 0 if program in WAITING else 1),
        syncs=program in SYNCING,
        environment={"RUST_TEST_THREADS": str(threads), **(environment or {})},
        reads="tests",
        program=program,
        selected=selected,
        repeat=cargo,
        **fields,
    )


def build(name, *command, needs=("build",), cores=2):
    """A step that compiles. What it computes is known, so only a build that hangs is ended: machines differ by a factor of four."""
    return Step(name, command, "build", needs, cores=cores, seconds_max=3600)


def script(name, *command, **fields):
    """A step that runs a script which prints "- NAME" before each of its checks."""
    return Step(name, command, reads="checks", **fields)


def under(driver):
    """The fields of a step that runs if the kernel allows a driver."""
    return {
        "needs": ("allowed", "tools"),
        "condition": f'grep -q "^{driver}: allowed" "$RESULTS/allowed.log"',
        "why_not": "the kernel does not allow it",
    }


def base():
    """What every plan begins with."""
    return [
        Step("tools", ("ci/tools",), "install", cores=0),
        build("build", *BUILD, needs=()),
        Step("allowed", ("target/debug/examples/allowed",), "check", ("build",), cores=0),
    ]


def checks():
    """Checks of the sources and the documents. Those that call cargo come one after the other, since they share a directory."""
    return [
        Step("format", ("cargo", "fmt", "--check", "--all"), "check", cores=0),
        Step("runner", ("python3", "-m", "unittest", "discover", "-s", "ci/runner"), "check", cores=0),
        Step("mutants-marked", ("ci/mutants", "--check"), "check", cores=0),
        Step("pages", ("python3", "ci/docs.py"), "check", cores=0),
        Step("published", ("ci/lab/results", "--check"), "check", cores=0),
        Step("features", ("ci/features",), "check", ("build",), cores=0),
        Step("lints", (*CLIPPY, "--all-targets", *LINTS), "check", ("build",)),
        Step("lints-others", (*CLIPPY, *OTHER_TARGETS, *LINTS), "check", ("lints",)),
    ]


def run():
    """What every change must pass."""
    return [
        *base(),
        # Half of its time is a link on one core; steps that mostly wait keep the other one busy.
        build("build-static", "deploy/static"),
        *(tests(program, program, needs=("tools",)) for program in WAITING),
        # Two thirds of its time is waiting, and it takes the longest.
        script("console", "ci/console", environment={"PROGRAM": "target/debug/beanring"}, needs=("build", "tools"), cores=0),
        *checks(),
        Step("mutants", ("ci/mutants", "--run"), needs=("build",)),
        # What computes for long comes first: at the end nothing would be left for the other core.
        *epoll_alone(),
        script("http-api", "ci/http-api", "target/debug/beanring", "5", needs=("build", "tools")),
        script("instructions", "ci/instructions", needs=("build-static", "tools")),
        Step("lints-epoll", (*CLIPPY, "--all-targets", "--no-default-features", *LINTS), "check", ("lints-others",)),
        # These have another form without TLS.
        Step("lints-client", (*CLIPPY, "--no-default-features", "--features", "bench,client", *LINTS), "check", ("lints-epoll",)),
        Step("doc", ("cargo", "doc", "--locked", "--quiet", "--no-deps"), "check", ("lints-client",), environment={"RUSTDOCFLAGS": "-D warnings"}),
        # README's first command. It installs what `build` has built.
        Step("installed", ("cargo", "install", "--quiet", "--debug", "--locked", "--force", "--path", ".", "--root", "target/installed"), "check", ("doc",)),
        # There is none today, as examples are conversations.
        Step("doc-tests", ("cargo", "test", "--locked", "--quiet", "--doc"), "check", needs=("doc",)),
        # It waits for the lock of cargo while `instructions` builds.
        script("deployment", "ci/deploy", "dev", needs=("doc", "build-static", "tools"), cores=0),
        *(tests(program, program, needs=("tools",)) for program in (*COMPUTING, *UNITS)),
        *variants(),
        *scripts(),
    ]


def epoll_alone(*suites):
    """The build without features, with its unit tests. It has a directory of its own, since its programs have the names of the others."""
    programs = [f"--test={suite}" for suite in suites]
    return [
        build("build-epoll", "ci/shared-build", "epoll", *BUILD, "--no-default-features", "--lib", "--bin=beanring", *programs, cores=1),
        tests("epoll-alone-library", "library", build="build-epoll"),
        tests("epoll-alone-program", "beanring", build="build-epoll"),
    ]


def variants():
    """Suites that run again over TLS, under each driver, and with new seeds."""
    tls = {"BEANRING_TEST_TLS": "1"}
    # The suite live has conversations over TLS.
    no_conversations = ("--skip", "conversations")
    found = [
        tests("tls-limits", "limits", "ceilings::", environment=tls),
        tests("tls-hostile", "network", "hostile::", environment=tls),
        tests("tls-sockets", "network", "sockets::", *no_conversations, environment=tls),
        tests("tls-top", "client", "top::", environment=tls, needs=("tools",)),
    ]
    for driver in ("epoll", "tokio-uring"):
        io = {"BEANRING_IO": driver}
        found += [
            tests(f"{driver}-hostile", "network", "hostile::", environment=io, **under(driver)),
            tests(f"{driver}-differential", "protocol", "differential::", environment=io, **under(driver)),
            tests(f"{driver}-process", "process", "server::", environment=io, **under(driver)),
            tests(f"{driver}-bench", "bench", "tool::", environment=io, **under(driver)),
            tests(f"{driver}-tls-hostile", "network", "hostile::", environment=io | tls, **under(driver)),
        ]
    # It changes a setting of the kernel, which suites that measure memory would notice.
    found.append(tests("huge-pages", "limits", "ceilings::", command=("ci/huge-pages",), needs=("limits", "tls-limits")))
    found += [
        # The seeds are from the clock, so that every run has new ones. A failure prints how to replay it.
        tests("new-seeds", "simulation", "server::seeds_are_clean", environment={"BEANRING_TEST_FROM": str(int(time.time())) + "000000", "BEANRING_TEST_SECONDS": "20"}),
    ]
    return found


def scripts():
    """Checks of documents and other programs' clients. Those that call cargo need the steps that keep its directory locked."""
    debug = "target/debug/beanring"
    waits = {"needs": ("build", "tools"), "cores": 0}
    return [
        script("prometheus", "ci/prometheus", debug, **waits),
        script("first-steps", "ci/first-steps", **waits),
        script("sslyze", "ci/tls", debug, **waits),
        Step("backups", ("ci/backups", debug, "3"), needs=("build",), cores=0),
        script("clients", "ci/clients", debug, needs=("doc", "tools"), cores=0),
        # With the library for Python that the check of clients installs.
        script("page-commands", "ci/doc-commands", needs=("clients",), cores=0),
    ]


def quick():
    """What to run before each commit. It builds no more than it runs."""
    programs = ("--lib", "--bin", "beanring", "--test", "sources", "--test", "queue", "--test", "protocol", "--example", "allowed")
    _, building, *others = base()
    return [
        replace(building, command=(*BUILD, *programs)),
        *others,
        *checks(),
        *(tests(program, program) for program in ("library", "beanring", "sources", "queue")),
        tests("core", "protocol", "core::"),
        tests("live", "protocol", "live::"),
    ]


def deep():
    """What takes longer than a run may. Each part has a short form in ci/test."""
    hours = {"seconds_max": 3 * 3600, "kind": "suite"}
    long = (*BUILD, "--profile", "long", "--lib", "--test", "simulation", "--test", "queue", "--test", "protocol", "--test", "cost")
    return [
        *base(),
        build("build-long", *long),
        build("build-release", "cargo", "build", "--release", "--locked"),
        Step("mutants", ("ci/mutants",), needs=("build",), **hours),
        *long_runs(hours),
        *epoll_alone("protocol", "process"),
        tests("epoll-alone-core", "protocol", "core::", build="build-epoll", **hours),
        tests("epoll-alone-process", "process", "server::", build="build-epoll", needs=("tools",), **hours),
        script("http-api", "ci/http-api", "target/debug/beanring", "30", needs=("build", "tools"), **hours),
        script("kernels", "ci/kernels", needs=("build", "tools"), cores=0, **hours),
        script("docker", "ci/docker", needs=("build", "tools"), cores=0, **hours),
        script("package", "ci/deploy", needs=("build", "tools"), cores=0, **hours),
        script("postgres-versions", "ci/postgres-versions", needs=("build", "tools"), cores=0, **hours),
        script("confined", "ci/confined", needs=("build", "tools"), **hours),
        script("fuzz", "ci/fuzz", "600", cores=2, **hours),
        tests("cost", "cost", build="build-long", alone=True, environment={"BEANRING_TEST_SECONDS": "120", "BEANRING_TEST_SEED": str(int(time.time()))}, **hours),
        Step("bench", ("ci/bench", "--short"), "measurement", ("build-release",), alone=True, seconds_max=3600),
        tests("stress", "network", "stress::", threads=1, alone=True, environment={"BEANRING_TEST_SECONDS": "60"}, **hours),
        Step("replicated", ("ci/lab/replicated",), "measurement", ("build-release", "tools"), alone=True, seconds_max=3600),
    ]


def long_runs(hours):
    """Random suites with many seeds, and faults with many rounds."""
    seeds = [
        ("seeds-server", "simulation", "server::seeds_are_clean", {"BEANRING_TEST_SECONDS": "900"}),
        ("seeds-replicas", "simulation", "replicas::seeds_are_clean", {"BEANRING_TEST_SEEDS": "100000"}),
        ("seeds-schedules", "simulation", "schedules::seeds_are_clean", {"BEANRING_TEST_SEEDS": "10000"}),
        ("seeds-log", "simulation", "log::power_fails_and_every", {"BEANRING_TEST_SEEDS": "20000"}),
        ("seeds-operations", "simulation", "log::every_operation", {"BEANRING_TEST_SEEDS": "60"}),
        ("seeds-model", "queue", "model::", {"BEANRING_TEST_SEEDS": "10000"}),
        ("seeds-differential", "protocol", "differential::", {"BEANRING_TEST_SEEDS": "200", "BEANRING_TEST_STEPS": "500"}),
    ]
    faults = {"KILLS": "60", "STOPS": "20", "ROLLS": "20", "CUTS": "20", "PROMOTES": "6", "ALONE": "6", "CANCELS": "300", "FLIPS": "30", "OLD_NEWS": "100"}
    variables = {f"BEANRING_TEST_{name}": count for name, count in faults.items()}
    return [
        *(tests(name, program, test, build="build-long", environment=environment, **hours) for name, program, test, environment in seeds),
        tests("faults", "replication", "faults::", environment=variables, needs=("tools",), **hours),
        tests("lost-peers", "network", "lost::", environment={"BEANRING_TEST_KEEPALIVE": "60"}, **hours),
        tests("restarts", "process", "restart::", environment={"BEANRING_TEST_RESTARTS": "50"}, **hours),
        tests("cycles", "log", "live::acknowledged", environment={"BEANRING_TEST_CYCLES": "200"}, **hours),
        tests("sweep", "log", "sweep::", environment={"BEANRING_TEST_SWEEP": "1"}, **hours),
        tests("tls-churn", "network", "churn::", environment={"BEANRING_TEST_TLS": "1"}, **hours),
    ]


@dataclass(frozen=True)
class Plan:
    """A command of ci/. If it is resumed, its parts are noted, and those that have passed at this commit do not run again."""

    name: str
    steps: object
    is_resumed: bool = False
    environment: dict = field(default_factory=dict)


# A run compiles each crate once: what an incremental build keeps for the next one would only cost time.
ONCE = {"CARGO_INCREMENTAL": "0"}
PLANS = {
    "test": Plan("test", run, environment=ONCE),
    "quick": Plan("quick", quick),
    "deep": Plan("deep", deep, is_resumed=True, environment=ONCE),
}
