#!/usr/bin/env python3
"""Rates of `psctl predict` and `psctl evaluate` beside the worker's own evaluation of the same samples, in turns.

    tools/bazel/bazel build //server:ps //worker //tools/psctl
    tools/bench/serving/predict_rate.py --train FILE --test FILE [--config FILE] [--set a.b=VALUE]… [--samples N] [--rounds N]

Trains a model on --train once and keeps it; the samples are those of --test, as often as it takes. The worker evaluates
them from memory: its rate is from the end of its training, of no steps, to its result. With the reading of the file
counted too, which predict does as it computes, it is the second one. Medians of the rounds, with their range.
"""

import argparse
import datetime
import os
import re
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+)Z .*?(data loaded .*|trainer: trained .*|evaluator: evaluated set=test .*)")


def repeated(path, samples, to):
    """Writes the lines of a file, over and over, until there are so many."""
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    with open(to, "w", encoding="utf-8") as out:
        written = 0
        while written < samples:
            part = lines[:samples - written]
            out.writelines(part)
            written += len(part)


def run(*command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit("%s ended with %d:\n%s" % (" ".join(command), ended.returncode, ended.stdout))
    return ended.stdout


def seconds_of(command):
    begin = time.perf_counter()
    run(*command)
    return time.perf_counter() - begin


def evaluation_seconds(log, samples):
    """(from memory, with reading) of a run without steps, by the times of the worker's log."""
    found = {}
    for when, text in LINE.findall(log):
        kind = "loaded" if text.startswith("data loaded") else "trained" if "trained" in text else "evaluated"
        found[kind] = (datetime.datetime.fromisoformat(when).timestamp(), text)
    if len(found) < 3 or "samples=%d " % samples not in found["evaluated"][1]:
        raise SystemExit("the worker's log does not say when it has evaluated %d samples:\n%s" % (samples, log))
    memory = found["evaluated"][0] - found["trained"][0]
    return memory, memory + float(re.search(r"seconds=([\d.]+)", found["loaded"][1]).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "bazel-bin"))
    parser.add_argument("--config", default=os.path.join(ROOT, "configs/criteo_deepfm.yaml"))
    parser.add_argument("--train", required=True, help="text without a header")
    parser.add_argument("--test", required=True, help="text without a header")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="overrides the configuration")
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    psctl = os.path.join(options.bin, "tools/psctl/psctl")
    rates = {"worker's evaluation, from memory": [], "worker's evaluation, with reading": [], "psctl predict": [],
             "psctl evaluate": []}
    with tempfile.TemporaryDirectory() as folder:
        model, data, out = (os.path.join(folder, name) for name in ("model.safetensors", "test.txt", "scores.csv"))
        repeated(options.test, options.samples, data)
        local = [psctl, "local", options.config]
        for each in ["cluster.servers=1", "cluster.workers=1", "data.train=" + options.train] + options.set:
            local += ["--set", each]
        run(*local, "--set", "data.test=" + options.test, "--model", model)
        for _ in range(options.rounds):
            log = run(*local, "--set", "data.test=" + data, "--set", "train.epochs=0", "--from", model, "--verbose")
            seconds = list(evaluation_seconds(log, options.samples))
            seconds.append(seconds_of([psctl, "predict", model, "--data", data, "--out", out]))
            seconds.append(seconds_of([psctl, "evaluate", model, "--data", data]))
            for rate, each in zip(rates.values(), seconds):
                rate.append(options.samples / each)
    worker = rates["worker's evaluation, from memory"]
    print("%-34s %12s   x the worker's from memory" % ("", "samples/s"))
    for name, rate in rates.items():
        ratios = [a / b for a, b in zip(rate, worker)]
        print("%-34s %12.0f   %.2f (%.2f-%.2f)" % (name, statistics.median(rate), statistics.median(ratios), min(ratios),
                                                 max(ratios)))


if __name__ == "__main__":
    main()
