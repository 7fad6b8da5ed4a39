"""run_unittest.py: the result file that Bazel keeps, and that tools/test counts cases by."""

import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

RUNNER = os.path.join("tools", "bazel", "run_unittest.py")

CASES = '''
import unittest

class Some(unittest.TestCase):
    def test_passes(self):
        with self.subTest("part"):
            self.assertTrue(True)

    def test_is_skipped(self):
        self.skipTest("there is no moon & no <sun>")

@unittest.skipIf(True, "not on this day")
class Whole(unittest.TestCase):
    def test_first(self):
        self.fail()

    def test_second(self):
        self.fail()

class Late(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("it could not begin")

    def test_it(self):
        self.fail()
'''

FAILING = '''
import unittest

class Wrong(unittest.TestCase):
    def test_fails(self):
        self.assertEqual(1, 2)

    def test_raises(self):
        raise ValueError("no such thing")

    def test_fails_in_a_part(self):
        for part in range(3):
            with self.subTest(part=part):
                self.assertNotEqual(part, 1)

    @unittest.expectedFailure
    def test_passes_by_mistake(self):
        pass
'''


class RunUnittest(unittest.TestCase):
    def run_cases(self, text):
        """(exit code, {case: (outcome, message)}) of a file of that text."""
        with tempfile.TemporaryDirectory() as folder:
            file, result = os.path.join(folder, "some_cases.py"), os.path.join(folder, "test.xml")
            with open(file, "w", encoding="utf-8") as out:
                out.write(text)
            ended = subprocess.run([sys.executable, "-W", "error", RUNNER, file], check=False, capture_output=True,
                                   env={**os.environ, "XML_OUTPUT_FILE": result})
            cases = {}
            for case in xml.etree.ElementTree.parse(result).iter("testcase"):
                outcomes = [(child.tag, child.get("message")) for child in case]
                cases[f"{case.get('classname')}.{case.get('name')}"] = outcomes[0] if outcomes else ("passed", None)
            return ended.returncode, cases

    def test_each_case_stands_there_with_its_outcome_and_why_it_was_skipped(self):
        code, cases = self.run_cases(CASES)
        self.assertEqual(code, 0)
        self.assertEqual(cases, {
            "some_cases.Some.test_passes": ("passed", None),
            "some_cases.Some.test_is_skipped": ("skipped", "there is no moon & no <sun>"),
            "some_cases.Whole.test_first": ("skipped", "not on this day"),
            "some_cases.Whole.test_second": ("skipped", "not on this day"),
            ".setUpClass (some_cases.Late)": ("skipped", "it could not begin"),
        })

    def test_failures_of_all_kinds_are_failures_and_the_exit_code_says_so(self):
        code, cases = self.run_cases(FAILING)
        self.assertEqual(code, 1)
        self.assertEqual({name: outcome for name, (outcome, _) in cases.items()},
                         {f"some_cases.Wrong.{name}": "failure" for name in
                          ("test_fails", "test_raises", "test_fails_in_a_part", "test_passes_by_mistake")})
        self.assertEqual(cases["some_cases.Wrong.test_raises"][1], "ValueError: no such thing")

    def test_a_file_without_cases_fails(self):
        self.assertEqual(self.run_cases("")[0], 1)


if __name__ == "__main__":
    unittest.main()
