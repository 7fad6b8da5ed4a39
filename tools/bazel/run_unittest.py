"""Runs the unittest cases of Python files: run_unittest.py FILE…

Where Bazel names a result file (XML_OUTPUT_FILE), each case stands in it with its outcome, as Google Test's do: without it Bazel
counts a file as one case that passed, also where all of its cases were skipped. count_tests.py reads it. The folder of each
FILE is one of those that modules are looked for in. Exits with 1 if a case failed, or if there is none.
"""

import importlib
import os
import sys
import time
import unittest
import xml.etree.ElementTree


class Result(unittest.TextTestResult):
    """Also keeps each case's (class, name, seconds, outcome, message); outcome is "passed", "skipped" or "failure"."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cases = []
        self.started = time.monotonic()

    def startTest(self, test):
        self.started = time.monotonic()
        super().startTest(test)

    def keep(self, test, outcome, message=""):
        # What stands for a class that could not begin ("setUpClass (module.Class)") is no case, and has but an id.
        kind, _, name = test.id().rpartition(".") if isinstance(test, unittest.TestCase) else ("", "", test.id())
        self.cases.append((kind, name, time.monotonic() - self.started, outcome, message))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.keep(test, "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.keep(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.keep(test, "failure", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.keep(test, "failure", "%s: %s" % (err[0].__name__, err[1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.keep(test, "failure", "%s: %s" % (subtest.id(), err[1]))

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.keep(test, "passed")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.keep(test, "failure", "passed, which was not expected")


def write_xml(path, cases):
    suite = xml.etree.ElementTree.Element("testsuite", name="unittest", tests=str(len(cases)),
                                          failures=str(sum(case[3] == "failure" for case in cases)))
    for kind, name, seconds, outcome, message in cases:
        case = xml.etree.ElementTree.SubElement(suite, "testcase", classname=kind, name=name, time="%.3f" % seconds)
        if outcome != "passed":
            xml.etree.ElementTree.SubElement(case, outcome, message=message)
    xml.etree.ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def main(files):
    suite = unittest.TestSuite()
    for file in files:
        folder, name = os.path.split(os.path.abspath(file))
        sys.path.insert(0, folder)
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name[:-len(".py")])))
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    if os.environ.get("XML_OUTPUT_FILE"):
        write_xml(os.environ["XML_OUTPUT_FILE"], result.cases)
    return 0 if result.wasSuccessful() and result.cases else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
