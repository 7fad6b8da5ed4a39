"""The examples, on real data, with bounds on what they must reach."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch

FOLDER = os.path.join(os.getcwd(), "worker", "python", "examples")
DATA = os.environ.get("LODESTONE_DATA", "")
CRITEO = [os.path.join(DATA, "criteo", f"criteo_first8k_{part}.tsv") for part in ("train", "test")]
PSCTL = os.path.join(os.getcwd(), "tools", "psctl", "psctl")


def run(name, *arguments):
    """The output of an example, which must end with exit code 0."""
    ended = subprocess.run([sys.executable, os.path.join(FOLDER, name), *arguments], check=False, capture_output=True,
                           text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def launch(name, *arguments):
    """The output of an example that two processes run together."""
    ended = subprocess.run([sys.executable, "-m", "lodestone", "launch", "--workers", "2", os.path.join(FOLDER, name), *arguments],
                           check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def auc_of(output):
    return float(re.search(r"^auc (\d\.\d+)", output, re.MULTILINE)[1])


def bigram_loss(path):
    """Nats a character, on the last tenth of a text, of what the pairs of the rest say."""
    with open(path, encoding="utf-8") as file:
        content = file.read()
    places = {character: i for i, character in enumerate(sorted(set(content)))}
    text = torch.tensor([places[character] for character in content])
    train, test = text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]
    counts = torch.ones(len(places), len(places))
    counts.index_put_((train[:-1], train[1:]), torch.ones(len(train) - 1), accumulate=True)
    return -(counts / counts.sum(1, keepdim=True)).log()[test[:-1], test[1:]].mean().item()


class Readme(unittest.TestCase):
    def test_the_script_of_the_readme_runs_as_it_stands(self):
        with open(os.path.join(os.path.dirname(FOLDER), "README.md"), encoding="utf-8") as file:
            script = re.search(r"## In a notebook\n\n```python\n(.*?)```", file.read(), re.DOTALL)[1]
        self.assertLessEqual(script.count("\n"), 30)
        with tempfile.TemporaryDirectory() as folder:  # Where the script's own folder goes.
            ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True,
                                   env={**os.environ, "TMPDIR": folder})
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertGreaterEqual(int(re.match(r"(\d+)% of a new batch right", ended.stdout)[1]), 95, ended.stdout)


@unittest.skipUnless(os.path.isdir(DATA), "LODESTONE_DATA does not name the folder of data sets")
class Examples(unittest.TestCase):
    def test_two_processes_train_an_mlp_on_mnist(self):
        output = run("mnist.py", os.path.join(DATA, "mnist"), "--epochs", "1")
        # What the parameters are worth once both have ended, by the process that only follows them.
        self.assertGreater(float(re.search(r"^accuracy (\d\.\d+)", output, re.MULTILINE)[1]), 0.92, output)

    def test_deepfm_goes_on_when_a_server_dies(self):
        output = run("deepfm.py", *CRITEO, "--epochs", "1", "--crash")
        self.assertGreater(auc_of(output), 0.65)

    @unittest.skipUnless(os.path.exists(PSCTL), "psctl is not beside this test")
    def test_deepfm_reaches_the_workers_auc(self):
        for seed in (1, 2, 3):
            with tempfile.TemporaryDirectory() as folder:
                summary = os.path.join(folder, "summary.json")
                sets = {"data.train": CRITEO[0], "data.test": CRITEO[1], "cluster.seed": seed, "cluster.workers": 1,
                        # As deepfm.py --exact: in the file's order, each step after the one before, nothing dropped.
                        "train.shuffle": "false", "train.delay_max": 0, "model.dropout": 0}
                subprocess.run([PSCTL, "local", "configs/criteo_deepfm.yaml", "--ps-binary", "server/ps", "--worker-binary",
                                "worker/worker", "--summary", summary,
                                *(part for name, value in sets.items() for part in ("--set", f"{name}={value}"))],
                               check=True, capture_output=True)
                with open(summary, encoding="utf-8") as file:
                    theirs = json.load(file)["test"]["auc"]
            ours = auc_of(run("deepfm.py", *CRITEO, "--seed", str(seed), "--exact"))
            print(f"seed {seed}: auc {ours:.4f}, lodestone-worker's {theirs:.4f}")
            self.assertAlmostEqual(ours, theirs, delta=0.001)

    def test_two_processes_train_a_character_transformer(self):
        path = os.path.join(DATA, "tinyshakespeare", "input.txt")
        output = launch("chars.py", path, "--steps", "300")
        loss = float(re.search(r"^test loss (\d\.\d+)", output, re.MULTILINE)[1])
        # It knows more of a character than the one before it says.
        self.assertLess(loss, bigram_loss(path) - 0.1, output)


if __name__ == "__main__":
    unittest.main()
