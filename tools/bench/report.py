"""Rows of the benchmark: reading them, tables of them, and the comparison of two reports."""

import collections
import json
import math
import statistics

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
    ("added_us", "added us", LOWER, "median time of one operation less the limit's, run by run"),
    ("server_cpu_ratio", "x server", LOWER, "CPU time of the server / the limit's server's, run by run"),
    ("extra_mb", "extra MB", LOWER, "resident memory of the server at most, beyond that before the first run"),
    ("least_share", "least share", HIGHER, "operations of the client that had the fewest / their mean"),
    ("slowest_p99_us", "slowest p99", LOWER, "the greatest p99 us of any single client (runs of at least 100 by each)"),
    ("server_mb", "ps MB", LOWER, "resident memory of the server when the last run had ended"),
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
