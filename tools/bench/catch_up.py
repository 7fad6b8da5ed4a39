#!/usr/bin/env python3
"""What pushes keep of their rate while a follower that was away catches up.

    tools/bazel/bazel build //worker/capi:liblodestone.so //server:ps
    tools/bench/catch_up.py [--runs N] [--seconds N] [--rows N]

Two ps with cluster.replicas: 2 on loopback, one table of rows of 64 floats (Adagrad), and one client that pushes to 4096
random rows at a time, four calls at a time. Ps 1 is killed, stays away for a while, and comes back: with its folder, so
that it gets what it lacks from the other's log; or without, so that it gets whole states. Printed, for each: calls per second with
both copies, with one (ps 1 away), and from the return to when every shard has both again; and how long that took. Medians of the
runs, with their range. With --apart ps 1 has a core of its own, as a machine of its own has, and what it does takes none of the
client's or ps 0's time. Before it is killed first ("from the log") ps 1 owns half of the shards, and after that none: with both
copies it then takes a part of the owners' work off ps 0.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEYS, DIM, DEPTH, LISTS = 4096, 64, 4, 64


class Load:
    """Pushes from a thread of its own until stop(), `depth` calls at a time."""

    def __init__(self, table, rows, depth=DEPTH):
        import numpy as np

        random = np.random.default_rng(18)
        self._keys = [random.choice(rows, KEYS, replace=False).astype(np.uint64) for _ in range(LISTS)]
        self._values = np.full((KEYS, DIM), 1e-3, np.float32)
        self._table = table
        self._depth = depth
        self._ends = False
        self.acknowledged = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        calls = []
        while not self._ends:
            while len(calls) < self._depth:
                calls.append(self._table.push(self._keys[(self.acknowledged + len(calls)) % LISTS], self._values))
            calls.pop(0).result()
            self.acknowledged += 1
        for call in calls:
            call.result()

    def rate(self, seconds):
        """Calls per second over that time."""
        return self.rate_until(lambda: False, seconds)[0]

    def rate_until(self, condition, seconds_max):
        """Calls per second until the condition holds, and the seconds that took; looked at 20 times a second."""
        start, before = time.perf_counter(), self.acknowledged
        while time.perf_counter() - start < seconds_max and not condition():
            time.sleep(0.05)
        took = time.perf_counter() - start
        return (self.acknowledged - before) / took, took

    def stop(self):
        self._ends = True
        self._thread.join()


def pin(pid, cores):
    """Has a process, all threads that it has or makes, run on these cores."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cores)


def measure(lodestone, program, rows, seconds, core):
    """The rates (both, one, catching up) and the seconds that catching up took, by the way of return.

    core: of ps 1; None: any.
    """
    import numpy as np

    found = {}
    with tempfile.TemporaryDirectory(prefix="lodestone-catch-up-") as folder:
        config = {"cluster": {"replicas": 2, "shards": 16}, "coordinator": {"lease_ms": 3000}}
        with lodestone.local(servers=2, program=program, folder=folder, config=config) as servers, \
                servers.connect() as cluster:
            def pin_returning():
                if core is not None:
                    pin(servers._processes[1].pid, {core})

            pin_returning()
            table = cluster.embedding("rows", DIM, lodestone.Adagrad(0.01))
            for first in range(0, rows, KEYS):
                table.push(np.arange(first, min(first + KEYS, rows), dtype=np.uint64),
                           np.zeros((min(KEYS, rows - first), DIM), np.float32)).result()

            def in_sync():
                return lodestone.status(servers.address)["cluster"].get("shards_in_sync", 0) == 16

            load = Load(table, rows)
            try:
                load.rate_until(in_sync, 120)
                for way in ("log", "states"):
                    load.rate(2)
                    both = load.rate(seconds)
                    servers.kill(1)
                    load.rate(2)  # The other takes its shards over.
                    one = load.rate(seconds)
                    if way == "states":
                        shutil.rmtree(os.path.join(folder, "ps-1"))
                    servers.start(1)
                    pin_returning()
                    catching, took = load.rate_until(in_sync, 300)
                    found[way] = (both, one, catching, took)
            finally:
                load.stop()
    return found


@contextlib.contextmanager
def built_package(programs):
    """The package lodestone, with the library that lies among the programs."""
    with tempfile.TemporaryDirectory() as site:
        package = os.path.join(site, "lodestone")
        shutil.copytree(os.path.join(ROOT, "worker/python/lodestone"), package)
        os.symlink(os.path.join(programs, "worker/capi/liblodestone.so"), os.path.join(package, "liblodestone.so"))
        sys.path.insert(0, site)
        import lodestone

        yield lodestone


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of each phase with both copies, and with one")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bin", default=os.path.join(ROOT, "bazel-bin"), help="what Bazel has built")
    parser.add_argument("--apart", action="store_true", help="ps 1 on a core of its own, the client and ps 0 on another, as "
                        "if they were machines: without it they take each other's time on two cores")
    arguments = parser.parse_args()
    core = None
    if arguments.apart:
        first, *others = sorted(os.sched_getaffinity(0))
        if not others:
            parser.error("--apart needs two cores, and there is one")
        core = others[0]
        pin(os.getpid(), {first})
    with built_package(arguments.bin) as lodestone:
        runs = [measure(lodestone, os.path.join(arguments.bin, "server/ps"), arguments.rows, arguments.seconds,
                        core)
                for _ in range(arguments.runs)]
    for way, told in (("log", "from the log"), ("states", "by whole states")):
        both, one, catching, took = zip(*(run[way] for run in runs))
        print(f"{told}: both copies {spread(both)} calls/s, one {spread(one)}, catching up {spread(catching)} for "
              f"{spread(took)} s")
        print(f"  beside one copy {spread([c / o for c, o in zip(catching, one)])}, "
              f"beside both {spread([c / b for c, b in zip(catching, both)])}")


if __name__ == "__main__":
    main()
