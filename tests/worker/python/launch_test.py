"""Scripts in several processes: lodestone.launch and `python -m lodestone launch`."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

import numpy as np

import lodestone
from cluster_case import ClusterCase


class Launch(ClusterCase):
    def setUp(self):
        super().setUp()
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)

    def script(self, text):
        path = os.path.join(self.temporary.name, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import os, sys, lodestone\n" + textwrap.dedent(text))
        return path

    def command(self, script, *arguments, **popen):
        """`python -m lodestone launch` on the servers of this class."""
        return subprocess.Popen([sys.executable, "-m", "lodestone", "launch", "--address", self.local.address, "--workers", "3",
                                 script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)

    def test_each_process_is_a_worker_of_the_cluster(self):
        script = self.script("""
            with lodestone.connect() as cluster:
                table = cluster.embedding("launched", 1, lodestone.SGD(-1))
                table.push([cluster.index], [[1 + int(sys.argv[1])]])
                assert os.environ["LODESTONE_WORKERS"] == "3" and os.environ["LODESTONE_WORKER"] == str(cluster.index)
            """)
        # This test's connection has place 0.
        self.cluster.close()
        lodestone.launch([script, "4"], workers=3, address=self.local.address)
        with lodestone.observe(self.local.address) as cluster:
            np.testing.assert_array_equal(cluster.table("launched").pull(range(4)).result()[:, 0], [5, 5, 5, 0])

    def test_servers_of_its_own_end_with_it(self):
        script = self.script("""
            with lodestone.connect() as cluster:
                values = cluster.dense("t", 2).pull().result().tolist()
                sys.stdout.write(f"{cluster.index} {os.environ['LODESTONE_ADDRESS']} {values}\\n")
            """)
        ended = subprocess.run([sys.executable, "-m", "lodestone", "launch", "--servers", "1", "--workers", "2", script],
                               check=False, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        lines = sorted(line.split(" ", 2) for line in ended.stdout.splitlines())
        self.assertEqual([(index, values) for index, _, values in lines], [("0", "[0.0, 0.0]"), ("1", "[0.0, 0.0]")])
        with self.assertRaises(lodestone.LodestoneError):
            lodestone.status(lines[0][1], timeout=0.5)

    def test_the_first_failure_ends_all_and_is_named(self):
        script = self.script("""
            import signal
            if os.environ["LODESTONE_WORKER"] == "1":
                sys.exit(7) if sys.argv[1] == "exit" else os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
            """)
        with self.assertRaisesRegex(lodestone.WorkerFailed, "worker 1 ended with exit code 7") as raised:
            lodestone.launch([script, "exit"], workers=3, address=self.local.address)
        self.assertEqual((raised.exception.worker, raised.exception.exit_code), (1, 7))
        program = self.command(script, "kill")
        output = program.communicate()
        self.assertEqual((program.returncode, output), (137, ("", "lodestone: worker 1 ended with signal SIGKILL; the others were "
                                                              "ended\n")))

    def interrupted(self, how):
        """Exit code and output of a launch that gets the signal once all of its processes wait."""
        script = self.script("""
            import signal
            # A signal that comes just before it waits ends the wait, too; signal.pause() would miss that one.
            wakened, wakes = os.pipe()
            os.set_blocking(wakes, False)
            signal.set_wakeup_fd(wakes)
            try:
                sys.stdout.write("ready\\n")
                sys.stdout.flush()
                os.read(wakened, 1)
            except KeyboardInterrupt:
                sys.stdout.write("interrupted\\n")
            """)
        program = self.command(script)
        for _ in range(3):
            self.assertEqual(program.stdout.readline(), "ready\n")
        program.send_signal(how)
        output = program.communicate()
        return program.returncode, output

    def test_ctrl_c_ends_all(self):
        self.assertEqual(self.interrupted(signal.SIGINT), (130, ("interrupted\n" * 3, "")))

    def test_sigterm_ends_all(self):
        self.assertEqual(self.interrupted(signal.SIGTERM), (143, ("", "")))

    def test_without_an_address_outside_of_it_what_to_do_is_said(self):
        with self.assertRaisesRegex(lodestone.InvalidArgument, "lodestone launch"):
            lodestone.connect()


if __name__ == "__main__":
    unittest.main()
