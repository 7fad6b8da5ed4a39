"""lodestone.torch: embeddings and the optimizer, beside what PyTorch does by itself."""

import unittest
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

import lodestone
import lodestone.torch as lt
from cluster_case import ClusterCase


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([i, i + 1])


class OnMeta(TorchFunctionMode):
    """Where nothing else is said new tensors are on the device "meta", as with torch.set_default_device of PyTorch 2."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.tensor):
            kwargs.setdefault("device", "meta")
        return func(*args, **kwargs)


class Torch(ClusterCase):
    def test_another_default_device_or_type_changes_nothing(self):
        table = self.cluster.embedding("default", 2, lodestone.SGD(-1))
        remote = lt.Embedding(table, remember=True)
        linear, keys = torch.nn.Linear(2, 1), torch.tensor([3, 4])
        out = torch.zeros(2, 2, dtype=torch.float64)
        torch.set_default_dtype(torch.float64)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        with OnMeta():
            rows = remote(keys)
            rows.sum().backward()
            self.cluster.flush()
            table.pull(keys, out).result()
            state = remote.state_dict()
            optimizer = lt.AsyncOptimizer(linear, self.cluster, lodestone.SGD(0.1), prefix="default/")
            optimizer.refresh()
        self.assertEqual(rows.dtype, torch.float32)
        self.assertEqual(out.tolist(), [[1, 1], [1, 1]])
        self.assertEqual(state["values"].tolist(), [[1, 1], [1, 1]])

    def test_an_embedding_learns_as_pytorchs_own(self):
        torch.manual_seed(1)
        table = self.cluster.embedding("same", 3, lodestone.SGD(0.5), lodestone.Normal(0, 1))
        remote = lt.Embedding(table)
        local = torch.nn.Embedding(20, 3)
        with torch.no_grad():
            local.weight.copy_(torch.from_numpy(table.pull(range(20)).result()))
        optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
        for _ in range(10):
            keys = torch.randint(0, 20, (4, 5))  # Keys come more than once.
            optimizer.zero_grad()
            ours, theirs = remote(keys), local(keys)
            self.assertTrue(torch.allclose(ours, theirs, atol=1e-6))
            ours.tanh().sum().backward()
            theirs.tanh().sum().backward()
            optimizer.step()
            self.cluster.flush()
        self.assertTrue(torch.allclose(torch.from_numpy(table.pull(range(20)).result()), local.weight, atol=1e-5))

    def test_bags_are_pytorchs_own(self):
        table = self.cluster.embedding("bags", 2, initializer=lodestone.Normal(0, 1))
        keys, offsets = torch.tensor([5, 6, 5, 9, 5]), torch.tensor([0, 2, 2])
        rows = torch.from_numpy(table.pull(range(10)).result())
        for mode in ("sum", "mean", "max"):
            expected = torch.nn.functional.embedding_bag(keys, rows, offsets, mode=mode)
            self.assertTrue(torch.equal(lt.EmbeddingBag(table, mode).eval()(keys, offsets), expected), mode)
        with self.assertRaisesRegex(lodestone.InvalidArgument, "median"):
            lt.EmbeddingBag(table, "median")

    def test_a_collection_pools_jagged_features(self):
        users = self.cluster.embedding("c/users", 2, initializer=lodestone.Normal(0, 1))
        items = self.cluster.embedding("c/items", 3, initializer=lodestone.Normal(0, 1))
        bags = lt.EmbeddingBagCollection({"user": users, "item.id": items})
        pooled = bags({"user": (torch.tensor([1, 2]), torch.tensor([0, 1])),
                       "item.id": (torch.tensor([4, 5, 6]), torch.tensor([0, 1]))})
        self.assertEqual([tuple(pooled[name].shape) for name in ("user", "item.id")], [(2, 2), (2, 3)])
        rows = torch.from_numpy(items.pull([4, 5, 6]).result())
        self.assertTrue(torch.allclose(pooled["item.id"][1], rows[1] + rows[2]))

        class Jagged:  # A feature of TorchRec's KeyedJaggedTensor; its last bag is empty.
            def values(self):
                return torch.tensor([1, 2])

            def offsets(self):
                return torch.tensor([0, 2, 2])

        class KeyedJagged:
            def __getitem__(self, feature):
                return Jagged()

        pooled = bags(KeyedJagged())
        self.assertEqual(tuple(pooled["user"].shape), (2, 2))
        self.assertEqual(pooled["user"][1].tolist(), [0, 0])

    def test_prefetched_rows_are_used_and_batches_keep_their_order(self):
        table = self.cluster.embedding("ahead", 1, lodestone.SGD(-1))
        module = lt.Embedding(table)
        batches = [torch.tensor([i, i + 1]) for i in range(6)]
        seen = []
        for batch in lt.prefetch(batches, {module: lambda batch: batch}, ahead=2):
            self.assertIn(len(module._pulls), (1, 2, 3))
            seen.append(batch)
            module(batch).sum().backward()
        self.assertEqual(len(module._pulls), 0)
        self.assertTrue(all(a is b for a, b in zip(seen, batches)))
        self.cluster.flush()
        self.assertEqual(table.pull(range(7)).result()[:, 0].tolist(), [1, 2, 2, 2, 2, 2, 1])

    def test_rows_that_were_asked_for_when_a_loop_ended_are_not_used_later(self):
        table = self.cluster.embedding("left", 1, lodestone.SGD(-1))
        module = lt.Embedding(table)
        keys = torch.tensor([1, 2])
        for batch in lt.prefetch([keys] * 6, {module: lambda batch: batch}, ahead=2):
            module(batch)
            break
        table.push(keys, torch.ones(2, 1)).result()
        self.assertEqual(module(keys)[:, 0].tolist(), [1, 1])

    def test_data_loaders_fork_while_the_cluster_is_used(self):
        table = self.cluster.embedding("forks", 1, lodestone.SGD(-1))
        module = lt.Embedding(table)
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        for _ in range(20):  # 40 forks, of processes that push and pull.
            for batch in lt.prefetch(loader, {module: lambda batch: batch}):
                module(batch).sum().backward()
        self.cluster.flush()
        self.assertEqual(table.pull(range(9)).result()[:, 0].tolist(), [20] + 7 * [40] + [20])

    def test_gradients_that_accumulate_are_one_push(self):
        table = self.cluster.embedding("accumulated", 1, lodestone.Adagrad(1.0))
        module = lt.Embedding(table)
        with module.accumulate():
            module(torch.tensor([1, 2])).sum().backward()
            module(torch.tensor([2, 3])).sum().backward()
        self.cluster.flush()
        once = self.cluster.embedding("at_once", 1, lodestone.Adagrad(1.0))
        once.push([1, 2, 3], [[1], [2], [1]]).result()
        self.assertEqual(table.pull([1, 2, 3]).result().tolist(), once.pull([1, 2, 3]).result().tolist())

    def test_gradients_of_a_block_that_fails_are_not_pushed(self):
        table = self.cluster.embedding("block", 1, lodestone.SGD(-1))
        module = lt.Embedding(table)
        with self.assertRaisesRegex(OSError, "no data"), module.accumulate(), module.accumulate():
            module(torch.tensor([1])).sum().backward()
            raise OSError("no data")
        with module.accumulate():
            module(torch.tensor([2])).sum().backward()
        self.cluster.flush()
        self.assertEqual(table.pull([1, 2]).result()[:, 0].tolist(), [0, 1])

    def test_features_have_names_of_any_kind(self):
        table = self.cluster.embedding("names", 2)
        for name in ("items", "keys", "pop", "training", "of.dots"):
            bags = lt.EmbeddingBagCollection({name: table})
            self.assertEqual(tuple(bags({name: (torch.tensor([1]), torch.tensor([0]))})[name].shape), (1, 2))

    def test_an_exchange_that_ctrl_c_ended_is_taken_later(self):
        module = torch.nn.Linear(1, 1, bias=False)
        optimizer = lt.AsyncOptimizer(module, self.cluster, lodestone.SGD(-1), prefix="later/", overlap=True)
        before = float(module.weight)
        module(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        pending = optimizer._pending
        with mock.patch.object(lodestone.Call, "result", side_effect=KeyboardInterrupt), \
                self.assertRaises(KeyboardInterrupt):
            optimizer.refresh()
        self.assertIs(optimizer._pending, pending)
        optimizer._take()
        self.assertIs(optimizer._read, pending)
        self.assertAlmostEqual(float(module.weight), before + 1, places=5)
        # One that has failed is not in the way of the next.
        module.weight.grad = torch.full((1, 1), float("nan"))
        optimizer.step()
        with self.assertRaises(lodestone.LodestoneError):
            optimizer.refresh()
        optimizer.refresh()

    def test_padding_that_begins_with_other_values_is_warned_of(self):
        module = torch.nn.Embedding(4, 2, padding_idx=1)
        state = module.state_dict()
        own = {name: tensor.clone() for name, tensor in state.items()}
        with self.assertWarnsRegex(UserWarning, "row 1 of parameter weight"):
            optimizer = lt.AsyncOptimizer(module, self.cluster, prefix="padding/")
        optimizer.load_state_dict(own)
        again = torch.nn.Embedding(4, 2, padding_idx=1)
        lt.AsyncOptimizer(again, self.cluster, prefix="padding/")  # Which has the values that were loaded.
        self.assertTrue(torch.equal(again.weight, own["weight"]))

    def test_nothing_is_pushed_without_gradients(self):
        table = self.cluster.embedding("still", 1, lodestone.SGD(-1))
        module = lt.Embedding(table)
        with torch.no_grad():
            module(torch.tensor([1]))
        self.assertFalse(module.eval()(torch.tensor([1])).requires_grad)
        self.cluster.flush()
        self.assertEqual(float(table.pull([1]).result()[0, 0]), 0)

    def test_the_optimizer_takes_pytorchs_steps(self):
        for name, ours, theirs in (
                ("sgd", lodestone.SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
                ("adam", lodestone.Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
                ("momentum", lodestone.Momentum(0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))):
            torch.manual_seed(2)
            remote = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            optimizer = lt.AsyncOptimizer(remote, self.cluster, ours, prefix=name + "/")
            local = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            local.load_state_dict(optimizer.state_dict())
            their_optimizer = theirs(local.parameters())
            for _ in range(10):
                x = torch.randn(16, 4)
                for module, step in ((remote, optimizer), (local, their_optimizer)):
                    step.zero_grad()
                    (module(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
                    step.step()
            for a, b in zip(remote.parameters(), local.parameters()):
                self.assertTrue(torch.allclose(a, b, atol=1e-5), name)

    def test_autocast_computes_as_with_pytorchs_own_and_trains_float32(self):
        items = self.cluster.embedding("autocast_items", 4, lodestone.SGD(0.1), lodestone.Normal(0, 1))
        keys = torch.arange(6)
        remote, tower = lt.Embedding(items), torch.nn.Linear(4, 1)
        optimizer = lt.AsyncOptimizer(tower, self.cluster, lodestone.SGD(0.1), prefix="autocast/")
        local = torch.nn.Embedding.from_pretrained(torch.from_numpy(items.pull(keys).result()), freeze=False)
        local_tower = torch.nn.Linear(4, 1)
        local_tower.load_state_dict(optimizer.state_dict())
        theirs = torch.optim.SGD([*local.parameters(), *local_tower.parameters()], lr=0.1)
        for _ in range(5):
            for rows, linear, step in ((remote, tower, optimizer), (local, local_tower, theirs)):
                step.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = linear(rows(keys))
                    self.assertEqual(out.dtype, torch.bfloat16)
                    loss = (out.float() - 1).pow(2).mean()
                loss.backward()
                step.step()
            self.cluster.flush()
        # The same arithmetic: what differs is the order of sums.
        self.assertTrue(torch.allclose(torch.from_numpy(items.pull(keys).result()), local.weight.detach(), atol=1e-5))
        for a, b in zip(tower.parameters(), local_tower.parameters()):
            self.assertEqual(a.dtype, torch.float32)
            self.assertTrue(torch.allclose(a, b, atol=1e-5))

    def test_gradients_that_accumulate_in_a_module_are_one_step(self):
        torch.manual_seed(3)
        remote, local = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        optimizer = lt.AsyncOptimizer(remote, self.cluster, lodestone.Adam(0.05), prefix="accumulating/")
        local.load_state_dict(optimizer.state_dict())
        theirs = torch.optim.Adam(local.parameters(), lr=0.05)
        for _ in range(4):
            x = torch.randn(8, 3)
            for module, step in ((remote, optimizer), (local, theirs)):
                step.zero_grad()
                for part in x.split(2):
                    (module(part) - 1).pow(2).sum().backward()
                step.step()
        for a, b in zip(remote.parameters(), local.parameters()):
            self.assertTrue(torch.allclose(a, b, atol=1e-5))

    def test_two_workers_start_alike_and_train_one_model(self):
        make = lambda: torch.nn.Linear(3, 1)
        torch.manual_seed(3)
        first = make()
        a = lt.AsyncOptimizer(first, self.cluster, lodestone.SGD(0.1), prefix="two/")
        with lodestone.connect(self.local.address) as other:
            second = make()
            b = lt.AsyncOptimizer(second, other, lodestone.SGD(0.1), prefix="two/", overlap=True)
            self.assertTrue(torch.equal(first.weight, second.weight))
            x = torch.randn(64, 3)
            y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
            for step in range(200):
                module, optimizer = ((first, a), (second, b))[step % 2]
                optimizer.zero_grad()
                (module(x) - y).pow(2).mean().backward()
                optimizer.step(loss=0.5, samples=step)
            b.refresh()
            a.refresh()
            self.assertTrue(torch.equal(first.weight, second.weight))
            self.assertLess(float((first(x) - y).pow(2).mean()), 1e-3)

    def test_initial_values_are_drawn_as_the_modules_were(self):
        torch.manual_seed(4)
        self.assertEqual(lt.initializer_like(torch.zeros(5)), lodestone.Zeros())
        self.assertEqual(lt.initializer_like(torch.ones(5)), lodestone.Constant(1.0))
        uniform = lt.initializer_like(torch.rand(10_000) - 0.5)
        self.assertIsInstance(uniform, lodestone.Uniform)
        self.assertAlmostEqual(uniform.high, 0.5, places=1)
        self.assertIsInstance(lt.initializer_like(torch.randn(10_000)), lodestone.Normal)

    def test_tensors_of_other_types_are_pushed(self):
        table = self.cluster.dense("types", 2, lodestone.SGD(-1))
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            table.push(torch.ones(2, dtype=dtype)).result()
        out = torch.zeros(2, dtype=torch.float64)
        table.pull(out=out).result()
        self.assertEqual(out.tolist(), [4, 4])


if __name__ == "__main__":
    unittest.main()
