"""Reads the logs of a run, and checks them against ci/suites."""

import fnmatch
import re
from dataclasses import dataclass

from schedule import succeeds

TEST = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)(?:, (.*))?")
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed;")
TESTED = re.compile(r"^tested: (.*) under (\S+)$")
# The end of a log that is shown after a failure, and of what a panic says before that: where it was, and both sides.
LINES_SHOWN = 60
LINES_OF_PANIC = 4


class Log:
    """What a log says: how many tests passed and failed, in which parts, and what was skipped. An ignored test is skipped.

    A part is a module of a test program, or a check of a script.
    """

    def __init__(self, step, text, has_failed):
        self.passed = self.failed = 0
        self.parts = {}
        self.skips = []
        self.drivers = set()
        lines = text.splitlines()
        for line in lines:
            if line.startswith("skipped: "):
                self.skips.append(line.removeprefix("skipped: "))
            elif found := TESTED.match(line):
                self.drivers.add(found[2])
        reads = {"tests": self.read_tests, "results": self.read_results, "checks": self.read_checks, "status": self.read_status}
        reads[step.reads](lines, has_failed)

    def read_tests(self, lines, has_failed):
        for line in lines:
            if found := TEST.match(line):
                module, is_below, _ = found[1].partition("::")
                if found[2] == "ok":
                    self.parts[module if is_below else "main"] = True
                elif found[2] == "ignored":
                    self.skips.append(f"the test {found[1]}, because {found[3]}")
        # A test may run test programs and show their output. A program that does not end with its own result has crashed.
        result = RESULT.match(next(filter(None, reversed(lines)), ""))
        if result:
            self.passed, self.failed = map(int, result.groups())
        if (has_failed or not result) and not self.failed:
            self.failed = 1

    def read_results(self, lines, has_failed):
        """Reads the output of several test programs."""
        for found in filter(None, map(RESULT.match, lines)):
            self.passed += int(found[1])
            self.failed += int(found[2])
        if has_failed and not self.failed:
            self.failed = 1

    def read_checks(self, lines, has_failed):
        """Reads a script that prints "- NAME" before each check, and ends at the first that fails."""
        name = None
        for line in lines:
            if line.startswith("- "):
                # A part of the name in parentheses may be a version.
                name = re.sub(r" \([^)]*\)", "", line.removeprefix("- "))
                self.parts[name] = True
            elif line.startswith("skipped: ") and name:
                self.parts[name] = False
        self.failed = int(has_failed)
        self.passed = max(sum(self.parts.values()) - self.failed, 0)

    def read_status(self, _, has_failed):
        self.passed, self.failed = int(not has_failed), int(has_failed)


@dataclass
class Rules:
    """The rules of ci/suites."""

    suites: dict
    drivers: list
    skips: list

    @classmethod
    def read(cls, file):
        rules = cls({}, [], [])
        for number, line in enumerate(file.read_text().splitlines(), 1):
            rule, _, command = (part.strip() for part in line.partition(" | "))
            kind, _, rest = rule.partition(" ")
            words = rest.split()
            if not rule or kind.startswith("#"):
                continue
            if kind == "suite" and len(words) > 1:
                rules.suites.setdefault(words[0], []).append((words[1:], command))
            elif kind == "driver" and len(words) == 1:
                rules.drivers.append((rest, command))
            elif kind == "skip" and rest and command:
                rules.skips.append((rest, command))
            else:
                raise SystemExit(f"{file}:{number}: neither suite nor driver nor skip with a command: {line!r}")
        return rules


class Machine:
    """Runs each command of a rule once."""

    def __init__(self, environment):
        self.environment = environment
        self.answers = {}

    def has(self, command):
        if command not in self.answers:
            self.answers[command] = not command or succeeds(command, self.environment)
        return self.answers[command]


def violations(outcome, log, rules, machine):
    """Yields a line for each violation of the rules by a step, which has passed or was skipped."""
    if outcome.state == "skipped":
        yield from skip_violations(f"{outcome.step.name}, because {outcome.why}", rules, machine)
        return
    if log.failed:
        yield "its log has a failure, or ends before the result"
    if not log.passed and not log.skips:
        yield "it has tested nothing"
    # The unit tests have no list: sources::layers looks for files that no module names.
    if outcome.step.program in rules.suites and not outcome.step.selected:
        yield from suite_violations(outcome.step.program, log, rules, machine)
    for skip in dict.fromkeys(log.skips):
        yield from skip_violations(skip, rules, machine)


def drivers_missing(logs, rules, machine):
    """Yields a line for each driver under which no suite of a run has run."""
    drivers = set().union(*(log.drivers for log in logs))
    for driver, command in rules.drivers:
        if drivers and driver not in drivers and machine.has(command):
            yield f"no suite ran under {driver}"


def suite_violations(program, log, rules, machine):
    """Compares the modules of a test program that have passed a test with those that ci/suites lists."""
    listed = set()
    for modules, command in rules.suites.get(program, []):
        listed.update(modules)
        for module in modules:
            if module not in log.parts and machine.has(command):
                yield f"no test of {module} has passed"
    for module in sorted(set(log.parts) - listed):
        yield f"{module} is not listed in ci/suites"


def skip_violations(skip, rules, machine):
    commands = [command for pattern, command in rules.skips if fnmatch.fnmatchcase(skip, pattern)]
    if not commands:
        yield f"skipped, which ci/suites does not permit: {skip}"
    elif all(machine.has(command) for command in commands):
        yield f"skipped, though this machine has what it takes ({commands[0]}): {skip}"


def failed_part(lines):
    """Returns what a log says last, of tests that have failed or of all, and before that where and why a test has panicked."""
    # What cargo prints for programs is not for people.
    lines = [line for line in lines if not line.startswith('{"reason":')]
    if "failures:" in lines:
        first = lines.index("failures:")
        end = next((i for i in range(first, len(lines)) if lines[i].startswith("test result:")), len(lines))
        lines = lines[first:end]
    earlier, last = lines[:-LINES_SHOWN], lines[-LINES_SHOWN:]
    named = [i for i, line in enumerate(earlier) if line.startswith("thread '") and " panicked at " in line]
    return [line for i in named for line in lines[i : i + LINES_OF_PANIC]] + last
