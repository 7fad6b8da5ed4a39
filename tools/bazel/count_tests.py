"""Counts test cases: count_tests.py LOG TESTLOGS STATUS [EXPECTED].

LOG is what `bazel test` printed, TESTLOGS the folder of its test.xml files, STATUS its exit status. Prints what was
skipped, by reason, what failed and how its log ends, then "N passed, N failed, N skipped", and exits with 1 unless everything is well.
EXPECTED is a file of regular expressions, one a line: a skipped test whose "TARGET CASE: REASON" none of them matches
counts as failed.
"""

import collections
import glob
import os
import re
import sys
import xml.etree.ElementTree

# A line of Bazel's summary: "//tests/common/base:base_test    (cached) PASSED in 0.1s".
TARGET = re.compile(r"^(//[^\s:]*:\S+)\s+(?:\(cached\) )?"
                    r"(PASSED|FAILED TO BUILD|FAILED|TIMEOUT|FLAKY|NO STATUS|INCOMPLETE|REMOTE FAILURE|SKIPPED)\b")

# How many lines of a failed test's log are shown at the end: what it was in the middle of when its time was up is among them.
LOG_LINES = 60

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


def result_files(testlogs, target):
    """The test.xml files of `target`: one, or one of each of its shards."""
    folder = os.path.join(testlogs, target[2:].replace(":", "/"))
    return sorted(glob.glob(os.path.join(folder, "shard_*_of_*", "test.xml"))) or [os.path.join(folder, "test.xml")]


def print_log_end(path):
    """Prints how the test.log beside the test.xml file `path` ends."""
    log = os.path.join(os.path.dirname(path), "test.log")
    try:
        with open(log, encoding="utf-8", errors="replace") as lines:
            end = collections.deque(lines, LOG_LINES)
    except OSError as error:
        end = ["no log: %s\n" % error]
    print("the end of %s:" % log)
    for line in end:
        print("    %s" % line.rstrip()[:400])


def read_expected(path):
    with open(path, encoding="utf-8") as lines:
        return [re.compile(line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def print_skipped(skipped, expected):
    """Prints the skipped cases by reason. Returns how many of them are not expected."""
    reasons = collections.defaultdict(list)
    for name, reason in skipped:
        reasons[reason].append(name)
    unexpected = 0
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        print("skipped %4d: %s" % (len(names), reason or "no reason is given"))
        for name in names:
            line = "%s: %s" % (name, reason)
            wrong = expected is not None and not any(each.search(line) for each in expected)
            unexpected += wrong
            print("    %s%s" % (name, "   NOT EXPECTED" if wrong else ""))
    return unexpected


def main():
    log, testlogs, status = sys.argv[1], sys.argv[2], int(sys.argv[3])
    expected = read_expected(sys.argv[4]) if len(sys.argv) > 4 else None
    targets = {}
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = TARGET.match(line)
            if match:
                targets[match.group(1)] = match.group(2)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failed = []
    failed_files = []
    skipped = []
    for target, outcome in sorted(targets.items()):
        cases = []
        if outcome in ("PASSED", "FAILED", "TIMEOUT", "FLAKY"):
            for path in result_files(testlogs, target):
                try:
                    found = cases_of(path)
                    cases += found
                    if any(result == "failed" for _, result, _ in found):
                        failed_files.append(path)
                except (OSError, xml.etree.ElementTree.ParseError) as error:
                    failed.append("%s: no result file: %s" % (target, error))
        if outcome not in ("PASSED", "FLAKY") and not any(result == "failed" for _, result, _ in cases):
            cases.append((outcome.lower(), "failed", ""))
        for name, result, message in cases:
            counts[result] += 1
            if result == "failed":
                failed.append("failed: %s %s" % (target, name))
            elif result == "skipped":
                skipped.append(("%s %s" % (target, name), message))
    unexpected = print_skipped(skipped, expected)
    counts["failed"] += unexpected
    counts["skipped"] -= unexpected
    if unexpected:
        failed.append("%d skipped that are not on the list of expected ones: %s" % (unexpected, sys.argv[4]))
    for path in failed_files:
        print_log_end(path)
    if failed:
        print("\n".join(failed))
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts, flush=True)
    sys.exit(0 if status == 0 and counts["failed"] == 0 and counts["passed"] > 0 else 1)


main()
