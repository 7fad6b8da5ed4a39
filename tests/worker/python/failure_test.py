"""Servers that die and come back while a program goes on."""

import signal
import subprocess
import sys
import time
import unittest

import numpy as np

import lodestone
from cluster_case import ClusterCase


class Failure(ClusterCase):
    keeps = True
    config = {"cluster": {"shards": 8}, "coordinator": {"lease_ms": 1000}}

    def test_pushes_count_once_over_kills_of_servers(self):
        table = self.cluster.embedding("once", 1, lodestone.SGD(-1))
        keys = np.arange(64)
        pushes = []
        for round_ in range(4):
            for _ in range(50):
                pushes.append(table.push(keys, np.ones((64, 1))))
            self.local.kill(round_ % 2)
            self.local.start(round_ % 2)
        for push in pushes:
            push.result()
        np.testing.assert_array_equal(table.pull(keys).result(), np.full((64, 1), 200))

    def test_a_subscription_goes_on_after_a_kill(self):
        table = self.cluster.dense("followed", 100_000, lodestone.SGD(-1), broadcast={"every_ms": 10})
        subscription = self.cluster.subscribe(table)
        subscription.refresh()
        for index in (0, 1):
            self.local.kill(index)
            self.local.start(index)
        table.push(np.ones(100_000)).result()
        while subscription.arrays[0].min() < 1:
            subscription.refresh(wait=True)

    def test_rows_are_followed_in_the_background_again_after_an_outage_that_ended_a_pull(self):
        keys = np.arange(64)
        with lodestone.connect(self.local.address, config={"worker": {"retry_timeout_ms": 200}}) as follower:
            table = self.cluster.embedding("followed_rows", 1, lodestone.SGD(-1))
            with follower.subscribe(follower.table("followed_rows"), keys=keys, every=0.02).start() as rows, \
                    self.assertLogs("lodestone", "WARNING") as logged:
                self.local.kill(1)
                while not any("followed_rows` is not refreshed" in line for line in logged.output):
                    time.sleep(0.01)
                self.local.start(1)
                table.push(keys, np.ones((64, 1))).result()
                while rows.arrays[0].min() < 1:
                    time.sleep(0.01)

    def test_servers_end_with_a_process_that_is_killed(self):
        script = ("import lodestone, sys\n"
                  "servers = lodestone.local(1)\n"
                  "print(servers._processes[0].pid, flush=True)\n"
                  "sys.stdin.readline()\n")
        program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        server = int(program.stdout.readline())
        program.kill()
        program.communicate()
        while True:  # Until it is gone, or a zombie that waits for what adopted it.
            try:
                with open(f"/proc/{server}/stat", encoding="utf-8") as file:
                    if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                        break
            except (FileNotFoundError, ProcessLookupError):  # The latter when it goes between opening and reading.
                break

    def test_ctrl_c_ends_a_wait(self):
        self.cluster.dense("waits", 2)
        script = ("import lodestone, sys\n"
                  "c = lodestone.connect(sys.argv[1])\n"
                  "t = c.table('waits')\n"
                  "print('ready', flush=True)\n"
                  "sys.stdin.readline()\n"
                  "try:\n"
                  "    t.pull().result()\n"
                  "except KeyboardInterrupt:\n"
                  "    print('interrupted')\n")
        program = subprocess.Popen([sys.executable, "-c", script, self.local.address], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        self.assertEqual(program.stdout.readline(), "ready\n")
        self.local.kill(0)
        self.local.kill(1)
        program.stdin.write("\n")
        program.stdin.flush()
        # Until it waits, the signal would end it elsewhere: it is in the call once its thread sleeps there.
        with self.assertRaises(subprocess.TimeoutExpired):
            program.wait(1.5)
        program.send_signal(signal.SIGINT)
        out = program.communicate()[0]
        self.local.start(0)
        self.local.start(1)
        self.assertEqual(out, "interrupted\n")


if __name__ == "__main__":
    unittest.main()
