#!/usr/bin/env python3
"""Runs the benchmark programs and reports what they measured: tables, comparison, cost model.

tools/bench/run builds the programs and calls this. `bench` writes one JSON object a line: first {"machine": {…}}, then a
row for each thing measured, {"bench", "name", "unit", "cpu_unit", "values": {METRIC: [one value a run, …]}}. The programs
of Google Benchmark (optimizer, index) are run from here, their repetitions as runs.
"""

import argparse
import collections
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

HIGHER, LOWER, NEITHER = 1, -1, 0

# key, title in tables, which way is better, meaning; in the order of the columns.
METRICS = [
    ("rate", "rate", HIGHER, "work done per second, in the row's unit"),
    ("kmsg_per_s", "k msg/s", HIGHER, "thousands of operations per second"),
    ("p50_us", "p50 us", LOWER, "median time of one operation"),
    ("p99_us", "p99 us", LOWER, "99 % of operations took no longer (runs of at least 100)"),
    ("p999_us", "p99.9 us", LOWER, "99.9 % of operations took no longer (runs of at least 1000)"),
    ("client_cpu", "client", LOWER, "CPU seconds of all client processes per GB, million keys or so"),
    ("server_cpu", "server", LOWER, "the same of the server process"),
    ("client_copies", "copies", LOWER, "bytes that the client copied per byte of payload moved"),
    ("server_copies", "ps copies", LOWER, "the same of the server"),
    ("limit_rate", "limit", NEITHER, "rate of the limit: the same bytes over raw sockets, in the same run"),
    ("limit_p50_us", "limit p50", NEITHER, "the limit's median time of one operation"),
    ("limit_p99_us", "limit p99", NEITHER, "99 % of the limit's operations took no longer"),
    ("limit_cpu", "limit CPU", NEITHER, "the limit's CPU time, client and server together"),
    ("ratio", "x limit", HIGHER, "rate / limit, run by run"),
    ("cpu_ratio", "x CPU", LOWER, "CPU time of client and server / the limit's, run by run"),
    ("p50_ratio", "x p50", LOWER, "median time of one operation / the limit's, run by run"),
    ("p99_ratio", "x p99", LOWER, "what 99 % of operations did not exceed / the limit's, run by run"),
    ("server_cpu_ratio", "x server", LOWER, "CPU time of the server / the limit's server's, run by run"),
    ("extra_mb", "extra MB", LOWER, "resident memory of the server at most, beyond that before the first run"),
    ("memory_ratio", "x memory", LOWER, "that / the size of the blocks that were updated meanwhile"),
]
BETTER = {key: better for key, _, better, _ in METRICS}
WITH_RANGE = ("rate", "ratio")

NOISE_SHARE = 0.05
COMPARE_RULE = """\
For every row of both runs the rate, the CPU time and the median latency are compared: as ratios to the limit that was
measured beside them where both runs have one (so that a slower machine or a busy neighbour cancels out), plainly
otherwise. A metric is worse or better if its medians differ by 5 % or more and the ranges (least to largest of all
runs) do not overlap; if the medians differ but the ranges overlap, that is noise. Rows that only one run has are named
and count as neither."""
# What is compared: the first of each that both rows have.
ASPECTS = (("ratio", "rate"), ("cpu_ratio", "client_cpu"), ("server_cpu_ratio", "server_cpu"), ("p50_ratio", "p50_us"),
           ("client_copies",))

GOOGLE_BENCHMARKS = {
    "optimizer": "elements per second of each optimizer on one core, beside plain loops",
    "index": "lookups of embedding rows on one core",
}


class Failure(Exception):
    """What went wrong, for the user."""


Spread = collections.namedtuple("Spread", "median min max")


class Row:
    """One line of the result. `values` has a Spread for each metric that the row has."""

    def __init__(self, bench, name, unit, cpu_unit, values):
        self.bench, self.name, self.unit, self.cpu_unit = bench, name, unit, cpu_unit
        self.values = {metric: spread_of(value) for metric, value in values.items()}


class Report:
    def __init__(self):
        self.machine = {}
        self.rows = []


def spread_of(values):
    """Of the values of the runs, or of a median with its range, as files before 2026-11-22 have it."""
    if isinstance(values, dict):
        return Spread(values["median"], values["min"], values["max"])
    return Spread(statistics.median(values), min(values), max(values))


def parse_report(lines, name):
    report = Report()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            add_line(report, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, statistics.StatisticsError) as error:
            raise Failure("%s:%d: not a benchmark's row: %s" % (name, number, error)) from error
    if not report.rows:
        raise Failure("%s: holds no rows" % name)
    return report


def add_line(report, line):
    if "machine" in line:
        report.machine = line["machine"]
        return
    report.rows.append(Row(line["bench"], line["name"], line["unit"], line.get("cpu_unit", ""), line["values"]))


def read_report(path):
    try:
        with open(path, encoding="utf-8") as lines:
            return parse_report(lines, path)
    except OSError as error:
        raise Failure("%s: cannot be read: %s" % (path, error.strerror)) from error


# Tables.


def number_text(value):
    """Three significant digits, without exponent: "0.046", "4.05", "16.4", "135", "2870"."""
    if value == 0 or not math.isfinite(value):
        return "%g" % value
    return "%.*f" % (min(max(3 - math.floor(math.log10(abs(value))) - 1, 0), 9), value)


def spread_text(spread):
    return "%s (%s-%s)" % (number_text(spread.median), number_text(spread.min), number_text(spread.max))


def cells_of(rows, title=""):
    """The head, then a line for each row: name, unit, the metrics that any row has, the CPU's unit."""
    cells = [[title, "unit"]] + [[row.name, row.unit] for row in rows]
    for key, head, _, _ in METRICS:
        if any(key in row.values for row in rows):
            cells[0].append(head)
            for line, row in zip(cells[1:], rows):
                spread = row.values.get(key)
                line.append("" if spread is None else
                            spread_text(spread) if key in WITH_RANGE else number_text(spread.median))
    if any(row.cpu_unit for row in rows):
        cells[0].append("CPU unit")
        for line, row in zip(cells[1:], rows):
            line.append(row.cpu_unit)
    return cells


def to_table(rows):
    """An aligned table: the first column left, the others right."""
    if not rows:
        return ""
    cells = cells_of(rows)
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "".join("  ".join([line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in
                                                           zip(line[1:], widths[1:])]) + "\n" for line in cells)


def markdown_table(cells):
    lines = ["| " + " | ".join(line) + " |\n" for line in cells]
    return lines[0] + "|---" + "|---:" * (len(cells[0]) - 1) + "|\n" + "".join(lines[1:])


def to_markdown(report):
    text = "Measured on: %s.\n" % "; ".join("%s %s" % item for item in sorted(report.machine.items()))
    for bench in dict.fromkeys(row.bench for row in report.rows):
        text += "\n" + markdown_table(cells_of([row for row in report.rows if row.bench == bench], bench))
    return text


# Comparison.

Difference = collections.namedtuple("Difference", "name metric verdict before after")


def judge(metric, before, after):
    ratio = after.median / before.median if before.median else math.nan
    if not abs(ratio - 1) >= NOISE_SHARE:
        return "same"
    if after.min <= before.max and before.min <= after.max:
        return "noise"
    return "better" if (ratio > 1) == (BETTER[metric] == HIGHER) else "worse"


def compare(before, after):
    """The Differences of two reports. Rows of `before` whose bench `after` has not run are left out."""
    new_rows = {row.name: row for row in after.rows}
    benches = {row.bench for row in after.rows}
    differences = []
    for row in before.rows:
        new = new_rows.pop(row.name, None)
        if new is None:
            if row.bench in benches:
                differences.append(Difference(row.name, "", "missing", None, None))
            continue
        for aspect in ASPECTS:
            metric = next((key for key in aspect if key in row.values and key in new.values), None)
            if metric is not None:
                old_value, new_value = row.values[metric], new.values[metric]
                differences.append(
                    Difference(row.name, metric, judge(metric, old_value, new_value), old_value, new_value))
    return differences + [Difference(name, "", "new", None, None) for name in new_rows]


def comparison_text(differences):
    counts = collections.Counter(difference.verdict for difference in differences)
    text = ""
    for name, metric, verdict, before, after in differences:
        if verdict in ("same", "noise"):
            continue
        text += "%-8s %s" % ("WORSE" if verdict == "worse" else verdict, name)
        if metric:
            text += ": %s %s -> %s, x %s" % (metric, spread_text(before), spread_text(after),
                                             number_text(after.median / before.median))
        text += "\n"
    return text + "%d worse, %d better, %d the same, %d within noise, %d missing, %d new\n" % tuple(
        counts[verdict] for verdict in ("worse", "better", "same", "noise", "missing", "new"))


# The cost model: CPU time of either side as a function of messages, bytes and keys (README.md).

MESSAGE_BYTES = 2 << 20  # worker/client/request_router.h: MessageLimits::bytes_target.
PUSHES_IN_FLIGHT = 4  # worker.pushes_in_flight_max's default.
KEY_BYTES = 8
FLOAT_BYTES = 4
BATCH_KEYS = 4096  # Of the embedding rows.
FITTED_SIZES = (("4KiB", 4096), ("64KiB", 65536), ("1MiB", 1 << 20), ("4MiB", 4 << 20))


class Cost(collections.namedtuple("Cost", "per_message per_byte per_key")):
    """CPU seconds of one side for an operation: per message, per payload byte, per embedding key."""

    def of(self, messages, size, keys=0):
        return self.per_message * messages + self.per_byte * size + self.per_key * keys


def messages_of(size):
    """Messages that a transfer of `size` bytes to one server is cut into."""
    return max(1, math.ceil(size / MESSAGE_BYTES))


def fit_cost(points):
    """The Cost of (messages, bytes, seconds) points, none below 0, whose squared relative errors are least."""
    mm = mb = bb = m = b = 0.0
    for messages, size, seconds in points:
        x, y = messages / seconds, size / seconds
        mm, mb, bb, m, b = mm + x * x, mb + x * y, bb + y * y, m + x, b + y
    determinant = mm * bb - mb * mb
    per_message, per_byte = (m * bb - b * mb) / determinant, (b * mm - m * mb) / determinant
    if per_message < 0:
        per_message, per_byte = 0.0, b / bb
    if per_byte < 0:
        per_message, per_byte = m / mm, 0.0
    return Cost(per_message, per_byte, 0.0)


def seconds_of(rows, name, side, amount):
    """CPU seconds of one operation on one side; None if there is no such row or it has none."""
    spread = rows[name].values.get(side) if name in rows else None
    return spread.median * amount if spread is not None and spread.median > 0 else None


def fit_side(rows, operation, side):
    points = []
    for text, size in FITTED_SIZES:
        seconds = seconds_of(rows, "dense/%s/%s/depth8/clients1" % (operation, text), side, 1e-9 * size)
        if seconds is not None:
            points.append((messages_of(size), size, seconds))
    if len(points) < 2:
        raise Failure("the cost model needs at least two of the rows dense/%s/{%s}/depth8/clients1" %
                      (operation, ",".join(text for text, _ in FITTED_SIZES)))
    cost = fit_cost(points)
    # What a batch of rows costs beyond its messages and bytes, by key.
    seconds = seconds_of(rows, "embedding/%s/1000Krows/dim16/depth4" % operation, side, 1e-6 * BATCH_KEYS)
    if seconds is None:
        return cost
    size = BATCH_KEYS * (KEY_BYTES + 16 * FLOAT_BYTES)
    return cost._replace(per_key=max(0.0, (seconds - cost.of(messages_of(size), size)) / BATCH_KEYS))


def fit_model(report):
    """The Costs by (operation, side)."""
    rows = {row.name: row for row in report.rows}
    return {(operation, side): fit_side(rows, operation, side + "_cpu")
            for operation in ("push", "pull") for side in ("client", "server")}


def both(model, operation, size, keys=0):
    return sum(model[operation, side].of(messages_of(size), size, keys) for side in ("client", "server"))


def check_table(report, model):
    small, large, row_bytes = 64 << 10, 1 << 20, BATCH_KEYS * (KEY_BYTES + 64 * FLOAT_BYTES)
    rows = {row.name: row for row in report.rows}
    cells = [["measured, not fitted", "CPU us per operation, measured", "predicted", "error"]]
    for name, amount, predicted in (
        ("dense/push-pull/64KiB/depth8/clients1", 2e-9 * small, both(model, "push", small) + both(model, "pull", small)),
        ("dense/push/1MiB/depth8/clients4", 1e-9 * large, both(model, "push", large)),
        ("dense/pull/64KiB/depth8/clients2", 1e-9 * small, both(model, "pull", small)),
        ("embedding/pull-then-push/1000Krows/dim64/depth4", 1e-6 * BATCH_KEYS,
         both(model, "push", row_bytes, BATCH_KEYS) + both(model, "pull", row_bytes, BATCH_KEYS)),
    ):
        sides = [seconds_of(rows, name, side, amount) for side in ("client_cpu", "server_cpu")]
        if None in sides:
            cells.append([name, "not measured", number_text(1e6 * predicted), ""])
        else:
            cells.append([name, number_text(1e6 * sum(sides)), number_text(1e6 * predicted),
                          "%+.0f %%" % (100 * (predicted / sum(sides) - 1))])
    return markdown_table(cells)


def predict(model, dense_bytes=0.0, keys=0.0, dim=16, workers=100, servers=20, link=12.5e9, cores=32):
    """Steps per second that each worker makes at most by each limit alone, and bytes of messages in a server's memory.

    dense_bytes and keys are what a worker's step pushes and pulls; link is bytes per second in each direction, cores
    those of each machine that Lodestone may use.
    """
    dense, keys = dense_bytes / servers, keys / servers  # What one worker's step exchanges with one server.
    values = keys * dim * FLOAT_BYTES
    most = max(dense + values + 2 * keys * KEY_BYTES, dense + values)  # Keys go with the pull's request and the push.
    messages = (messages_of(dense) if dense else 0) + (messages_of(values) if keys else 0)
    size = dense + values + keys * KEY_BYTES
    server = sum(model[operation, "server"].of(messages, size, keys) for operation in ("push", "pull"))
    client = sum(model[operation, "client"].of(messages, size, keys) for operation in ("push", "pull"))
    limits = {
        "a server's link": link / (workers * most),
        "a server's cores": cores / (workers * server),
        "a worker's link": link / (servers * most),
        "a worker's cores": cores / (servers * client),
    }
    return limits, workers * PUSHES_IN_FLIGHT * size


def prediction_table(model):
    cells = []
    for name, scenario in (("dense, 100 MB", {"dense_bytes": 100e6}), ("dense, 1 GB", {"dense_bytes": 1e9}),
                           ("clicks: 1 MB dense, 26 Ki keys of 16", {"dense_bytes": 1e6, "keys": 26 * 1024})):
        limits, memory = predict(model, **scenario)
        least = min(limits, key=limits.get)
        cells = cells or [["each worker's step", "steps/s at most"] + ["by " + limit for limit in limits] +
                          ["messages in a server's memory"]]
        cells.append([name, "**%s**, %s" % (number_text(limits[least]), least)] +
                     [number_text(value) for value in limits.values()] + [number_text(1e-6 * memory) + " MB"])
    return markdown_table(cells)


def model_markdown(report):
    model = fit_model(report)
    cells = [["operation, side", "us per message", "CPU s per GB", "ns per key"]]
    for (operation, side), cost in model.items():
        cells.append(["%s, %s" % (operation, side), number_text(1e6 * cost.per_message),
                      number_text(1e9 * cost.per_byte), number_text(1e9 * cost.per_key)])
    return markdown_table(cells) + "\n" + check_table(report, model) + "\n" + prediction_table(model)


# Programs of Google Benchmark.


def lines_of_google_benchmark(bench, result):
    """A row's line for each benchmark of `result` (--benchmark_out_format=json), its repetitions as runs, in million
    items per second (million iterations where it counts no items). The limit of "X/adam/ARGS" is "PlainAdam/ARGS", or
    what the plain loop did that took turns with it (the counter plain_per_second)."""
    runs = [run for run in result["benchmarks"] if run.get("run_type", "iteration") == "iteration"]
    rates, in_turns = collections.defaultdict(list), collections.defaultdict(list)
    for run in runs:
        if run.get("error_occurred"):
            raise Failure("%s: %s" % (run["name"], run.get("error_message", "failed")))
        seconds = {"s": 1, "ms": 1e-3, "us": 1e-6}.get(run.get("time_unit"), 1e-9)
        items = run["items_per_second"] if "items_per_second" in run else 1 / (run["real_time"] * seconds)
        rates[run["run_name"]].append(1e-6 * items)
        if "plain_per_second" in run:
            in_turns[run["run_name"]].append(1e-6 * run["plain_per_second"])
    # In the program's order, though repetitions were shuffled.
    names = sorted({(run.get("family_index", 0), run.get("per_family_instance_index", 0), run["run_name"])
                    for run in runs})
    lines = []
    for _, _, name in names:
        ours = rates[name]
        values = {"rate": ours}
        rest = name.partition("/")[2]
        limit = in_turns.get(name) or rates.get("Plain" + rest[:1].upper() + rest[1:], []) if rest else []
        if len(limit) == len(ours):
            values["limit_rate"] = limit
            values["ratio"] = [our / its for our, its in zip(ours, limit)]
        lines.append({"bench": bench, "name": "%s/%s" % (bench, name), "unit": "M/s", "values": values})
    return lines


def run_google_benchmark(bench, program, options):
    if not os.access(program, os.X_OK):
        raise Failure("%s: no such program; tools/bench/run builds it" % program)
    print("bench: %s: all of %s" % (bench, os.path.basename(program)), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        seconds = 0.005 if options.quick else 1e-3 * options.window_ms / 4
        ended = subprocess.run(
            [program, "--benchmark_out=" + result, "--benchmark_out_format=json",
             "--benchmark_repetitions=%d" % options.runs, "--benchmark_enable_random_interleaving=true",
             "--benchmark_min_time=%g" % seconds], stdout=subprocess.DEVNULL, check=False)
        if ended.returncode != 0:
            raise Failure("%s ended with exit code %d" % (program, ended.returncode))
        try:
            with open(result, encoding="utf-8") as file:
                return lines_of_google_benchmark(bench, json.load(file))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failure("the result of %s_benchmark: %s" % (bench, error)) from error


# The command line.

USAGE_EXIT = 2


def help_text():
    columns = "\n".join("  %-11s %-16s %s" % (title, key, meaning) for key, title, _, meaning in METRICS)
    programs = "\n".join("  %-11s %s" % item for item in GOOGLE_BENCHMARKS.items())
    return """
One core, by programs of Google Benchmark (names like the others):
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
  tools/bench/run --markdown before.json                the tables of README.md; --model: its cost model

Exit codes: 0 success, 1 a failure or a regression, 2 wrong command line.""" % (programs, columns, COMPARE_RULE)


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
    named = [name for name in GOOGLE_BENCHMARKS if name in rest]
    rest = [argument for argument in rest if argument not in named]
    return options, named, rest


def program_named(options, name):
    folder = os.path.dirname(options.program)
    built = os.path.join(folder, "micro", name)
    return built if os.path.exists(built) else os.path.join(folder, name)


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
    # Without a suite of its own to measure, `bench` only describes the machine.
    arguments = rest + ["--machine"] if named and not suites else rest
    with subprocess.Popen([options.program] + arguments, stdout=subprocess.PIPE, text=True) as program:
        for text in program.stdout:
            try:
                sink.add(text.rstrip("\n"), json.loads(text))
            except ValueError as error:
                raise Failure("%s printed what is no benchmark's row: %s" % (options.program, text.rstrip())) from error
    code = program.returncode if program.returncode >= 0 else 1
    if code == USAGE_EXIT:
        return code
    for bench in named or ([] if suites else GOOGLE_BENCHMARKS):
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
            for item in GOOGLE_BENCHMARKS.items():
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
