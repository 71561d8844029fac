"""Tests of what a run makes of its logs, and of ci/suites."""

import re
import tempfile
import unittest
from functools import cache
from pathlib import Path

import plans
from results import Log, Machine, Rules, drivers_missing, failed_part, violations
from schedule import Outcome, Schedule, Step

ROOT = Path(__file__).resolve().parent.parent.parent

LOG = """\
running 3 tests
test live::puts ... ok
test live::is_refused - should panic ... ok
tested: live under uring
test core::deletes ... ok
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s
"""
SUITES = """\
# A comment.
suite protocol core live
driver uring | true
"""
PROTOCOL = Step("protocol", reads="tests", program="protocol")


def rules(text):
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "suites"
        file.write_text(text)
        return Rules.read(file)


class Violations(unittest.TestCase):
    def said(self, log=LOG, suites=SUITES, step=PROTOCOL, state="passed", why=""):
        machine = Machine({"PATH": "/usr/bin:/bin"})
        read = Log(step, log, False)
        found = list(violations(Outcome(step, state, why), read, rules(suites), machine))
        return found + list(drivers_missing([read], rules(suites), machine))

    def refused(self, expected, **changes):
        said = self.said(**changes)
        self.assertTrue(any(expected in line for line in said), said)

    def test_what_is_expected(self):
        self.assertEqual(self.said(), [])

    def test_a_missing_module(self):
        self.refused("no test of fuzz has passed", suites=SUITES + "suite protocol fuzz\n")
        self.assertEqual(self.said(suites=SUITES + "suite protocol fuzz | false\n"), [])

    def test_a_module_that_nothing_expects(self):
        self.refused("live is not listed", suites="suite protocol core\ndriver uring | true\n")

    def test_an_ignored_test(self):
        ignored = LOG.replace("test core::deletes ... ok", "test core::deletes ... ignored, it is slow\ntest core::puts ... ok")
        self.refused("does not permit: the test core::deletes, because it is slow", log=ignored)

    def test_a_selection_of_nothing(self):
        step = Step("epoll-live", reads="tests", program="protocol", selected=("lives::",))
        nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0s\n"
        self.refused("it has tested nothing", log=nothing, step=step)

    def test_a_program_that_ends_before_its_result(self):
        inner = LOG + "test live::releases ...\n"
        self.refused("ends before the result", log=inner)

    def test_a_failure_that_the_exit_code_hides(self):
        self.refused("has a failure", log=LOG.replace("3 passed; 0 failed", "2 passed; 1 failed"))

    def test_a_driver_that_was_not_tested(self):
        log = LOG.replace("uring", "epoll")
        self.refused("no suite ran under uring", log=log)
        self.assertEqual(self.said(log=log, suites=SUITES.replace("| true", "| false")), [])

    def test_a_skip(self):
        skipped = "skipped: churn under uring, because there is none\n" + LOG
        self.refused("does not permit: churn", log=skipped)
        rule = "skip * under uring, because * | "
        self.refused("has what it takes (true): churn", log=skipped, suites=SUITES + rule + "true\n")
        self.assertEqual(self.said(log=skipped, suites=SUITES + rule + "false\n"), [])

    def test_a_step_that_is_skipped(self):
        self.refused("does not permit: protocol, because of the kernel", state="skipped", why="of the kernel")

    def test_a_rule_that_is_none(self):
        for rule in ["suit a b", "suite a", "skip what", "driver a b"]:
            with self.assertRaises(SystemExit):
                rules(rule + "\n")


class Logs(unittest.TestCase):
    def test_the_last_result_counts(self):
        inner = "test result: FAILED. 0 passed; 9 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n"
        log = Log(PROTOCOL, inner + LOG, False)
        self.assertEqual((log.passed, log.failed), (3, 0))

    def test_a_program_that_ended_without_a_word(self):
        self.assertEqual(Log(PROTOCOL, "running 3 tests\n", True).failed, 1)

    def test_the_checks_of_a_script(self):
        text = "- of one (1.2)\n- of another\nskipped: another, because of that\n- the last\n"
        log = Log(Step("x", reads="checks"), text, True)
        self.assertEqual((log.passed, log.failed, log.skips), (1, 1, ["another, because of that"]))
        self.assertIn("of one", log.parts)


    def test_the_results_of_several_programs(self):
        text = "test result: ok. 2 passed; 0 failed;\n\nrunning 0 tests\ntest result: ok. 0 passed; 0 failed;\n"
        log = Log(Step("x", reads="results"), text, False)
        self.assertEqual((log.passed, log.failed), (2, 0))

    def test_a_panic_is_shown_before_what_follows_it(self):
        panic = ["thread 'a' (1) panicked at a.rs:1:1:", "it is 2", "  left: 2", " right: 1"]
        log = ["test a ... FAILED", "failures:", "---- a stdout ----", *panic, *["more"] * 80, "test result: FAILED."]
        self.assertEqual(failed_part(log), [*panic, *["more"] * 60])


class Schedules(unittest.TestCase):
    def run_steps(self, *steps):
        with tempfile.TemporaryDirectory() as directory:
            schedule = Schedule(steps, Path(directory), {"PATH": "/usr/bin:/bin"}, lambda step: step.command, lambda outcome: outcome)
            return {name: outcome.state for name, outcome in schedule.run().items()}

    def test_what_needs_a_failed_step_is_not_run(self):
        states = self.run_steps(Step("a", ("false",)), Step("b", ("true",), needs=("a",)), Step("c", ("true",), alone=True))
        self.assertEqual(states, {"a": "failed", "b": "not run", "c": "passed"})

    def test_what_needs_a_skipped_step_is_skipped(self):
        states = self.run_steps(Step("a", ("true",), condition="false", why_not="why"), Step("b", ("true",), needs=("a",)))
        self.assertEqual(states, {"a": "skipped", "b": "skipped"})

    def test_a_step_that_takes_too_long_fails(self):
        self.assertEqual(self.run_steps(Step("a", ("sleep", "60"), seconds_max=1)), {"a": "failed"})


@cache
def meet(one, other):
    """Whether a text fits both patterns, in which * stands for any text."""
    if not one or not other:
        return not (one + other).strip("*")
    if "*" in (one[0], other[0]):
        return meet(one[one[0] == "*" :], other[one[0] != "*" :]) or meet(one[one[0] != "*" :], other[one[0] == "*" :])
    return one[0] == other[0] and meet(one[1:], other[1:])


class Plans(unittest.TestCase):
    def test_every_step_needs_only_steps_of_its_plan(self):
        for plan in plans.PLANS.values():
            names = [step.name for step in plan.steps()]
            self.assertEqual(len(names), len(set(names)), plan.name)
            for step in plan.steps():
                self.assertLessEqual(set(step.needs), set(names), f"{plan.name}: {step.name}")

    def test_every_test_program_is_run(self):
        programs = {path.parent.name for path in ROOT.glob("tests/*/main.rs")} | {path.stem for path in ROOT.glob("tests/*.rs")}
        programs -= {"cost"}
        run = {step.program for step in plans.run() if step.reads == "tests" and not step.selected}
        self.assertEqual(run - set(plans.UNITS), programs)

    def test_every_module_of_a_test_program_is_listed(self):
        listed = Rules.read(ROOT / "ci/suites").suites
        run = {step.program for step in plans.run() if step.reads == "tests" and not step.selected}
        self.assertEqual(set(listed), run - set(plans.UNITS))

    def test_every_skip_has_a_rule(self):
        # Every kernel has epoll.
        said = {f"{step.name}, because {step.why_not}" for plan in plans.PLANS.values() for step in plan.steps() if step.condition and "epoll" not in step.name}
        for path in [*ROOT.glob("tests/**/*.rs"), *ROOT.glob("src/**/*.rs")]:
            for text in re.findall(r'println!\(\s*"skipped: (.*?)"', path.read_text()):
                said.add(re.sub(r"\{.*?\}", "*", text))
        patterns = [pattern for pattern, _ in Rules.read(ROOT / "ci/suites").skips]
        lacking = [text for text in sorted(said) if not any(meet(text, pattern) for pattern in patterns)]
        self.assertEqual(lacking, [])

    def test_every_file_is_in_the_index(self):
        ci = ROOT / "ci"
        index = (ci / "README.md").read_text()
        for file in [*ci.iterdir(), *(ci / "lab").iterdir()]:
            if file.name not in ("README.md", "lab", "__pycache__"):
                self.assertIn(f"`{file.relative_to(ci)}`", index)


if __name__ == "__main__":
    unittest.main()
