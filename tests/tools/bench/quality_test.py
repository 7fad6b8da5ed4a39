"""Tests of the comparison with PyTorch: what a verdict is, what quality_data writes, and the optimizers written out there."""

import json
import os
import subprocess
import tempfile
import unittest

import numpy as np
import quality

try:
    import torch
    import torch_model
except ImportError:
    torch = None


def written(*sets):
    """data.npz and model.json of configs/ratings.yaml, small, with further settings."""
    with tempfile.TemporaryDirectory() as folder:
        words = [word for text in ("data.generated.train_samples=200", "data.generated.test_samples=50", *sets)
                 for word in ("--set", text)]
        subprocess.run(["tools/bench/quality/quality_data", "--config", "configs/ratings.yaml", *words, "--out", folder],
                       check=True)
        with np.load(os.path.join(folder, "data.npz")) as data, open(os.path.join(folder, "model.json"),
                                                                      encoding="utf-8") as model:
            return {name: data[name] for name in data.files}, json.load(model)


class Verdict(unittest.TestCase):
    def test_a_mean_no_worse_than_the_worst_seed_is_good_enough(self):
        reference = [0.90, 0.91, 0.92]
        self.assertTrue(quality.within([0.89, 0.91, 0.91], reference, "accuracy"))
        self.assertFalse(quality.within([0.89, 0.89, 0.90], reference, "accuracy"))
        self.assertTrue(quality.within([0.99], reference, "accuracy"), "better is no fault")
        self.assertTrue(quality.within([0.92], reference, "loss"))
        self.assertFalse(quality.within([0.93], reference, "loss"))

    def test_the_delay_is_of_the_table_that_has_most(self):
        results = [{"delay": {"bias": {"mean": 1, "max": 9}, "embedding": {"mean": 2, "max": 4}}},
                   {"delay": {"bias": {"mean": 1, "max": 2}, "embedding": {"mean": 4, "max": 5}}}]
        self.assertEqual(quality.delay_of(results), "3.00 (max 9)")
        self.assertEqual(quality.delay_of([{}]), "")


class Data(unittest.TestCase):
    def test_has_the_samples_of_all_partitions_and_a_start_for_each_table(self):
        data, model = written("cluster.workers=3")
        self.assertEqual(data["train/labels"].shape, (200,))
        self.assertEqual(data["test/labels"].shape, (50,))
        self.assertEqual(list(data["train/offsets"][:3]), [0, 2, 4])
        rows = np.concatenate((data["train/rows"], data["test/rows"]))
        self.assertEqual([table["name"] for table in model["tables"]], ["bias", "embedding"])
        self.assertEqual(data["start/embedding"].shape, (rows.max() + 1, 9))
        self.assertEqual(len(np.unique(rows)), rows.max() + 1)
        self.assertAlmostEqual(float(data["start/bias"][0]), float(data["train/labels"].mean()), 5)
        self.assertAlmostEqual(float(data["start/embedding"][:, 1:].std()), 0.01, 3)
        self.assertAlmostEqual(model["tables"][1]["optimizer"]["learningRate"], 0.2, 6)

    def test_another_seed_is_another_start(self):
        first, again, other = written()[0], written()[0], written("cluster.seed=2")[0]
        np.testing.assert_array_equal(first["start/embedding"], again["start/embedding"])
        self.assertFalse(np.array_equal(first["start/embedding"][:10], other["start/embedding"][:10]))


@unittest.skipIf(torch is None, "no PyTorch")
class Steps(unittest.TestCase):
    def steps(self, optimizer, rows, gradients):
        table = torch_model.Table({"name": "t", "dense": False, "optimizer": optimizer}, np.ones((3, 1), np.float32))
        for gradient in gradients:
            table.step(torch.tensor(rows), torch.full((len(rows), 1), gradient))
        return table.values[:, 0].tolist()

    def test_sgd_touches_its_rows_only(self):
        self.assertEqual(self.steps({"sgd": {}, "learningRate": 0.5}, [0, 2], [1.0]), [0.5, 1.0, 0.5])

    def test_adagrad(self):
        # 1 - 0.1 * 3 / 3 - 0.1 * 4 / 5
        self.assertAlmostEqual(self.steps({"adagrad": {}, "learningRate": 0.1}, [1], [3.0, 4.0])[1], 0.82, 6)

    def test_adam_corrects_its_first_step_to_the_rate(self):
        # 1 - 0.999 as a float is off by up to 2^-24 / 0.001 of itself, its root by half of that, and the step is 0.1.
        self.assertAlmostEqual(self.steps({"adam": {}, "learningRate": 0.1}, [1], [7.0])[1], 0.9, delta=0.1 * 3e-5)

    def test_a_schedule_counts_steps(self):
        values = self.steps({"learningRate": 1.0, "schedule": {"step": {"everySteps": "1", "factor": 0.5}}}, [0], [0.5, 0.5])
        self.assertEqual(values[0], 1 - 0.5 - 0.25)

    def test_auc_counts_equal_scores_half(self):
        self.assertEqual(torch_model.auc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])), 3.5 / 4)


if __name__ == "__main__":
    unittest.main()
