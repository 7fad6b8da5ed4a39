#!/usr/bin/env python3
"""What asynchrony costs in quality: the test metric of a cluster beside that of one PyTorch process.

    quality.py --data FOLDER [--sets optdigits,ratings] [--workers 1,2,4] [--seeds 3] [--set a.b=VALUE]...

For each data set and seed, one PyTorch process (torch_model.py) and clusters of this machine with so many workers, at the
configuration's settings, train the same model from the same initial values on the same samples with the same optimizer,
batch size and epochs. Prints a line for each: the metric's mean and range over the seeds, whether its mean is no
worse than the worst of PyTorch's seeds, samples/s, and the delay.

FOLDER is laid out as LODESTONE_DATA (tests/README.md); the sets "ratings", "clicks" and "clicks_fm" are made up and need
none. Build first: bazel build //tools/bench/quality //tools/psctl //server:ps //worker. PyTorch is Debian's python3-torch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
HERE = os.path.dirname(os.path.abspath(__file__))

# Name: configuration, training and test file below the data folder, further settings, and what it is judged by.
SETS = {
    "optdigits": ("optdigits", "optdigits/optdigits.tra", "optdigits/optdigits.tes", [], "accuracy"),
    "mnist": ("mnist", "mnist/train-images-idx3-ubyte.gz", "mnist/t10k-images-idx3-ubyte.gz", [], "accuracy"),
    "a9a": ("a9a", "a9a/a9a", "a9a/a9a.t", [], "loss"),
    "criteo": ("criteo_deepfm", "criteo/criteo_first8k_train.tsv", "criteo/criteo_first8k_test.tsv", [], "loss"),
    "ratings": ("ratings", None, None, [], "rmse"),
    "clicks": ("local", None, None, [], "loss"),
    "clicks_fm": ("local", None, None, ["model.type=fm", "model.hidden=[]"], "loss"),
}


def run(command):
    """The last JSON object that a command prints."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"quality: {' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def settings(arguments, name, seed):
    config, train, test, more, _ = SETS[name]
    sets = [f"cluster.seed={seed}"] + more + arguments.set
    if train is not None:
        sets += [f"data.train={arguments.data}/{train}", f"data.test={arguments.data}/{test}"]
    return os.path.join(ROOT, "configs", config + ".yaml"), [word for text in sets for word in ("--set", text)]


def by_torch(arguments, name, seed, delay=0):
    config, sets = settings(arguments, name, seed)
    with tempfile.TemporaryDirectory() as folder:
        run([f"{arguments.bin}/tools/bench/quality/quality_data", "--config", config, *sets, "--out", folder])
        return json.loads(run([arguments.python, os.path.join(HERE, "torch_model.py"), folder, "--seed", str(seed),
                               "--delay", str(delay)]))


def by_cluster(arguments, name, seed, workers):
    config, sets = settings(arguments, name, seed)
    return json.loads(run([f"{arguments.bin}/tools/psctl/psctl", "local", config, *sets, "--set",
                           f"cluster.workers={workers}", "--set", "train.evaluate_train_samples_max=0", "--quiet", "--json",
                           "--ps-binary", f"{arguments.bin}/server/ps", "--worker-binary", f"{arguments.bin}/worker/worker"]))


def delay_of(results):
    """Of the table that has most: mean over the seeds, and the greatest."""
    tables = [table for result in results for table in result.get("delay", {}).values()]
    if not tables:
        return ""
    greatest = [max(table["mean"] for table in result["delay"].values()) for result in results]
    return f"{statistics.mean(greatest):.2f} (max {max(table['max'] for table in tables)})"


def line(name, what, metric, values, verdict, results):
    rate = statistics.median(result["samples_per_second"] for result in results)
    print(f"{name:10} {what:10} {metric:8} {statistics.mean(values):8.5f}  {min(values):.5f} - {max(values):.5f}  {verdict:7} "
          f"{rate:10,.0f}  {delay_of(results)}", flush=True)


def within(values, reference, metric):
    """Whether the mean is no worse than the worst of the reference."""
    mean = statistics.mean(values)
    return mean <= max(reference) if metric in ("loss", "rmse") else mean >= min(reference)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--data", help="folder of the public data sets")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="overrides the configurations")
    parser.add_argument("--delays", default="", help="PyTorch with gradients so many steps late as well, as 1,2,4")
    parser.add_argument("--bin", default=os.path.join(ROOT, "bazel-bin"))
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has PyTorch")
    arguments = parser.parse_args()
    names = arguments.sets.split(",")
    for name in names:
        if name not in SETS:
            parser.error(f"--sets: there is no {name}; there are {', '.join(SETS)}")
        if SETS[name][1] is not None and arguments.data is None:
            parser.error(f"--data is needed for {name}")
    print(f"{'set':10} {'trained by':10} {'metric':8} {'mean':8}  {'range':17}  {'':7} {'samples/s':>10}  delay in updates")
    missed = 0
    for name in names:
        metric = SETS[name][4]
        seeds = range(1, arguments.seeds + 1)
        results = [by_torch(arguments, name, seed) for seed in seeds]
        reference = [result["test"][metric] for result in results]
        line(name, "PyTorch", metric, reference, "", results)
        for delay in [int(text) for text in arguments.delays.split(",") if text]:
            results = [by_torch(arguments, name, seed, delay) for seed in seeds]
            values = [result["test"][metric] for result in results]
            line(name, f"  {delay} late", metric, values, "within" if within(values, reference, metric) else "worse", results)
        for workers in [int(text) for text in arguments.workers.split(",") if text]:
            results = [by_cluster(arguments, name, seed, workers) for seed in seeds]
            values = [result["test"][metric] for result in results]
            good = within(values, reference, metric)
            missed += not good
            line(name, f"{workers} worker{'s' if workers > 1 else ''}", metric, values, "within" if good else "worse", results)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
