"""Counts test cases: count_tests.py LOG TESTLOGS STATUS.

LOG is what `bazel test` printed, TESTLOGS the folder of its test.xml files, STATUS its exit status. Prints what was
skipped and what failed, then "N passed, N failed, N skipped", and exits with 1 unless everything is well.
"""

import os
import re
import sys
import xml.etree.ElementTree

# A line of Bazel's summary: "//tests/common:hash_test    (cached) PASSED in 0.1s".
TARGET = re.compile(r"^(//[^\s:]*:\S+)\s+(?:\(cached\) )?"
                    r"(PASSED|FAILED TO BUILD|FAILED|TIMEOUT|FLAKY|NO STATUS|INCOMPLETE|REMOTE FAILURE|SKIPPED)\b")

# Characters that no XML file may hold.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def cases_of(path):
    """The (name, outcome, message) of each test case of a test.xml file."""
    cases = []
    with open(path, encoding="utf-8", errors="replace") as file:
        text = NOT_XML.sub("?", file.read())  # gtest copies what a test printed as it is.
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        name = "%s.%s" % (case.get("classname", ""), case.get("name", ""))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            cases.append((name, "failed", ""))
        elif skipped is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
            message = skipped.get("message", "") if skipped is not None else "disabled"
            cases.append((name, "skipped", message.strip().splitlines()[-1] if message.strip() else ""))
        else:
            cases.append((name, "passed", ""))
    return cases


def main():
    log, testlogs, status = sys.argv[1], sys.argv[2], int(sys.argv[3])
    targets = {}
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = TARGET.match(line)
            if match:
                targets[match.group(1)] = match.group(2)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    details = []
    for target, outcome in sorted(targets.items()):
        path = os.path.join(testlogs, target[2:].replace(":", "/"), "test.xml")
        cases = []
        if outcome in ("PASSED", "FAILED", "TIMEOUT", "FLAKY"):
            try:
                cases = cases_of(path)
            except (OSError, xml.etree.ElementTree.ParseError) as error:
                details.append("%s: no result file: %s" % (target, error))
        if outcome not in ("PASSED", "FLAKY") and not any(result == "failed" for _, result, _ in cases):
            cases.append((outcome.lower(), "failed", ""))
        for name, result, message in cases:
            counts[result] += 1
            if result != "passed":
                details.append("%s: %s %s%s" % (result, target, name, ": " + message if message else ""))
    if details:
        print("\n".join(details))
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts, flush=True)
    sys.exit(0 if status == 0 and counts["failed"] == 0 and counts["passed"] > 0 else 1)


main()
