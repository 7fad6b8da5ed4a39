#!/usr/bin/env python3
"""Runs the benchmark programs and reports what they measured: tables, comparison, cost model.

tools/bench/run builds the programs and calls this. `bench` writes one JSON object a line: first {"machine": {…}}, then a
row for each thing measured, {"bench", "name", "unit", "cpu_unit", "values": {METRIC: [one value a run, …]}}. The programs
of Google Benchmark (optimizer, index) are run from here, their repetitions as runs.
"""

import argparse
import json
import os
import subprocess
import sys

from cost_model import model_markdown
from google_benchmark import GOOGLE_BENCHMARKS, run_google_benchmark
from report import (COMPARE_RULE, METRICS, Failure, Report, add_line, compare, comparison_text, read_report, to_markdown,
                    to_table)

USAGE_EXIT = 2
# A script of its own, which is run where it is named: each takes minutes, and `python` NumPy and PyTorch.
SCRIPTS = {
    "python": "the Python client beside the C++ client, a caller in C, gloo and torch.distributed.rpc (--only cpp|torch)",
    "stragglers": "time to a fixed loss by train.consistency: workers alike, one slow, one killed now and then (--choices, --situations)",
}


def help_text():
    columns = "\n".join("  %-11s %-16s %s" % (title, key, meaning) for key, title, _, meaning in METRICS)
    programs = "\n".join("  %-11s %s" % item for item in GOOGLE_BENCHMARKS.items())
    return """
One core, by programs of Google Benchmark (names like the others):
%s

By a script, only where it is named, and alone:
%s

What is done with the rows:
  --json FILE        Writes them to this file, one JSON object a line; -: standard output
  --compare FILE     Compares with such a file, and fails if something is worse
  --markdown FILE    Measures nothing: prints such a file as Markdown tables
  --model FILE       Measures nothing: fits the cost model to such a file and prints it

What the columns mean (medians over the runs; rate and x limit with their range):
%s

How --compare judges:
%s

Examples:
  tools/bench/run                                       everything; half an hour on a quiet machine
  tools/bench/run --quick limit dense                   do the figures look right? (some seconds)
  tools/bench/run dense embedding --json before.json    then change something, and
  tools/bench/run dense embedding --compare before.json
  tools/bench/run dense --set cluster.shards=64 --set server.executors=1
  tools/bench/run step train --device cuda              steps on a device, beside PyTorch's there
  tools/bench/run python --only cpp                     the Python client beside the C++ client and one in C
  tools/bench/run stragglers --choices async,sync --situations slow --runs 3
  tools/bench/run --markdown before.json                the tables of README.md; --model: its cost model

Exit codes: 0 success, 1 a failure or a regression, 2 wrong command line.""" % (programs, "\n".join("  %-11s %s" % item for item in SCRIPTS.items()), columns, COMPARE_RULE)


def parse_arguments(argv):
    parser = argparse.ArgumentParser(prog="tools/bench/run", add_help=False, allow_abbrev=False)
    parser.add_argument("--program", required=True)  # bench, beside which the others lie.
    parser.add_argument("--json")
    parser.add_argument("--compare")
    parser.add_argument("--markdown")
    parser.add_argument("--model")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--window-ms", type=int)
    options, rest = parser.parse_known_args(argv)
    if options.quick:
        rest.append("--quick")
    for flag, value in (("--runs", options.runs), ("--window-ms", options.window_ms)):
        if value is not None:
            rest += [flag, str(value)]
    options.runs = options.runs or (3 if options.quick else 5)
    options.window_ms = options.window_ms or (60 if options.quick else 400)
    options.programs = os.path.dirname(os.path.dirname(os.path.dirname(options.program)))
    options.script = next((name for name in SCRIPTS if name in rest), None)
    named = [name for name in GOOGLE_BENCHMARKS if name in rest]
    rest = [argument for argument in rest if argument not in named]
    return options, named, rest


def program_named(options, name):
    folder = os.path.dirname(options.program)
    built = os.path.join(folder, "micro", name)
    return built if os.path.exists(built) else os.path.join(folder, name)


def command_of_python(options, rest):
    """That of python_client.py; `rest` has its flags."""
    parser = argparse.ArgumentParser(prog="tools/bench/run python", allow_abbrev=False)
    parser.add_argument("--only", choices=["cpp", "torch"])
    parser.add_argument("--python", default="/usr/bin/python3")
    of, _ = parser.parse_known_args([each for each in rest if each != "--quick"])
    command = [of.python, script("python_client.py"), "--programs", options.programs, "--runs", str(options.runs),
               "--window-ms", str(options.window_ms)]
    command += ["--only", of.only] if of.only else []
    return command + (["--exchanges", "1"] if options.quick else [])


def command_of_stragglers(options, rest):
    """That of stragglers.py; `rest` has its flags."""
    parser = argparse.ArgumentParser(prog="tools/bench/run stragglers", allow_abbrev=False)
    parser.add_argument("--python", default=sys.executable)
    for known in ("--root", "--runs", "--window-ms"):  # No flags of the script.
        parser.add_argument(known)
    of, flags = parser.parse_known_args([each for each in rest if each not in ("stragglers", "--quick")])
    command = [of.python, script("stragglers.py"), "--programs", options.programs, "--runs", str(options.runs)]
    return command + (["--loss", "0.5"] if options.quick else []) + flags


def script(name):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def lines_of_script(options, rest):
    """The rows' lines of the script that is named, as it prints them."""
    command = (command_of_python if options.script == "python" else command_of_stragglers)(options, rest)
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
            for text in script.stdout:
                yield json.loads(text)
    except (OSError, ValueError) as error:
        raise Failure("%s: %s" % (" ".join(command), error)) from error
    if script.returncode != 0:
        raise Failure("%s ended with exit code %d" % (" ".join(command), script.returncode))


class Sink:
    """Where lines go: into the report, into the file of --json, and, a suite at a time, as tables to standard output."""

    def __init__(self, path):
        self.report = Report()
        self.shown = 0
        self.file = None
        if path is not None:
            try:
                self.file = sys.stdout if path == "-" else open(path, "w", encoding="utf-8")  # pylint: disable=R1732
            except OSError as error:
                raise Failure("%s: cannot be written: %s" % (path, error.strerror)) from error

    def add(self, text, line):
        if self.file is not None:
            print(text, file=self.file, flush=True)
        known = len(self.report.rows)
        add_line(self.report, line)
        if len(self.report.rows) > known and self.report.rows[-1].bench != self.report.rows[self.shown].bench:
            self.show(known)

    def show(self, end):
        if self.file is not sys.stdout and end > self.shown:
            print(to_table(self.report.rows[self.shown:end]), flush=True)
        self.shown = end


def measure(options, named, rest):
    """Measures what is asked for. Returns the exit code."""
    before = read_report(options.compare) if options.compare else None  # First: a wrong path is known at once.
    sink = Sink(options.json)
    suites = asks_for_suites(options, rest)
    if options.script and (named or suites):
        print("bench: %s is measured alone" % options.script, file=sys.stderr)
        return USAGE_EXIT
    # Without a suite of its own to measure, `bench` only describes the machine.
    arguments = rest + ["--machine"] if named and not suites else rest
    if options.script:
        arguments = ["--machine"]
    with subprocess.Popen([options.program] + arguments, stdout=subprocess.PIPE, text=True) as program:
        for text in program.stdout:
            try:
                sink.add(text.rstrip("\n"), json.loads(text))
            except ValueError as error:
                raise Failure("%s printed what is no benchmark's row: %s" % (options.program, text.rstrip())) from error
    code = program.returncode if program.returncode >= 0 else 1
    if code == USAGE_EXIT:
        return code
    if options.script:
        try:
            for line in lines_of_script(options, rest):
                sink.add(json.dumps(line), line)
        except Failure as failure:
            print("bench: %s" % failure, file=sys.stderr)
            code = 1
    for bench in named or ([] if suites or options.script else GOOGLE_BENCHMARKS):
        try:
            for line in run_google_benchmark(bench, program_named(options, bench + "_benchmark"), options):
                sink.add(json.dumps(line), line)
        except Failure as failure:
            print("bench: %s" % failure, file=sys.stderr)
            code = 1
    sink.show(len(sink.report.rows))
    if before is None:
        return code
    report = sink.report
    if before.machine.get("runs") != report.machine.get("runs"):
        print("bench: %s was measured in runs of another number or length, whose ranges differ: %s, now %s" %
              (options.compare, before.machine.get("runs"), report.machine.get("runs")), file=sys.stderr)
    differences = compare(before, report)
    print(comparison_text(differences), end="", file=sys.stderr if options.json == "-" else sys.stdout)
    return 1 if any(difference.verdict == "worse" for difference in differences) else code


def asks_for_suites(options, rest):
    """Whether `rest` names suites of `bench`."""
    listed = subprocess.run([options.program, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return any(line.split()[0] in rest for line in listed.splitlines())


def main(argv):
    options, named, rest = parse_arguments(argv)
    try:
        if options.help:
            print(subprocess.run([options.program, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout +
                  help_text())
        elif options.list:
            subprocess.run([options.program, "--list"], check=True)
            for item in list(GOOGLE_BENCHMARKS.items()) + list(SCRIPTS.items()):
                print("%-12s %s" % item)
        elif options.markdown:
            print(to_markdown(read_report(options.markdown)), end="")
        elif options.model:
            print(model_markdown(read_report(options.model)), end="")
        else:
            return measure(options, named, rest)
    except Failure as failure:
        print("bench: %s" % failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
