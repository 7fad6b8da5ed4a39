"""Tensors of a CUDA device: the same numbers as on the CPU."""

import unittest

import numpy as np
import torch

import lodestone
import lodestone.torch as lt
from cluster_case import ClusterCase

CUDA = torch.device("cuda")


@unittest.skipUnless(torch.cuda.is_available(), "there is no CUDA driver here that torch finds a device by")
class Cuda(ClusterCase):
    def test_gradients_and_values_are_copied(self):
        table = self.cluster.dense("copied", (3, 4), lodestone.SGD(-1))
        gradient = torch.arange(12, dtype=torch.float32, device=CUDA).reshape(4, 3).t()  # Not contiguous.
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            table.push(gradient.to(dtype)).result()
        for dtype in (torch.float32, torch.bfloat16):
            out = torch.empty(3, 4, dtype=dtype, device=CUDA)
            self.assertIs(table.pull(out).result(), out)
            self.assertTrue(torch.equal(out.float(), 4 * gradient), dtype)
        strided = torch.zeros(4, 3, device=CUDA).t()
        table.pull(strided).result()
        self.assertTrue(torch.equal(strided, 4 * gradient))
        both = torch.zeros(3, 4, device=CUDA)
        table.push_pull(gradient, both).result()
        self.assertTrue(torch.equal(both, 5 * gradient))

    def test_what_is_still_being_computed_is_awaited(self):
        table = self.cluster.dense("awaited", (1000, 1000), lodestone.SGD(-1))
        with torch.cuda.stream(torch.cuda.Stream()):
            product = torch.eye(1000, device=CUDA)
            for _ in range(200):  # Takes longer than the calls below.
                product = product @ torch.eye(1000, device=CUDA)
            table.push(product).result()
        self.assertTrue(np.array_equal(table.pull().result(), np.eye(1000, dtype=np.float32)))

    def test_rows_are_pushed_and_pulled(self):
        table = self.cluster.embedding("rows", 3, lodestone.SGD(-1))
        keys = torch.tensor([[7, -1], [2**62, 7]], device=CUDA)
        table.push(keys, torch.ones(2, 2, 3, device=CUDA)).result()
        out = torch.empty(2, 2, 3, device=CUDA)
        table.pull(keys, out).result()
        self.assertEqual(out[:, :, 0].tolist(), [[2, 1], [1, 2]])
        self.assertEqual(table.pull([7, 2**64 - 1]).result()[:, 0].tolist(), [2, 1])

    def test_cupys_arrays_are_taken(self):
        try:
            import cupy
        except ImportError:
            self.skipTest("no CuPy")
        table = self.cluster.dense("cupy", 4, lodestone.SGD(-1))
        table.push(cupy.arange(4, dtype=cupy.float32)).result()
        self.assertEqual(table.pull().result().tolist(), [0, 1, 2, 3])
        with cupy.cuda.Stream(non_blocking=True):
            product = cupy.eye(1000, dtype=cupy.float32)
            for _ in range(200):  # Takes longer than the call below.
                product = product @ cupy.eye(1000, dtype=cupy.float32)
            awaited = self.cluster.dense("cupy_awaited", (1000, 1000), lodestone.SGD(-1))
            awaited.push(product).result()
        self.assertTrue(np.array_equal(awaited.pull().result(), np.eye(1000, dtype=np.float32)))

    def test_cupys_keys_are_taken(self):
        try:
            import cupy
        except ImportError:
            self.skipTest("no CuPy")
        table = self.cluster.embedding("cupy_rows", 2, lodestone.SGD(-1))
        table.push(cupy.array([7, 2**64 - 1], dtype=cupy.uint64), cupy.ones((2, 2), dtype=cupy.float32)).result()
        for dtype in (cupy.int32, cupy.int64, cupy.uint64):
            self.assertEqual(table.pull(cupy.array([7], dtype=dtype)).result().tolist(), [[1, 1]], dtype)
        self.assertEqual(table.pull([2**64 - 1]).result().tolist(), [[1, 1]])

    def test_another_default_device_changes_nothing(self):
        if not hasattr(torch, "set_default_device"):
            self.skipTest("torch before 2.0")
        table = self.cluster.embedding("default", 2, lodestone.SGD(-1))
        dense = self.cluster.dense("default_dense", 2, lodestone.SGD(-1))
        torch.set_default_device("cuda")
        try:
            keys = torch.tensor([3, 4])
            remote = lt.Embedding(table, remember=True)
            remote(keys).sum().backward()
            self.cluster.flush()
            self.assertEqual(remote.state_dict()["values"].tolist(), [[1, 1], [1, 1]])
            dense.push(torch.ones(2)).result()
            self.assertEqual(dense.pull(torch.empty(2)).result().tolist(), [1, 1])
            lt.AsyncOptimizer(torch.nn.Linear(2, 1), self.cluster, lodestone.SGD(0.1), prefix="default/").refresh()
        finally:
            torch.set_default_device(None)

    def test_an_embedding_learns_as_pytorchs_own(self):
        torch.manual_seed(1)
        table = self.cluster.embedding("same", 3, lodestone.SGD(0.5), lodestone.Normal(0, 1))
        remote, local = lt.Embedding(table), torch.nn.Embedding(20, 3)
        with torch.no_grad():
            local.weight.copy_(torch.from_numpy(table.pull(range(20)).result()))
        local.to(CUDA)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
        batches = [torch.randint(0, 20, (4, 5), device=CUDA) for _ in range(20)]
        for keys in lt.prefetch(batches, {remote: lambda keys: keys}, ahead=0):
            optimizer.zero_grad()
            ours, theirs = remote(keys), local(keys)
            self.assertEqual(ours.device.type, "cuda")
            self.assertTrue(torch.allclose(ours, theirs, atol=1e-5))
            ours.tanh().sum().backward()
            theirs.tanh().sum().backward()
            optimizer.step()
            self.cluster.flush()
        self.assertTrue(torch.allclose(torch.from_numpy(table.pull(range(20)).result()), local.weight.cpu(), atol=1e-4))

    def test_bags_are_pytorchs_own(self):
        table = self.cluster.embedding("bags", 2, initializer=lodestone.Normal(0, 1))
        keys, offsets = torch.tensor([5, 6, 5, 9, 5], device=CUDA), torch.tensor([0, 2, 2], device=CUDA)
        rows = torch.from_numpy(table.pull(range(10)).result()).to(CUDA)
        for mode in ("sum", "mean", "max"):
            expected = torch.nn.functional.embedding_bag(keys, rows, offsets, mode=mode)
            self.assertTrue(torch.allclose(lt.EmbeddingBag(table, mode).eval()(keys, offsets), expected), mode)

    def test_the_optimizer_takes_pytorchs_steps(self):
        for overlap in (False, True):
            torch.manual_seed(2)
            make = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            remote, local = make().to(CUDA), make().to(CUDA)
            optimizer = lt.AsyncOptimizer(remote, self.cluster, lodestone.SGD(0.1), prefix=f"steps{overlap}/", overlap=overlap)
            local.load_state_dict(optimizer.state_dict())
            theirs = torch.optim.SGD(local.parameters(), lr=0.1)
            for _ in range(10):
                x = torch.randn(16, 4, device=CUDA)
                for module, step in ((remote, optimizer), (local, theirs)):
                    step.zero_grad()
                    (module(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
                    step.step()
                if overlap:
                    optimizer.refresh()
            for a, b in zip(remote.parameters(), local.parameters()):
                self.assertEqual(a.device.type, "cuda")
                self.assertTrue(torch.allclose(a, b, atol=1e-5))
            self.assertTrue(all(tensor.device.type == "cpu" for tensor in optimizer.state_dict().values()))

    def test_a_model_under_autocast_learns(self):
        torch.manual_seed(3)
        items = lt.EmbeddingBag(self.cluster.embedding("autocast_items", 8, lodestone.Adagrad(0.3)), "mean")
        tower = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(CUDA)
        optimizer = lt.AsyncOptimizer(tower, self.cluster, lodestone.Adam(0.02), prefix="autocast/", overlap=True)
        truth = torch.randn(50, device=CUDA)
        losses = []
        batches = [torch.randint(0, 50, (256, 4), device=CUDA) for _ in range(150)]
        for keys in lt.prefetch(batches, {items: lambda keys: keys}):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = tower(items(keys))[:, 0]
            loss = (out.float() - truth[keys].mean(1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(sum(losses[-10:]), 0.2 * sum(losses[:10]), losses)


if __name__ == "__main__":
    unittest.main()
