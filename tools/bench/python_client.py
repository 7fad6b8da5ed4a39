#!/usr/bin/env python3
"""The Python client beside the C++ client, and beside torch.distributed, in turns.

    tools/bazel/bazel build //worker/capi:liblodestone.so //server:ps //tools/bench
    tools/bench/python_client.py [--runs N] [--window-ms N] [--exchanges N] [--only cpp|torch]

Beside the C++ client: rates of pushes and pulls, the cost of a call, the time of an import. Each has a ps of its own on
loopback. Medians of the runs, with their range; "x C++" is the rate beside that of the C++ client (tools/bench/run dense
embedding) in the same run.

Beside torch.distributed: two processes that exchange 64 MiB of gradients for as many of values, or 4096 rows' gradients for
their values, through one ps; by all-reduce over gloo; and by a parameter server written with torch.distributed.rpc.
"""

import argparse
import compileall
import json
import multiprocessing
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
DENSE_EXCHANGE, ROWS_EXCHANGE = "64 MiB pushed and pulled", "4096 rows of 16 pushed and pulled"
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


def exchange_rate(barrier, exchange, count):
    """Exchanges per second of this process, which the others make at the same time."""
    exchange()
    barrier.wait()
    start = time.perf_counter()
    for _ in range(count):
        exchange()
    return count / (time.perf_counter() - start)


def lodestone_process(rank, barrier, rates, count, address):
    import numpy as np
    import lodestone

    with lodestone.connect(address, config={"cluster": {"shared_memory": False}}) as cluster:
        gradient, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
        keys = np.random.default_rng(rank).choice(ROWS, KEYS, replace=False)
        values = np.ones((KEYS, DIM), np.float32)
        dense, rows = cluster.table("dense"), cluster.table("rows")
        rates.put((DENSE_EXCHANGE, exchange_rate(barrier, lambda: dense.push_pull(gradient, out).result(), count)))
        rates.put((ROWS_EXCHANGE, exchange_rate(barrier, lambda: rows.push_pull(keys, values).result(), 50 * count)))


def gloo_process(rank, barrier, rates, count, folder):
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2)
    gradient = torch.ones(ELEMENTS)
    rates.put((DENSE_EXCHANGE, exchange_rate(barrier, lambda: distributed.all_reduce(gradient), count)))
    distributed.destroy_process_group()


class RpcServer:
    """A parameter server as torch.distributed.rpc's tutorials have it: SGD, one process."""

    dense = rows = None

    @classmethod
    def exchange(cls, gradient):
        cls.dense.add_(gradient, alpha=-0.01)
        return cls.dense

    @classmethod
    def exchange_rows(cls, keys, gradients):
        cls.rows.index_add_(0, keys, gradients, alpha=-0.01)
        return cls.rows[keys]


def rpc_process(rank, barrier, rates, count, folder):
    """Rank 0 is the server."""
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    if rank == 0:
        RpcServer.dense, RpcServer.rows = torch.zeros(ELEMENTS), torch.zeros(ROWS, DIM)
    rpc.init_rpc(f"process{rank}", rank=rank, world_size=3,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc"))
    if rank > 0:
        gradient, values = torch.ones(ELEMENTS), torch.ones(KEYS, DIM)
        keys = torch.randperm(ROWS)[:KEYS]
        call = lambda *arguments: rpc.rpc_sync("process0", *arguments)
        rates.put((DENSE_EXCHANGE, exchange_rate(barrier, lambda: call(RpcServer.exchange, (gradient,)), count)))
        rates.put((ROWS_EXCHANGE, exchange_rate(barrier, lambda: call(RpcServer.exchange_rows, (keys, values)), 50 * count)))
    rpc.shutdown()


def in_processes(target, ranks, *arguments):
    """Mean over the processes of the rates that they report, by name. Two of them meet at the barrier."""
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(2), context.SimpleQueue()
    processes = [context.Process(target=target, args=(rank, barrier, rates, *arguments)) for rank in ranks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"{target.__name__} failed")
    found = {}
    while not rates.empty():
        name, value = rates.get()
        found.setdefault(name, []).append(value)
    return {name: statistics.mean(values) for name, values in found.items()}


def compare_with_torch(address, runs, count):
    """Prints exchanges per second of each process."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append({"Lodestone": in_processes(lodestone_process, (0, 1), count, address),
                          "gloo": in_processes(gloo_process, (0, 1), count, folder),
                          "rpc": in_processes(rpc_process, (0, 1, 2), count, folder)})
    print(f"{'two processes, exchanges/s of each':40} {'Lodestone':>10} {'gloo':>10} {'rpc':>10}  Lodestone x gloo, x rpc (range)")
    for name in (DENSE_EXCHANGE, ROWS_EXCHANGE):
        line = f"{name:40}"
        ratios = []
        for other in ("Lodestone", "gloo", "rpc"):
            values = [run[other][name] for run in found if name in run[other]]
            line += f" {statistics.median(values):10.2f}" if values else f" {'':10}"
            of = sorted(run["Lodestone"][name] / run[other][name] for run in found if name in run[other])
            if other != "Lodestone":
                ratios.append(f"{statistics.median(of):.2f} ({of[0]:.2f}-{of[-1]:.2f})" if of else "-")
        print(f"{line}  {', '.join(ratios)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--window-ms", type=int, default=400)
    parser.add_argument("--exchanges", type=int, default=8, help="of 64 MiB, beside torch.distributed; of rows 50 times as many")
    parser.add_argument("--only", choices=["cpp", "torch"], help="the comparison with one of them")
    of = parser.parse_args()
    import numpy as np

    programs = os.path.join(ROOT, "bazel-bin")
    ps, bench = os.path.join(programs, "server/ps"), os.path.join(programs, "tools/bench/bench")
    with tempfile.TemporaryDirectory() as site:
        shutil.copytree(os.path.join(ROOT, "worker/python/lodestone"), os.path.join(site, "lodestone"))
        os.symlink(os.path.join(programs, "worker/capi/liblodestone.so"), os.path.join(site, "lodestone/liblodestone.so"))
        compileall.compile_dir(os.path.join(site, "lodestone"), quiet=1)  # As pip does.
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
            for _ in range(of.runs if of.only != "torch" else 0):
                python.append(measure_python(cluster, lists, of.window_ms / 1000))
                cpp.append(measure_cpp(bench, ps, of.window_ms))
            if of.only != "cpp":
                compare_with_torch(servers.address, of.runs, of.exchanges)
    if not python:
        return
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
