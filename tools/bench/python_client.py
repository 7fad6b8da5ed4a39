#!/usr/bin/env python3
"""The Python client beside the C++ client, and beside torch.distributed, in turns: `tools/bench/run python` builds what it
needs and runs it, by a Python that has NumPy and PyTorch (--python, /usr/bin/python3).

Beside the C++ client: rates of pushes and pulls, the time of a call, the time of an import. Each has a ps of its own on
loopback; the limit is the C++ client (tools/bench/run dense embedding), or, of a call, a program in C that waits for each
(c_call.c), and of that one the C++ client, whose next call begins where the one before has ended, without waking a thread.

Beside torch.distributed: two processes that exchange 64 MiB of gradients for as many of values, or 4096 rows' gradients for
their values, through one ps; the limit is an all-reduce over gloo, and a parameter server written with torch.distributed.rpc.

Prints a row of the benchmark a line, as JSON.
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
CALL_OF_CPP = "dense/pull/64B/depth1/clients1"
DENSE_EXCHANGE, ROWS_EXCHANGE = "64MiB", "4096rows/dim16"  # Pushed and pulled.
IMPORT_US, CALL_US, C_CALL_US = "import", "call/pull/64B", "call/pull/64B/by-c"


def rate(operation, seconds):
    """Operations per second over that time."""
    operation()
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        operation()
        count += 1
    return count / (time.perf_counter() - start)


def median_us(operation, seconds):
    """Microseconds that an operation takes, the median of those within that time."""
    operation()
    times = []
    end = time.perf_counter() + seconds
    begin = time.perf_counter()
    while begin < end or not times:
        operation()
        now = time.perf_counter()
        times.append(1e6 * (now - begin))
        begin = now
    return statistics.median(times)


def with_outstanding(begin, depth):
    """An operation that keeps `depth` calls of `begin` in flight."""
    calls = [begin() for _ in range(depth)]

    def operation():
        calls.pop(0).result()
        calls.append(begin())

    return operation


def measure_import():
    """Microseconds that the package's import takes beyond the interpreter's own start."""
    def seconds(statement):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        return time.perf_counter() - start

    return 1e6 * (min(seconds("import lodestone") for _ in range(5)) - min(seconds("pass") for _ in range(5)))


def measure_python(cluster, lists, seconds):
    """By name: operations per second, or what the name says."""
    import numpy as np

    found = {IMPORT_US: measure_import()}
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
    found[CALL_US] = median_us(lambda: small.pull().result(), seconds)
    return found


def measure_c(c_call, address, window_ms):
    """Microseconds of a pull by a program in C."""
    return float(subprocess.run([c_call, address, "small", str(window_ms)], check=True, capture_output=True,
                                text=True).stdout)


def measure_cpp(bench, ps, window_ms):
    """The same of the C++ client, and the microseconds of its pull."""
    found = {}
    for name in ROWS_OF_CPP + [CALL_OF_CPP]:
        lines = subprocess.run([bench, name.split("/")[0], "--only", name.split("/", 1)[1], "--runs", "1", "--window-ms",
                                str(window_ms), "--ps-binary", ps], check=True, capture_output=True, text=True).stdout
        for line in lines.splitlines():
            row = json.loads(line)
            if row.get("name") == name:
                found[name] = row["values"]["p50_us"][0] if name == CALL_OF_CPP else 1000 * row["values"]["kmsg_per_s"][0]
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


def print_row(name, values, unit=""):
    print(json.dumps({"bench": "python", "name": "python/" + name, "unit": unit, "values": values}), flush=True)


def print_rates(name, rates, limits):
    print_row(name, {"rate": rates, "limit_rate": limits, "ratio": [a / b for a, b in zip(rates, limits)]}, "calls/s")


def print_times(name, times, limits):
    print_row(name, {"p50_us": times, "limit_p50_us": limits, "p50_ratio": [a / b for a, b in zip(times, limits)],
                     "added_us": [a - b for a, b in zip(times, limits)]})


def compare_with_cpp(cluster, address, lists, options, programs):
    python, c, cpp = [], [], []
    for _ in range(options.runs):
        python.append(measure_python(cluster, lists, options.window_ms / 1000))
        c.append(measure_c(programs["c_call"], address, options.window_ms))
        cpp.append(measure_cpp(programs["bench"], programs["ps"], options.window_ms))
    for name in ROWS_OF_CPP:
        print_rates(name, [run[name] for run in python], [run[name] for run in cpp])
    print_times(CALL_US, [run[CALL_US] for run in python], c)
    print_times(C_CALL_US, c, [run[CALL_OF_CPP] for run in cpp])
    print_row(IMPORT_US, {"p50_us": [run[IMPORT_US] for run in python]})


def compare_with_torch(address, options):
    """Exchanges per second of each of two processes."""
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    found = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append({"Lodestone": in_processes(lodestone_process, (0, 1), options.exchanges, address),
                          "gloo": in_processes(gloo_process, (0, 1), options.exchanges, folder),
                          "rpc": in_processes(rpc_process, (0, 1, 2), options.exchanges, folder)})
    for other, name in (("gloo", DENSE_EXCHANGE), ("rpc", DENSE_EXCHANGE), ("rpc", ROWS_EXCHANGE)):
        print_rates(f"beside-{other}/push-pull/{name}", [run["Lodestone"][name] for run in found],
                    [run[other][name] for run in found])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.path.join(ROOT, "bazel-bin"), help="where they were built")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--window-ms", type=int, default=400)
    parser.add_argument("--exchanges", type=int, default=8, help="of 64 MiB, beside torch.distributed; of rows 50 times as many")
    parser.add_argument("--only", choices=["cpp", "torch"], help="the comparison with one of them")
    options = parser.parse_args()
    import numpy as np

    programs = {name: os.path.join(options.programs, path) for name, path in (
        ("ps", "server/ps"), ("bench", "tools/bench/bench"), ("c_call", "tools/bench/c_call"),
        ("library", "worker/capi/liblodestone.so"))}
    with tempfile.TemporaryDirectory() as site:
        shutil.copytree(os.path.join(ROOT, "worker/python/lodestone"), os.path.join(site, "lodestone"))
        os.symlink(programs["library"], os.path.join(site, "lodestone/liblodestone.so"))
        compileall.compile_dir(os.path.join(site, "lodestone"), quiet=1)  # As pip does.
        sys.path.insert(0, site)
        os.environ["PYTHONPATH"] = site
        import lodestone

        # As between two machines: what the C++ client's rows measure.
        apart = {"cluster": {"shared_memory": False}}
        with lodestone.local(servers=1, program=programs["ps"]) as servers, servers.connect(config=apart) as cluster:
            cluster.dense("dense", ELEMENTS)
            cluster.dense("small", 16)
            rows = cluster.embedding("rows", DIM, lodestone.Adagrad(0.1))
            for begin in range(0, ROWS, 50_000):
                rows.push(np.arange(begin, begin + 50_000), np.ones((50_000, DIM), np.float32)).result()
            rng = np.random.default_rng(1)
            lists = [rng.choice(ROWS, KEYS, replace=False).astype(np.uint64) for _ in range(256)]
            if options.only != "torch":
                compare_with_cpp(cluster, servers.address, lists, options, programs)
            if options.only != "cpp":
                compare_with_torch(servers.address, options)


if __name__ == "__main__":
    main()
