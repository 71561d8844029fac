#!/usr/bin/env python3
"""Tests of ci/tally and ci/suites."""

import contextlib
import io
import re
import runpy
import tempfile
import types
import unittest
from pathlib import Path

tally = types.SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("tally"))))

LOG = """\
     Running unittests src/lib.rs (target/debug/deps/beanring-1)
running 3 tests
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s
     Running tests/crowd.rs (target/debug/deps/crowd-2)
tested: crowd under uring
tested: crowd under epoll
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1s
   Doc-tests beanring
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s
"""
SUITES = """\
# A comment.
suite tests src/lib.rs 3
suite tests tests/crowd.rs 2
suite tests doc-tests 0
driver uring 1 | true
"""


class Tally(unittest.TestCase):
    def check(self, log=LOG, suites=SUITES, skips="", checks=""):
        """Returns the exit code and the printed lines."""
        with tempfile.TemporaryDirectory() as directory:
            directory = Path(directory)
            (directory / "tests.log").write_text(log)
            (directory / "skips").write_text(skips)
            (directory / "checks").write_text(checks)
            (directory / "suites").write_text(suites)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = tally.main(str(directory), str(directory / "suites"))
            return code, said.getvalue().splitlines()

    def refused(self, why, **changes):
        code, said = self.check(**changes)
        self.assertEqual(code, 1, said)
        self.assertTrue(any(why in line for line in said), said)

    def test_what_is_expected(self):
        code, said = self.check()
        self.assertEqual((code, said[-1]), (0, "5 passed, 0 failed, 1 skipped"), said)

    def test_a_missing_suite(self):
        self.refused("tests/new.rs was not run", suites=SUITES + "suite tests tests/new.rs 1\n")
        code, _ = self.check(suites=SUITES + "suite tests tests/new.rs 1 | false\n")
        self.assertEqual(code, 0)

    def test_a_suite_that_nothing_expects(self):
        self.refused("tests/crowd.rs is not listed in ci/suites", suites=SUITES.replace("suite tests tests/crowd.rs 2\n", ""))

    def test_a_lower_count(self):
        self.refused("3 passed, 4 are expected", suites=SUITES.replace("lib.rs 3", "lib.rs 4"))

    def test_a_failure(self):
        self.refused("tests/crowd.rs: 1 failed", log=LOG.replace("ok. 2 passed; 0", "FAILED. 2 passed; 1"))

    def test_a_program_that_ended_without_a_word(self):
        self.refused("src/lib.rs: 1 failed", log=LOG.replace("ok. 3 passed", "cut"))

    def test_a_driver_that_was_not_tested(self):
        log = LOG.replace("tested: crowd under uring", "nothing")
        self.refused("uring: 0 suites ran under it, 1 are expected", log=log)
        code, _ = self.check(log=log, suites=SUITES.replace("| true", "| false"))
        self.assertEqual(code, 0)

    def test_a_skip(self):
        skipped = LOG + "skipped: churn under uring, because there is none\n"
        self.refused("not permitted: churn", log=skipped)
        self.refused("not permitted: jackd", skips="jackd, because it could not be downloaded\n")
        rule = "skip * under uring, because * | "
        self.refused("has what it takes (true): churn", log=skipped, suites=SUITES + rule + "true\n")
        code, said = self.check(log=skipped, suites=SUITES + rule + "false\n")
        self.assertEqual((code, said[-1]), (0, "5 passed, 0 failed, 2 skipped"), said)

    def test_checks_of_other_steps(self):
        rule = "suite deployment ci/deploy 10\n"
        code, _ = self.check(checks="deployment\tci/deploy\t10\t0\n", suites=SUITES + rule)
        self.assertEqual(code, 0)
        self.refused("9 passed, 10", checks="deployment\tci/deploy\t9\t0\n", suites=SUITES + rule)
        self.refused("1 failed", checks="deployment\tci/deploy\t10\t1\n", suites=SUITES + rule)

    def test_a_rule_that_is_none(self):
        for rule in ["suit a b 1", "suite a b", "suite a b x", "skip what"]:
            with self.assertRaises(SystemExit):
                self.check(suites=SUITES + rule + "\n")


class Suites(unittest.TestCase):
    def test_each_check_of_the_console_is_listed(self):
        root = Path(__file__).resolve().parent.parent
        lists = [
            re.search(r"^export const checks = \{(.*?)\}", file.read_text(), re.MULTILINE | re.DOTALL)
            for file in (root / "tests/console").glob("*.mjs")
        ]
        checks = {name for found in lists if found for name in re.findall(r"\w+", found.group(1))}
        listed = re.findall(r"^suite console (\w+) ", (root / "ci/suites").read_text(), re.MULTILINE)
        # ci/console has one of its own.
        self.assertEqual(checks, set(listed) - {"the_chart_library_is_that_of_npm"})


if __name__ == "__main__":
    unittest.main()
