#!/usr/bin/env python3
"""What slow and dying workers cost: the time to a fixed loss by each choice of train.consistency. `tools/bench/run
stragglers` builds what it needs and runs it.

Four workers, two ps, `psctl local --restart-workers` with leased ranges, on generated clicks, each of which is new to the model: the
loss of the newest SAMPLES_OF_LOSS samples is that of samples which it has not learned. Every worker is stopped and continued by
turns, so that it has a share of a processor of its own, as if on a machine of its own (4 times --share is to be less than
the machine has). The situations:

  equal   all workers are as fast
  slow    one of them has a fifth of its share, for good; the limit is equal's rate, 0.8 of it: the capacity that is left
  killed  one after the other is killed, one every --every seconds, and started again; the limit is equal's rate
  drained  ps 1 is drained and gets its part of the shards again, in turns, every --every seconds; the limit is equal's rate

By default a training takes some seconds, so that little is killed or drained in it. To have one last 40 s and more, and --every 10
take effect, lower the learning rates and give it more samples: --rate 0.03 --samples 9000000. A smaller --share lengthens it too.

Prints a row of the benchmark a line, as JSON; its rate is that of such trainings in an hour. The seconds of each go to standard
error.
"""

import argparse
import collections
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORKERS = 4
SLOW = 0.2  # Of a worker's share of a processor, for the slow one.
PERIOD_SECONDS = 0.05
SAMPLES_OF_LOSS = 20_000
POLL_SECONDS = 0.1
CHOICES = {
    "async": "{async: {}}",
    "bounded": "{bounded: {staleness: 4}}",
    "tokens": "{tokens: {batch: 4, staleness: 4}}",
    "sync": "{sync: {batches: 4}}",
    "sync-backup": "{sync: {batches: 4, backup: 1}}",
}
CAPACITY = {"equal": 1, "slow": (WORKERS - 1 + SLOW) / WORKERS, "killed": 1, "drained": 1}
CONFIG = """\
cluster: {{servers: 2, workers: {workers}, seed: {seed}}}
model:
  type: deepfm
  embedding_dim: 8
  hidden: [64, 32]
  optimizer: {{adagrad: {{}}, learning_rate: {rate}}}
  dense: {{optimizer: {{adam: {{}}, learning_rate: {dense_rate}}}}}
data:
  format: generated
  generated: {{kind: clicks, train_samples: {samples}, test_samples: 1000}}
train: {{epochs: 1, batch_size: 64, sharing: ranges, range_batches: 32, consistency: {consistency}}}
worker: {{threads: 1}}
"""


class Loss:
    """The mean loss of the newest samples, from what workers report: their samples so far, and the loss of those since the
    report before."""

    def __init__(self, samples_wanted):
        self._wanted = samples_wanted
        self._before = {}  # By worker: samples.
        self._newest = collections.deque()  # (samples, their loss)

    def add(self, worker, samples, loss):
        new = samples - self._before.get(worker, 0)
        self._before[worker] = samples
        if new <= 0:
            return
        self._newest.append((new, loss))
        while sum(each for each, _ in self._newest) - self._newest[0][0] >= self._wanted:
            self._newest.popleft()

    def mean(self):
        """None: there are too few yet."""
        samples = sum(each for each, _ in self._newest)
        if samples < self._wanted:
            return None
        return sum(each * loss for each, loss in self._newest) / samples


class Throttle:
    """Gives each process its share of a processor, until stop(): `pids` says which there are, and `share_of` what each has."""

    def __init__(self, pids, share_of):
        self._pids, self._share_of = pids, share_of
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._ends.is_set():
            begin = time.monotonic()
            pids = self._pids()
            for at, pid in enumerate(pids):  # One after the other: they do not take a processor from each other.
                if send(pid, signal.SIGCONT):
                    time.sleep(PERIOD_SECONDS * self._share_of(at))
                    send(pid, signal.SIGSTOP)
            self._ends.wait(max(0, begin + PERIOD_SECONDS - time.monotonic()))

    def stop(self):
        self._ends.set()
        self._thread.join()
        for pid in self._pids():
            send(pid, signal.SIGCONT)


def send(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


class Cluster:
    """A run of psctl local, until the block ends."""

    def __init__(self, programs, folder, config, verbose):
        path = os.path.join(folder, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        self._verbose = verbose
        self._psctl = os.path.join(programs, "tools/psctl/psctl")
        self._process = subprocess.Popen(
            [self._psctl, "local", path, "--restart-workers", "--ps-binary",
             os.path.join(programs, "server/ps"), "--worker-binary", os.path.join(programs, "worker/worker")],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._address = None
        self._page = None
        self._said = []
        self._has_page = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def _read(self):
        for line in self._process.stderr:
            self._said.append(line)
            if self._verbose:
                sys.stderr.write(line)
            address = re.search(r"psctl status --address ([^)\s]+)", line)
            if address:
                self._address = address.group(1)
            page = re.search(r"page is (http://\S+)", line)
            if page:
                self._page = page.group(1)
                self._has_page.set()
        self._has_page.set()

    def psctl(self, *verb):
        """Begins another psctl for this cluster."""
        output = None if self._verbose else subprocess.DEVNULL
        return subprocess.Popen([self._psctl, *verb, "--address", self._address], stdout=output, stderr=output)

    def workers(self):
        """The workers' status, all that have joined; RuntimeError once the run has ended."""
        self._has_page.wait()
        if self._process.poll() is not None:
            raise RuntimeError("psctl local has ended: " + "".join(self._said[-5:]))
        with urllib.request.urlopen(self._page + "api/status", timeout=30) as answer:
            return json.load(answer).get("cluster", {}).get("workers", [])


def pid_of(worker):
    return int(worker["peer"].rsplit(" ", 1)[1])


class Drains:
    """Has ps 1 drained, and filled again, in turns."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._empties = itertools.cycle((True, False))
        self._calls = []
        self.turns = 0

    def turn(self):
        if any(call.poll() is None for call in self._calls):
            return  # It moves still.
        if any(call.returncode != 0 for call in self._calls):
            raise RuntimeError(f"psctl has failed: {[call.args for call in self._calls]}")
        self.turns += 1
        if next(self._empties):
            self._calls = [self._cluster.psctl("drain", "1")]
            return
        undo = self._cluster.psctl("drain", "1", "--undo")
        undo.wait()
        self._calls = [undo, self._cluster.psctl("rebalance")]

    def end(self):
        for call in self._calls:
            call.kill()
            call.wait()


def seconds_to_loss(cluster, situation, options):
    """Seconds from when a worker begins to train until the loss of the newest samples is as low as wanted. Workers report
    once a second, so that a second is about what it errs by."""
    loss = Loss(SAMPLES_OF_LOSS)
    pids = []
    share_of = lambda at: options.share * (SLOW if situation == "slow" and at == 0 else 1)
    throttle = Throttle(lambda: list(pids), share_of)
    victims = itertools.count()
    drains = Drains(cluster)
    start, next_turn = None, None
    try:
        while True:
            workers = cluster.workers()
            pids[:] = [pid_of(worker) for worker in workers if worker.get("alive")]
            now = time.monotonic()
            for worker in workers:
                progress = worker.get("progress", {})
                samples = int(progress.get("samples", 0))
                loss.add(worker["incarnation"], samples, float(progress.get("loss", 0)))
                if progress.get("phase") == "PHASE_TRAINING" and start is None:
                    start, next_turn = now, now + options.every
            if start is None:
                time.sleep(POLL_SECONDS)
                continue
            mean = loss.mean()
            if mean is not None and mean <= options.loss:
                return now - start
            if now - start > options.seconds_max:
                raise RuntimeError(f"the loss is {mean} after {options.seconds_max} s, and {options.loss} is wanted (--loss)")
            if situation == "killed" and now >= next_turn and len(pids) == WORKERS:
                send(pids[next(victims) % WORKERS], signal.SIGKILL)
                next_turn = now + options.every
            if situation == "drained" and now >= next_turn:
                drains.turn()
                next_turn = now + options.every
            time.sleep(POLL_SECONDS)
    finally:
        throttle.stop()
        drains.end()
        if drains.turns:
            print(f"drained or filled {drains.turns} times", file=sys.stderr)


def config_of(choice, seed, options):
    return CONFIG.format(workers=WORKERS, seed=seed, samples=options.samples, rate=0.05 * options.rate,
                         dense_rate=0.001 * options.rate, consistency=CHOICES[choice])


def measure(situation, choice, seed, options):
    config = config_of(choice, seed, options)
    with tempfile.TemporaryDirectory(prefix="lodestone-stragglers-") as folder, \
            Cluster(options.programs, folder, config, options.verbose) as cluster:
        seconds = seconds_to_loss(cluster, situation, options)
    print(f"{situation}/{choice}, seed {seed}: {seconds:.1f} s", file=sys.stderr, flush=True)
    return seconds


def share(text):
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def names_among(known):
    def parse(text):
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return [name for name in known if name in names]
    return parse


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.path.join(ROOT, "bazel-bin"), help="where they were built")
    parser.add_argument("--runs", type=int, default=3, help="of each, with seeds 1, 2, …")
    parser.add_argument("--choices", type=names_among(CHOICES), default=list(CHOICES), help=",".join(CHOICES))
    parser.add_argument("--situations", type=names_among(CAPACITY), default=list(CAPACITY),
                        help=",".join(CAPACITY) + "; equal is always measured")
    parser.add_argument("--loss", type=float, default=0.395)
    parser.add_argument("--samples", type=int, default=1_500_000, help="that there are; each worker keeps them all")
    parser.add_argument("--share", type=share, default=0.2, help="of a processor, that each worker has")
    parser.add_argument("--rate", type=float, default=1, help="times the learning rates: a lower one has trainings last longer")
    parser.add_argument("--every", type=float, default=10, help="seconds between two kills or drains; see above for trainings that last as long")
    parser.add_argument("--seconds-max", type=float, default=600, help="of one training")
    parser.add_argument("--verbose", action="store_true", help="shows what psctl says")
    return parser.parse_args(argv)


def rows_of(seconds):
    """The rows, by (situation, choice) the seconds of each run."""
    for (situation, choice), times in seconds.items():
        values = {"rate": [3600 / each for each in times]}
        if situation != "equal":
            limits = [3600 / each * CAPACITY[situation] for each in seconds["equal", choice]]
            values["limit_rate"] = limits
            values["ratio"] = [rate / limit for rate, limit in zip(values["rate"], limits)]
        yield {"bench": "stragglers", "name": f"stragglers/{situation}/{choice}", "unit": "trainings/h", "values": values}


def main(argv):
    options = parse_arguments(argv)
    seconds = {}
    situations = [name for name in CAPACITY if name == "equal" or name in options.situations]
    for run in range(options.runs):  # In turns: what else the machine does concerns all.
        for choice in options.choices:
            for situation in situations:
                seconds.setdefault((situation, choice), []).append(measure(situation, choice, run + 1, options))
    for row in rows_of(dict(sorted(seconds.items(), key=lambda each: situations.index(each[0][0])))):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
