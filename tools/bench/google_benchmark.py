"""Programs of Google Benchmark, and their results as rows."""

import collections
import json
import os
import subprocess
import sys
import tempfile

from report import Failure

GOOGLE_BENCHMARKS = {
    "optimizer": "elements per second of each optimizer on one core, beside plain loops",
    "index": "lookups of embedding rows on one core",
}


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
