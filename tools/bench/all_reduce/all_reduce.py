#!/usr/bin/env python3
"""Synchronous steps beside an all-reduce, on the same bytes and the same wire.

    tools/bazel/bazel build //server:ps //tools/bench/all_reduce:sync_steps
    tools/bench/all_reduce/all_reduce.py [--mib N] [--steps N] [--runs N] [--mbit N]

Two machines: each a network and process namespace of its own with one core, joined by a virtual cable, which --mbit makes as
slow as a real one. Each has a ps and a worker that pushes the gradient of one dense table and pulls what the step led to
(consistency sync, SGD); or, in turns with that, one of the two processes of torch.distributed that add the same bytes up by
gloo's all-reduce, and update nothing. Printed: the seconds of a step, and the bytes that cross the cable in a step beside those
of the table, medians of the runs with their range. A ring of two moves the table once in each direction.

Needs root (it makes namespaces), iproute2, util-linux, and a Python with PyTorch (--python).
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MACHINES = 2
ADDRESS = "10.201.7.{}"  # Of machine N; seen by nothing outside.
PORT = 4700
CABLE = "cable"
LATENCY_MS_MAX = 50  # Of what waits for a slow cable.
READY_SECONDS_MAX, STEP_SECONDS_MAX = 60, 60
CONFIG = """\
cluster: {{servers: {machines}, workers: {machines}}}
coordinator: {{address: "{address}:{port}"}}
security: {{open: ALLOW}}
log: {{level: ERROR}}
"""
GLOO = """\
import sys, time
import torch
from torch import distributed
rank, machines, elements, steps = map(int, sys.argv[2:])
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=machines)
values = torch.empty(elements)
print("ready", flush=True)
sys.stdin.readline()
for step in range(steps):
    values.fill_(rank + 1)
    begin = time.perf_counter()
    distributed.all_reduce(values)
    print(time.perf_counter() - begin, flush=True)
    assert values[0] == values[-1] == machines * (machines + 1) / 2
"""


class Machine:
    """A namespace with an address, and processes in it on one core; all of them end with end(), or with this process."""

    def __init__(self, number):
        self.number = number
        self.address = ADDRESS.format(number + 1)
        self.first = None  # The process that the namespace lives as long as.
        self._unshare = None

    def begin(self):
        self._unshare = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child",
                                          "--mount-proc", "sleep", "infinity"])
        while self.first is None:
            time.sleep(0.01)
            if self._unshare.poll() is not None:
                raise SystemExit("unshare has failed: it needs root and the right to make namespaces")
            self.first = self._find_first()
        self.run("ip", "link", "set", "lo", "up")

    def _find_first(self):
        with open(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children", encoding="ascii") as file:
            found = file.read().split()
        # Until it runs, it is not in its own place yet.
        return int(found[0]) if found and os.readlink(f"/proc/{found[0]}/exe").endswith("sleep") else None

    def run(self, *words):
        """What a program says that looks after the machine's network."""
        return subprocess.run(["nsenter", "--target", str(self.first), "--net", *words], check=True, stdout=subprocess.PIPE,
                              text=True).stdout

    def start(self, *words):
        """A process on the machine's core, which is talked to by lines, and dies with nsenter, which is its parent."""
        return subprocess.Popen(["nsenter", "--target", str(self.first), "--net", "--pid", "--mount", "setpriv",
                                 "--pdeathsig", "KILL", "taskset", "-c", str(self.number), *words],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def cable_bytes(self):
        """That it has sent."""
        return json.loads(self.run("ip", "-s", "-j", "link", "show", CABLE))[0]["stats64"]["tx"]["bytes"]

    def end(self):
        if self._unshare is not None:
            self._unshare.kill()
            self._unshare.wait()


def connect(machines, mbit):
    """Lays the cable between both."""
    first, second = machines
    first.run("ip", "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", str(second.first))
    for machine in machines:
        machine.run("ip", "address", "add", machine.address + "/24", "dev", CABLE)
        machine.run("ip", "link", "set", CABLE, "up")
        if mbit:
            machine.run("tc", "qdisc", "add", "dev", CABLE, "root", "tbf", "rate", f"{mbit}mbit", "burst", "1mb", "latency",
                        f"{LATENCY_MS_MAX}ms")


def kill(processes):
    for process in processes:
        process.kill()
        process.wait()


def measure(machines, what, commands, steps):
    """Lets a process of each machine take its steps: the median seconds of one but for the first, which makes connections,
    and the bytes that the machines send in a step."""
    processes = [machine.start(*command) for machine, command in zip(machines, commands)]
    # One that fails leaves the other waiting for it.
    watchdog = threading.Timer(READY_SECONDS_MAX + steps * STEP_SECONDS_MAX, kill, [processes])
    watchdog.start()
    try:
        if [process.stdout.readline() for process in processes] != ["ready\n"] * len(processes):
            raise SystemExit(f"a process of {what} has failed")
        before = [machine.cable_bytes() for machine in machines]
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        seconds = [[float(process.stdout.readline() or "nan") for _ in range(steps)] for process in processes]
        sent = [machine.cable_bytes() - bytes_before for machine, bytes_before in zip(machines, before)]
        if any([process.wait() for process in processes]):
            raise SystemExit(f"a process of {what} has failed")
    finally:
        watchdog.cancel()
        kill(processes)
    return statistics.median(sum((each[1:] for each in seconds), [])), statistics.mean(sent) / steps


def measure_sync(machines, options, folder):
    """As measure; each machine's ps is a new one."""
    path = os.path.join(folder, "config.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(CONFIG.format(machines=MACHINES, address=machines[0].address, port=PORT))
    program = lambda name: os.path.join(options.programs, name)
    servers = [machine.start(program("server/ps"), "--config", path, "--set", f"server.index={machine.number}", "--set",
                             f"server.listen={machine.address}:{PORT}") for machine in machines]
    try:
        commands = [[program("tools/bench/all_reduce/sync_steps"), "--config", path, "--rank", str(machine.number), "--workers",
                     str(MACHINES), "--mib", str(options.mib), "--steps", str(options.steps)] for machine in machines]
        return measure(machines, "sync", commands, options.steps)
    finally:
        kill(servers)


def measure_gloo(machines, options, folder):
    path = os.path.join(folder, "gloo")
    if os.path.exists(path):
        os.remove(path)
    os.environ["GLOO_SOCKET_IFNAME"] = CABLE
    commands = [[options.python, "-c", GLOO, "file://" + path, str(machine.number), str(MACHINES), str(options.mib << 18),
                 str(options.steps)] for machine in machines]
    return measure(machines, "gloo", commands, options.steps)


def text(values, scale=1.0):
    values = [scale * value for value in values]
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=os.path.join(ROOT, "bazel-bin"), help="where they were built")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch")
    parser.add_argument("--mib", type=int, default=64, help="of the table")
    parser.add_argument("--steps", type=int, default=10, help="of a run, at least 2")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mbit", type=int, default=0, help="a second, each way, through the cable; 0: all that the cores move")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("all_reduce.py makes namespaces: run it as root")
    if options.steps < 2 or options.runs < 1:
        raise SystemExit("--steps is at least 2, for the first is not counted, and --runs at least 1")
    with tempfile.TemporaryDirectory(prefix="lodestone-all-reduce-") as folder, contextlib.ExitStack() as ends:
        machines = []
        for number in range(MACHINES):
            machines.append(Machine(number))
            ends.callback(machines[-1].end)
            machines[-1].begin()
        connect(machines, options.mbit)
        found = {"sync": [], "gloo": []}
        for _ in range(options.runs):
            found["sync"].append(measure_sync(machines, options, folder))
            found["gloo"].append(measure_gloo(machines, options, folder))
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    for name, runs in found.items():
        print(f"{name}: {text([seconds for seconds, _ in runs], 1000)} ms a step; a machine sends "
              f"{text([sent for _, sent in runs], 1 / (options.mib << 20))} times the table's bytes in it")
    rates = [gloo[0] / sync[0] for sync, gloo in zip(found["sync"], found["gloo"])]
    print(f"steps of sync, as often as all-reduces: {text(rates)}")


if __name__ == "__main__":
    main()
