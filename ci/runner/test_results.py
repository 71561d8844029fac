"""Tests of what a run makes of its logs, and of ci/suites."""

import tempfile
import unittest
from pathlib import Path

import plans
from results import Log, Machine, Rules, violations
from schedule import Outcome, Schedule, Step

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
        outcomes = {step.name: Outcome(step, state, why)}
        logs = {step.name: Log(step, log, state == "failed")} if state in ("passed", "failed") else {}
        return list(violations(logs, outcomes, rules(suites), Machine({"PATH": "/usr/bin:/bin"})))

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
        self.refused("1 tests are ignored", log=LOG.replace("0 ignored", "1 ignored"))

    def test_a_selection_of_nothing(self):
        step = Step("epoll-live", reads="tests", program="protocol", selected=("lives::",))
        nothing = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out; finished in 0s\n"
        self.refused("it has tested nothing", log=nothing, step=step)

    def test_a_driver_that_was_not_tested(self):
        log = LOG.replace("uring", "epoll")
        self.refused("no suite ran under uring", log=log)
        self.assertEqual(self.said(log=log, suites=SUITES.replace("| true", "| false")), [])

    def test_a_skip(self):
        skipped = LOG + "skipped: churn under uring, because there is none\n"
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


class Plans(unittest.TestCase):
    def test_every_step_needs_only_steps_of_its_plan(self):
        for plan in plans.PLANS.values():
            names = [step.name for step in plan.steps()]
            self.assertEqual(len(names), len(set(names)), plan.name)
            for step in plan.steps():
                self.assertLessEqual(set(step.needs), set(names), f"{plan.name}: {step.name}")

    def test_every_test_program_is_run(self):
        root = Path(__file__).resolve().parent.parent.parent
        programs = {path.parent.name for path in root.glob("tests/*/main.rs")} - {"cost"}
        run = {step.program for step in plans.run() if step.reads == "tests" and not step.selected}
        self.assertEqual(run - set(plans.UNITS), programs)

    def test_every_module_of_a_test_program_is_listed(self):
        root = Path(__file__).resolve().parent.parent.parent
        listed = Rules.read(root / "ci/suites").suites
        run = {step.program for step in plans.run() if step.reads == "tests" and not step.selected}
        self.assertEqual(set(listed), run - set(plans.UNITS))

    def test_every_file_is_in_the_index(self):
        ci = Path(__file__).resolve().parent.parent
        index = (ci / "README.md").read_text()
        for file in [*ci.iterdir(), *(ci / "lab").iterdir()]:
            if file.name not in ("README.md", "lab", "__pycache__"):
                self.assertIn(f"`{file.relative_to(ci)}`", index)


if __name__ == "__main__":
    unittest.main()
