"""Runs a plan: `ci/test`, `ci/quick` and `ci/deep` call this.

usage: ci/PLAN [--list] [--publish] [STEP...]

  STEP...     only these steps, and what they need
  --list      names the steps
  --publish   writes the times of all of ci/test into docs/internals/TESTING.md, if it passes

Without names, ci/deep runs the parts that have not passed at this commit. Prints a line per step as it ends, what was
skipped, failures with the command that repeats each, and "N passed, N failed, N skipped". Logs are in target/results.
"""

import argparse
import dataclasses
import fcntl
import json
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import deep
import plans
from results import Log, Machine, Rules, drivers_missing, failed_part, violations
from schedule import Schedule
from times import publish, table

ROOT = Path(__file__).resolve().parent.parent.parent


class Run:
    """A run of some steps of a plan."""

    def __init__(self, plan, steps, target):
        self.plan, self.steps = plan, steps
        self.results = target / "results"
        target.mkdir(parents=True, exist_ok=True)
        # Held until the run ends.
        self.lock = open(target / "results.lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run writes to {self.results}: wait for its end, or set CARGO_TARGET_DIR") from None
        shutil.rmtree(self.results, ignore_errors=True)
        self.results.mkdir()
        # Variables that are meant for a single suite would leave others with nothing to do.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("BEANRING_")}
        self.environment |= {"RESULTS": str(self.results), **plan.environment}
        self.rules = Rules.read(ROOT / "ci/suites")
        self.machine = Machine(self.environment)
        self.logs = {}
        self.commit = deep.commit()
        self.begin = time.monotonic()

    def resolve(self, step):
        """Returns the command of a step. A test program runs from where the build has put it."""
        if step.reads != "tests":
            return step.command
        build = (self.results / f"{step.needs[0]}.log").read_text()
        return [*step.command, program(build, step.program), "--show-output", *step.selected]

    def told(self, outcome):
        """Prints the line of a step that has ended. Returns its outcome: a step that violates a rule has failed."""
        step = outcome.step
        log = None
        if outcome.state in ("passed", "failed"):
            log = self.logs[step.name] = Log(step, self.text_of(step), outcome.state == "failed")
        if outcome.state in ("passed", "skipped"):
            wrong = "; ".join(violations(outcome, log, self.rules, self.machine))
            if wrong:
                outcome = dataclasses.replace(outcome, state="failed", why=wrong)
        counts = f"{log.passed} passed" if log and step.reads != "status" else outcome.why if not log else ""
        at = int(time.monotonic() - self.begin)
        print(
            f"{at // 60:3}:{at % 60:02} {outcome.state:8} {step.name:24} {outcome.wall:7.1f} s {outcome.cpu:7.1f} s of CPU  {counts}".rstrip(),
            flush=True,
        )
        deep.note(self.plan, outcome, self.commit)
        return outcome

    def text_of(self, step):
        file = self.results / f"{step.name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def failures(self, outcomes):
        for outcome in outcomes.values():
            if outcome.state == "failed":
                print(f"\n== {outcome.step.name}: {outcome.why}")
                print("\n".join(failed_part(self.text_of(outcome.step).splitlines())))
                print(f"repeat it with: {outcome.step.repeated_by()}")

    def summary(self, outcomes, is_whole):
        """Prints what was skipped, the failures, and the counts. Returns whether the run has passed."""
        skips = [f"{name}, because {each.why}" for name, each in outcomes.items() if each.state == "skipped"]
        skips = list(dict.fromkeys(skips + [skip for log in self.logs.values() for skip in log.skips]))
        for skip in skips:
            print(f"skipped: {skip}")
        self.failures(outcomes)
        missing = list(drivers_missing(self.logs.values(), self.rules, self.machine)) if is_whole else []
        for line in missing:
            print(f"\n== {line}")
        passed = sum(log.passed for log in self.logs.values())
        # A step that violates a rule may have no test that has failed.
        failed = len(missing)
        for name, outcome in outcomes.items():
            log = self.logs.get(name)
            failed += max(log.failed if log else 0, outcome.state in ("failed", "not run"))
        print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
        return not failed


def program(build, name):
    """Returns the path of a test program from what cargo has printed."""
    kind, *named = plans.UNITS.get(name, f"--test {name}").removeprefix("--").split()
    # The library has the name of the package.
    target_name = named[0] if named else "beanring"
    for line in build.splitlines():
        if line.startswith("{"):
            message = json.loads(line)
            target = message.get("target", {})
            if message.get("executable") and message["profile"]["test"] and (target["name"], target["kind"]) == (target_name, [kind]):
                return message["executable"]
    raise LookupError(f"cargo has built no test program {name}")


def with_needs(steps, names):
    """Returns the named steps and what they need, in the order of the plan."""
    known = {step.name: step for step in steps}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"no step {' '.join(unknown)}: --list names them")
    chosen, open_names = set(), list(names)
    while open_names:
        name = open_names.pop()
        if name not in chosen:
            chosen.add(name)
            open_names.extend(known[name].needs)
    return [step for step in steps if step.name in chosen]


def raise_locked_memory():
    """The limit counts the rings of all servers of a user. Suites that run side by side start more of them than it allows."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        pass


def main():
    parser = argparse.ArgumentParser(prog="ci/" + sys.argv[1], usage=__doc__.split("usage: ")[1].split("\n\nPrints")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("steps", nargs="*")
    arguments = parser.parse_args(sys.argv[2:])
    os.chdir(ROOT)
    plan = plans.PLANS[sys.argv[1]]
    steps = plan.steps()
    if arguments.list:
        for step in steps:
            print(f"{step.name:24} {step.kind:12} {step.repeated_by()}")
        return True
    if arguments.publish and (plan.name != "test" or arguments.steps):
        parser.error("only all steps of ci/test have a table in TESTING.md")
    names = arguments.steps or deep.parts_left(plan, steps)
    if not names:
        print(f"all parts have passed at {deep.commit()}")
        return True
    if any(step.name == "allowed" for step in steps):
        # The rules of ci/suites ask what the kernel allows.
        names = [*names, "allowed"]
    steps = with_needs(steps, names)
    # The steps that run end by the end of this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    raise_locked_memory()
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve()
    run = Run(plan, steps, target)
    outcomes = Schedule(steps, run.results, run.environment, run.resolve, run.told).run()
    measured = table(outcomes.values(), time.monotonic() - run.begin)
    (run.results / "times.md").write_text(measured)
    has_passed = run.summary(outcomes, plan.name == "test" and not arguments.steps)
    if arguments.publish and has_passed:
        publish(ROOT / "docs/internals/TESTING.md", plan.name, measured)
    return has_passed


if __name__ == "__main__":
    sys.exit(not main())
