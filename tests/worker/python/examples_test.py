"""The examples, on real data, with bounds on what they must reach."""

import os
import re
import subprocess
import sys
import unittest

FOLDER = os.path.join(os.getcwd(), "worker", "python", "examples")
DATA = os.environ.get("LODESTONE_DATA", "")


def run(name, *arguments):
    """The output of an example, which must end with exit code 0."""
    ended = subprocess.run([sys.executable, os.path.join(FOLDER, name), *arguments], check=False, capture_output=True,
                           text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@unittest.skipUnless(os.path.isdir(DATA), "LODESTONE_DATA does not name the folder of data sets")
class Examples(unittest.TestCase):
    def test_two_processes_train_an_mlp_on_mnist(self):
        output = run("mnist.py", os.path.join(DATA, "mnist"), "--epochs", "1")
        # What the parameters are worth once both have ended, by the process that only follows them.
        self.assertGreater(float(re.search(r"^accuracy (\d\.\d+)", output, re.MULTILINE)[1]), 0.92, output)

    def test_deepfm_goes_on_when_a_server_dies(self):
        files = [os.path.join(DATA, "criteo", f"criteo_first8k_{part}.tsv") for part in ("train", "test")]
        output = run("deepfm.py", *files, "--epochs", "1", "--crash")
        self.assertGreater(float(re.search(r"auc (\d\.\d+)", output)[1]), 0.65)


if __name__ == "__main__":
    unittest.main()
