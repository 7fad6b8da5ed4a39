#!/usr/bin/env python3
"""How long a shard's pushes pause while it moves to another ps.

    tools/bazel/bazel build //worker/capi:liblodestone.so //server:ps //tools/psctl
    tools/bench/moves.py [--runs N] [--replicas 1|2] [--moves N] [--rows N]

Three ps on loopback with their logs on the disk, 16 shards, one table of 64 floats a row (Adagrad) with --rows rows. One
client pushes a row of each shard that moves, each as soon as its last one is acknowledged, another those of the other shards,
and a third 4096 random rows at a time, two calls at a time. The shards of ps 2 are moved to ps 1 and back. Printed: the longest
time between two acknowledgements of a shard's row during a move, by shard and move (median, 99th of a hundred, longest), the same
without moves, and what the bulk pushes keep of their rate.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import threading
import time

from catch_up import DIM, KEYS, ROOT, Load, built_package

SHARDS = 16
MOVED = [2, 5, 8, 11, 14]  # What ps 2 owns at first.
MASK = (1 << 64) - 1


def shard_of(key):
    """As common/wire/shard_map.h: SplitMix64's finalizer, then the high bits of the product."""
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return ((z ^ (z >> 31)) * SHARDS) >> 64


class Pauses:
    """Pushes a row of each of some shards in turn, from a thread of its own, and notes the longest pause of each."""

    def __init__(self, table, shards):
        self._table = table
        self._shards = shards
        self._keys = {}
        key = 0
        while len(self._keys) < SHARDS:
            self._keys.setdefault(shard_of(key), key)
            key += 1
        self._ends = False
        self._longest = [0.0] * SHARDS
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        import numpy as np

        values = np.full((1, DIM), 1e-3, np.float32)
        calls = {}
        last = {shard: time.perf_counter() for shard in self._shards}
        while not self._ends:
            for shard in self._shards:  # Each has a call of its own: one that waits holds up no other.
                call = calls.get(shard)
                if call is not None and not call.done():
                    self._longest[shard] = max(self._longest[shard], time.perf_counter() - last[shard])
                    continue
                now = time.perf_counter()
                self._longest[shard] = max(self._longest[shard], now - last[shard])
                last[shard] = now
                calls[shard] = self._table.push(np.array([self._keys[shard]], np.uint64), values)
            time.sleep(0.001)
        for call in calls.values():
            call.result()

    def take(self):
        """The longest pause of each of its shards since the last call, in milliseconds."""
        longest, self._longest = self._longest, [0.0] * SHARDS
        return [1000 * longest[shard] for shard in self._shards]

    def stop(self):
        self._ends = True
        self._thread.join()


def measure(lodestone, arguments):
    """Pauses of shards that move, of others meanwhile, and without moves; the bulk's rate with moves beside without."""
    import numpy as np

    ps, psctl = (os.path.join(arguments.bin, path) for path in ("server/ps", "tools/psctl/psctl"))
    config = {"cluster": {"replicas": arguments.replicas, "shards": SHARDS}}
    with tempfile.TemporaryDirectory(prefix="lodestone-moves-") as folder, \
            lodestone.local(servers=3, program=ps, folder=folder, config=config) as servers, \
            servers.connect() as cluster:
        spec = ("rows", DIM, lodestone.Adagrad(0.01))
        table = cluster.embedding(*spec)
        for first in range(0, arguments.rows, KEYS):
            keys = np.arange(first, min(first + KEYS, arguments.rows), dtype=np.uint64)
            table.push(keys, np.zeros((len(keys), DIM), np.float32)).result()

        def status():
            return lodestone.status(servers.address)["cluster"]

        def run(*words):
            subprocess.run([psctl, *words, "--address", servers.address], check=True, stdout=subprocess.DEVNULL)

        while arguments.replicas > 1 and status().get("shards_in_sync", 0) < SHARDS:
            time.sleep(0.05)
        # A client with too many unanswered pushes waits for the first: shards that move get one of their own.
        connect = lambda: servers.connect(config={"worker": {"pushes_in_flight_max": 2 * SHARDS}}).embedding(*spec)
        moving, beside = Pauses(connect(), MOVED), Pauses(connect(), [s for s in range(SHARDS) if s not in MOVED])
        bulk = Load(table, arguments.rows, depth=2) if arguments.bulk else None
        count = lambda: bulk.acknowledged if bulk else 0
        found = {"moving": [], "beside": [], "still": [], "rates": []}
        try:
            time.sleep(1)
            for move in range(arguments.moves):
                moving.take(), beside.take()
                before, start = count(), time.perf_counter()
                run("move", ",".join(map(str, MOVED)), "2" if move % 2 == 0 else "1")  # They are there: psctl alone.
                time.sleep(1)
                rate = (count() - before) / (time.perf_counter() - start)
                found["still"] += moving.take() + beside.take()
                before, start = count(), time.perf_counter()
                run("move", ",".join(map(str, MOVED)), "1" if move % 2 == 0 else "2")
                while status().get("moves"):
                    time.sleep(0.05)
                if bulk:
                    found["rates"].append((count() - before) / (time.perf_counter() - start) / rate)
                time.sleep(0.2)
                found["moving"] += moving.take()
                found["beside"] += beside.take()
        finally:
            for load in (moving, beside, bulk):
                if load:
                    load.stop()
    return found


def spread(values):
    ordered = sorted(values)
    of_hundred = ordered[int(0.99 * len(ordered))]  # Below the end, however few there are.
    return f"{statistics.median(ordered):.1f} ms, of a hundred the 99th {of_hundred:.1f}, the longest {ordered[-1]:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=1, choices=[1, 2])
    parser.add_argument("--no-bulk", dest="bulk", action="store_false", help="only the rows whose pauses are measured")
    parser.add_argument("--bin", default=os.path.join(ROOT, "bazel-bin"), help="what Bazel has built")
    arguments = parser.parse_args()
    with built_package(arguments.bin) as lodestone:
        runs = [measure(lodestone, arguments) for _ in range(arguments.runs)]
    found = {name: [value for run in runs for value in run[name]] for name in runs[0]}
    print(f"pauses of shards that move: {spread(found['moving'])}")
    print(f"of the others meanwhile: {spread(found['beside'])}")
    print(f"without moves: {spread(found['still'])}")
    if arguments.bulk:
        rates = found["rates"]
        print(f"bulk pushes keep {statistics.median(rates):.2f} ({min(rates):.2f}-{max(rates):.2f}) of their rate")


if __name__ == "__main__":
    main()
