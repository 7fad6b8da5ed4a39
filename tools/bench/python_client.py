#!/usr/bin/env python3
"""The Python client beside the C++ client, in turns: rates of pushes and pulls, the cost of a call, the time of an import.

    tools/bazel/bazel build //worker/capi:liblodestone.so //server:ps //tools/bench
    tools/bench/python_client.py [--runs N] [--window-ms N]

Each has a ps of its own on loopback. Medians of the runs, with their range; "x C++" is the rate beside that of the C++
client (tools/bench/run dense embedding) in the same run.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEYS, ROWS, DIM = 4096, 1_000_000, 16
ELEMENTS = 16 << 20  # 64 MiB.
# By name of a row of the C++ client's: operations per second are its kmsg_per_s times 1000.
ROWS_OF_CPP = [
    "dense/push/64MiB/depth1/clients1", "dense/pull/64MiB/depth1/clients1", "embedding/pull/1000Krows/dim16/depth1",
    "embedding/pull/1000Krows/dim16/depth4", "embedding/push/1000Krows/dim16/depth1",
    "embedding/push/1000Krows/dim16/depth4"]
IMPORT_MS, CALL_US = "import lodestone, ms", "pull of 64 bytes, us"


def rate(operation, seconds):
    """Operations per second over that time."""
    operation()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        operation()
        count += 1
    return count / (time.perf_counter() - start)


def with_outstanding(begin, depth):
    """An operation that keeps `depth` calls of `begin` in flight."""
    calls = [begin() for _ in range(depth)]

    def operation():
        calls.pop(0).result()
        calls.append(begin())

    return operation


def measure_import():
    """Milliseconds that the package's import takes beyond the interpreter's own start."""
    def seconds(statement):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        return time.perf_counter() - start

    return 1000 * (min(seconds("import lodestone") for _ in range(5)) - min(seconds("pass") for _ in range(5)))


def measure_python(cluster, lists, seconds):
    """By name: operations per second, or what the name says."""
    import numpy as np

    found = {IMPORT_MS: measure_import()}
    dense, rows, small = cluster.table("dense"), cluster.table("rows"), cluster.table("small")
    gradient, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    values = np.ones((KEYS, DIM), np.float32)
    turn = [0]

    def keys():
        turn[0] += 1
        return lists[turn[0] % len(lists)]

    found[ROWS_OF_CPP[0]] = rate(lambda: dense.push(gradient, copy=False).result(), seconds)
    found[ROWS_OF_CPP[1]] = rate(lambda: dense.pull(out=out).result(), seconds)
    for i, depth in ((2, 1), (3, 4)):
        found[ROWS_OF_CPP[i]] = rate(with_outstanding(lambda: rows.pull(keys()), depth), seconds)
        cluster.flush()
        found[ROWS_OF_CPP[i + 2]] = rate(with_outstanding(lambda: rows.push(keys(), values), depth), seconds)
        cluster.flush()
    found[CALL_US] = 1e6 / rate(lambda: small.pull().result(), seconds)
    return found


def measure_cpp(bench, ps, window_ms):
    """The same of the C++ client."""
    found = {}
    for name in ROWS_OF_CPP + ["dense/pull/64B/depth1/clients1"]:
        lines = subprocess.run([bench, name.split("/")[0], "--only", name.split("/", 1)[1], "--runs", "1", "--window-ms",
                                str(window_ms), "--ps-binary", ps], check=True, capture_output=True, text=True).stdout
        for line in lines.splitlines():
            row = json.loads(line)
            if row.get("name") == name:
                found[name] = 1000 * row["values"]["kmsg_per_s"][0]
    found[CALL_US] = 1e6 / found.pop("dense/pull/64B/depth1/clients1")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--window-ms", type=int, default=400)
    of = parser.parse_args()
    import numpy as np

    programs = os.path.join(ROOT, "bazel-bin")
    ps, bench = os.path.join(programs, "server/ps"), os.path.join(programs, "tools/bench/bench")
    with tempfile.TemporaryDirectory() as site:
        shutil.copytree(os.path.join(ROOT, "worker/python/lodestone"), os.path.join(site, "lodestone"))
        os.symlink(os.path.join(programs, "worker/capi/liblodestone.so"), os.path.join(site, "lodestone/liblodestone.so"))
        sys.path.insert(0, site)
        os.environ["PYTHONPATH"] = site
        import lodestone

        python, cpp = [], []
        # As between two machines: what the C++ client's rows measure.
        apart = {"cluster": {"shared_memory": False}}
        with lodestone.local(servers=1, program=ps) as servers, servers.connect(config=apart) as cluster:
            cluster.dense("dense", ELEMENTS)
            cluster.dense("small", 16)
            rows = cluster.embedding("rows", DIM, lodestone.Adagrad(0.1))
            for begin in range(0, ROWS, 50_000):
                rows.push(np.arange(begin, begin + 50_000), np.ones((50_000, DIM), np.float32)).result()
            rng = np.random.default_rng(1)
            lists = [rng.choice(ROWS, KEYS, replace=False).astype(np.uint64) for _ in range(256)]
            for _ in range(of.runs):
                python.append(measure_python(cluster, lists, of.window_ms / 1000))
                cpp.append(measure_cpp(bench, ps, of.window_ms))
    print(f"{'':40} {'Python':>10} {'C++':>10} {'x C++':>7}  range")
    for name in python[0]:
        mine = [run[name] for run in python]
        if name in cpp[0]:
            ratios = sorted(a[name] / b[name] for a, b in zip(python, cpp))
            print(f"{name:40} {statistics.median(mine):10.1f} {statistics.median(run[name] for run in cpp):10.1f} "
                  f"{statistics.median(ratios):7.2f}  {ratios[0]:.2f}-{ratios[-1]:.2f}")
        else:
            print(f"{name:40} {statistics.median(mine):10.1f}")


if __name__ == "__main__":
    main()
