"""Values that are set: by assignment, by a state_dict, by files of tensors."""

import os
import subprocess
import tempfile
import unittest

import numpy as np
import torch

import lodestone
import lodestone.torch as lt
from cluster_case import ClusterCase

PSCTL = os.path.join(os.getcwd(), "tools", "psctl", "psctl")
SEED = 7


class Assign(ClusterCase):
    def optimizers(self):
        return (lodestone.SGD(0.1), lodestone.Momentum(0.1), lodestone.Nesterov(0.1), lodestone.Adagrad(0.1),
                lodestone.RowwiseAdagrad(0.1), lodestone.RMSprop(0.1), lodestone.Adam(0.1),
                lodestone.AdamW(0.1, weight_decay=0.01))

    def test_values_are_exactly_those_that_are_set(self):
        rng = np.random.default_rng(SEED)
        # All magnitudes, and zeros.
        wanted = (rng.normal(size=5000) * 10.0 ** rng.integers(-12, 12, 5000)).astype(np.float32)
        wanted[:10] = 0
        for i, optimizer in enumerate(self.optimizers()):
            dense = self.cluster.dense(f"exact/{i}", 5000, optimizer, lodestone.Normal(0, 1), broadcast={"every_ms": 20})
            rows = self.cluster.embedding(f"exact/rows/{i}", 5, optimizer, lodestone.Normal(0, 1), admission={"count_min": 3})
            dense.push(rng.normal(size=5000)).result()  # With a state.
            keys = rng.permutation(10_000)[:1000]
            rows.push(keys[:100], rng.normal(size=(100, 5))).result()
            before = self.cluster.table(dense.name).spec, self.cluster.table(rows.name).spec
            self.cluster.assign({dense: wanted, rows: (keys, wanted.reshape(1000, 5))})
            np.testing.assert_array_equal(dense.pull().result(), wanted, str(optimizer))
            np.testing.assert_array_equal(rows.pull(keys).result(), wanted.reshape(1000, 5), str(optimizer))
            # Settings are as before, and training goes on as they say.
            for spec, table in zip(before, (dense, rows)):
                after = self.cluster.table(table.name).spec
                spec.pop("revision", None), after.pop("revision", None)
                self.assertEqual(spec, after)

    def test_a_push_of_another_worker_meanwhile_is_undone_or_reported(self):
        wanted = np.random.default_rng(SEED).normal(size=100).astype(np.float32)
        push = self.cluster.push
        with lodestone.connect(self.local.address) as other:
            for i, optimizer in enumerate(self.optimizers()):
                for times in (1, 100):
                    table = self.cluster.dense(f"meanwhile/{i}/{times}", 100, optimizer)
                    theirs = [other.table(table.name)] * times

                    def with_another(gradients):
                        call = push(gradients)
                        if theirs:
                            call.result()
                            theirs.pop().push(np.full(100, 5)).result()
                        return call

                    self.cluster.push = with_another
                    if times == 1:
                        table.assign(wanted)
                        np.testing.assert_array_equal(table.pull().result(), wanted, str(optimizer))
                    else:
                        with self.assertRaisesRegex(lodestone.Aborted, "another worker pushes"):
                            table.assign(wanted)
                        self.assertLess(np.abs(table.pull().result()).max(), 100)
                    self.cluster.push = push

    @unittest.skipUnless(os.path.exists(PSCTL), "psctl is not beside this test")
    def test_values_are_not_set_by_other_settings_than_an_operator_holds(self):
        table = self.cluster.dense("held", 4, lodestone.SGD(0.1), lodestone.Constant(2))
        psctl = [PSCTL, "set", "held", "--address", self.local.address]
        subprocess.run(psctl + ["optimizer.learning_rate=0.01"], check=True, capture_output=True)
        again = self.cluster.dense("held", 4, lodestone.SGD(0.1), lodestone.Constant(2))
        self.assertAlmostEqual(again.spec["optimizer"]["learning_rate"], 0.01)
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "psctl set held --release optimizer.learning_rate"):
            table.assign(np.ones(4))
        np.testing.assert_array_equal(table.pull().result(), np.full(4, 2))
        subprocess.run(psctl + ["--release", "optimizer.learning_rate", "broadcast={every_ms: 20}"], check=True,
                       capture_output=True)
        table.assign(np.ones(4))
        np.testing.assert_array_equal(table.pull().result(), np.ones(4))

    def test_nothing_is_pushed_where_values_are_as_wanted(self):
        table = self.cluster.dense("same", 4, lodestone.Adam(0.1), lodestone.Constant(2))
        before = table.pull()
        table.assign(np.full(4, 2))
        np.testing.assert_array_equal(table.pull().versions, before.versions)

    def test_training_goes_on_from_what_was_set_as_from_what_was_initial(self):
        gradients = np.random.default_rng(SEED).normal(size=(5, 50)).astype(np.float32)
        for i, optimizer in enumerate((lodestone.SGD(0.1), lodestone.Momentum(0.1), lodestone.Adagrad(0.1),
                                       lodestone.RMSprop(0.1))):
            fresh = self.cluster.dense(f"on/fresh/{i}", 50, optimizer, lodestone.Constant(3))
            loaded = self.cluster.dense(f"on/loaded/{i}", 50, optimizer, lodestone.Normal(0, 1))
            loaded.assign(np.full(50, 3))
            for gradient in gradients:
                self.cluster.push({fresh: gradient, loaded: gradient}).result()
            np.testing.assert_array_equal(loaded.pull().result(), fresh.pull().result(), str(optimizer))

    def test_adams_moments_are_as_if_its_first_gradients_were_zero(self):
        table = self.cluster.dense("adam", 50, lodestone.Adam(0.1))
        table.assign(np.ones(50))
        gradient = np.full(50, 0.25, np.float32)
        steps = []
        for count in range(1, 7):  # The pushes of an assignment, and one: the twin has had as many of zeros.
            twin = self.cluster.dense(f"adam/twin/{count}", 50, lodestone.Adam(0.1))
            for _ in range(count):
                twin.push(np.zeros(50)).result()
            twin.push(gradient).result()
            steps.append(float(twin.pull().result()[0]))
        table.push(gradient).result()
        self.assertTrue(any(abs(float(table.pull().result()[0]) - 1 - step) < 1e-6 for step in steps), steps)

    def test_what_cannot_be_set_is_refused_and_changes_nothing(self):
        table = self.cluster.embedding("no/rows", 2, lodestone.Adagrad(0.1))
        with self.assertRaisesRegex(lodestone.InvalidArgument, "no/rows.*more than once"):
            table.assign([1, 1], np.ones((2, 2)))
        with self.assertRaisesRegex(lodestone.InvalidArgument, "not all finite"):
            table.assign([1], [[1, float("nan")]])
        with self.assertRaisesRegex(lodestone.InvalidArgument, r"must be \[1, 2\]"):
            table.assign([1], np.ones((1, 3)))
        for optimizer in (lodestone.Ftrl(0.1), lodestone.Lion(0.1)):
            other = self.cluster.dense("no/" + type(optimizer).__name__, 2, optimizer)
            with self.assertRaisesRegex(lodestone.Unimplemented, "checkpoint"):
                self.cluster.assign({table: ([1], [[1, 1]]), other: [1, 2]})
        np.testing.assert_array_equal(table.pull([1]).result(), [[0, 0]])
        with self.local.observe() as observer, self.assertRaises(lodestone.FailedPrecondition):
            observer.table("no/rows").assign([1], [[1, 1]])

    def test_rows_that_there_is_no_room_for_are_reported(self):
        table = self.cluster.embedding("full", 4, lodestone.SGD(0.1), admission={"when_full": "TURN_AWAY"}, memory_max_bytes=1)
        with self.assertRaisesRegex(lodestone.Aborted, "full.*no room for the rows"):
            table.assign([1], np.ones((1, 4)))
        self.assertAlmostEqual(self.cluster.table("full").spec["optimizer"]["learning_rate"], 0.1)


class State(ClusterCase):
    def module(self, name, **settings):
        rows = self.cluster.embedding(name + "/items", 3, lodestone.Adagrad(0.1), lodestone.Normal(0, 1))
        module = torch.nn.Module()
        module.items = lt.EmbeddingBag(rows, "sum", **settings)
        module.tower = torch.nn.Linear(3, 1)
        module.register_buffer("seen", torch.tensor(0))
        return module, lt.AsyncOptimizer(module, self.cluster, lodestone.Adam(0.01), prefix=name + "/")

    def train(self, module, optimizer):
        optimizer.zero_grad()
        module.tower(module.items(torch.tensor([[4, 5], [5, -6]]))).sum().backward()
        optimizer.step()
        module.seen += 1
        self.cluster.flush()

    def test_a_state_of_one_run_is_loaded_into_another(self):
        module, optimizer = self.module("first", remember=True)
        self.train(module, optimizer)
        state = optimizer.state_dict()
        self.assertEqual(sorted(state), ["items.keys", "items.values", "seen", "tower.bias", "tower.weight"])
        self.assertEqual(state["items.keys"].tolist(), [-6, 4, 5])
        # Another worker of the second run, which is loaded by the first, has the values too.
        second, second_optimizer = self.module("second")
        second_optimizer.load_state_dict(state)
        keys = torch.tensor([[4, 5], [5, -6]])
        with lodestone.connect(self.local.address) as other, torch.no_grad():
            third = lt.EmbeddingBag(other.table("second/items"), "sum")
            tower = torch.nn.Linear(3, 1)
            lt.AsyncOptimizer(tower, other, lodestone.Adam(0.01), prefix="second/tower.")
            self.assertTrue(torch.equal(tower(third(keys)), module.tower(module.items(keys))))
        self.assertEqual(int(second.seen), 1)
        self.assertEqual(second_optimizer.state_dict().keys(), {"seen", "tower.weight", "tower.bias"})
        self.train(second, second_optimizer)
        self.assertFalse(torch.equal(second.tower.weight, state["tower.weight"]))

    def test_rows_of_given_keys_are_a_state(self):
        module, _ = self.module("rows")
        rows = module.items.rows_of(torch.tensor([[9, 3], [3, 8]]))
        self.assertEqual(rows["keys"].tolist(), [3, 8, 9])
        module.items.load_state_dict({"keys": rows["keys"], "values": torch.ones(3, 3)})
        self.assertEqual(float(module.items.rows_of(torch.tensor([8]))["values"].sum()), 3)

    def test_a_state_that_does_not_fit_is_refused(self):
        module, optimizer = self.module("unfit")
        state = optimizer.state_dict()
        with self.assertRaisesRegex(RuntimeError, "tower.weight"):
            optimizer.load_state_dict({**state, "tower.weight": torch.ones(2, 2)})
        with self.assertRaisesRegex(RuntimeError, "items.values"):
            optimizer.load_state_dict({**state, "items.keys": torch.ones(2), "items.values": torch.ones(2, 2)})
        with self.assertRaisesRegex(RuntimeError, "tower.bias"):
            optimizer.load_state_dict({name: of for name, of in state.items() if name != "tower.bias"})


class Files(ClusterCase):
    keeps = True
    config = {"cluster": {"shards": 8}, "coordinator": {"lease_ms": 1000}}

    def setUp(self):
        super().setUp()
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.path = os.path.join(self.temporary.name, "model.safetensors")

    def test_tensors_come_back_as_they_were(self):
        tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([2**63 + 1], np.uint64), "c": np.zeros((0, 4)),
                   "scalar": np.float32(3).reshape(()), "t": torch.ones(2, dtype=torch.int32)}
        lodestone.write_safetensors(self.path, tensors, {"of": "mine"})
        found, texts = lodestone.read_safetensors(self.path)
        self.assertEqual(texts, {"of": "mine"})
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(found[name], np.asarray(tensor))
            self.assertEqual(found[name].shape, tuple(tensor.shape))
        with open(self.path, "rb+") as file:
            file.truncate(os.path.getsize(self.path) - 1)
        with self.assertRaisesRegex(lodestone.DataLoss, "model.safetensors"):
            lodestone.read_safetensors(self.path)
        with self.assertRaisesRegex(lodestone.InvalidArgument, "complex64"):
            lodestone.write_safetensors(self.path, {"x": np.zeros(1, np.complex64)})

    def test_an_assignment_goes_on_when_a_server_dies(self):
        table = self.cluster.dense("killed", 100, lodestone.Adagrad(0.1), lodestone.Normal(0, 1))
        rows = self.cluster.embedding("killed/rows", 2, lodestone.Adam(0.1))
        wanted = np.random.default_rng(SEED).normal(size=100).astype(np.float32)
        push, kills = self.cluster.push, [0, 1]

        def with_a_kill(gradients):
            call = push(gradients)
            if kills:
                self.local.kill(kills[0])
                self.local.start(kills.pop(0))
            return call

        self.cluster.push = with_a_kill
        self.cluster.assign({table: wanted, rows: (range(50), wanted.reshape(50, 2))})
        self.assertEqual(kills, [])
        np.testing.assert_array_equal(table.pull().result(), wanted)
        np.testing.assert_array_equal(rows.pull(range(50)).result(), wanted.reshape(50, 2))
        self.assertAlmostEqual(self.cluster.table("killed").spec["optimizer"]["learning_rate"], 0.1)

    def saved(self, prefix):
        dense = self.cluster.dense(prefix + "/tower", (3, 4), lodestone.Adam(0.1), lodestone.Normal(0, 1))
        rows = self.cluster.embedding(prefix + "/items", 2, lodestone.Adagrad(0.1), lodestone.Normal(0, 1))
        rows.push([7, 2**63 + 5], [[1, 2], [3, 4]]).result()
        lodestone.save(self.path, dense, (rows, [7, 2**63 + 5]))
        return dense.pull().result(), rows.pull([7, 2**63 + 5, 9]).result()

    def test_a_saved_model_is_loaded_into_another_cluster(self):
        dense, rows = self.saved("s")
        with lodestone.local(1) as servers, servers.connect() as other:
            tables = lodestone.load(self.path, other)
            self.assertEqual(tables.keys(), {"s/tower", "s/items"})
            np.testing.assert_array_equal(tables["s/tower"].pull().result(), dense)
            np.testing.assert_array_equal(tables["s/items"].pull([7, 2**63 + 5]).result(), rows[:2])
            self.assertIn("adam", tables["s/tower"].spec["optimizer"])
        lodestone.write_safetensors(self.path, {"unknown": np.ones(2, np.float32)})
        with self.assertRaisesRegex(lodestone.NotFound, "unknown"):
            lodestone.load(self.path, self.cluster)

    @unittest.skipUnless(os.path.exists(PSCTL), "psctl is not beside this test")
    def test_psctl_reads_what_is_saved_and_what_it_exports_is_loaded(self):
        dense, rows = self.saved("p")
        checkpoint = os.path.join(self.temporary.name, "checkpoints", "saved")
        config = os.path.join(self.temporary.name, "cluster.yaml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("cluster: {shards: 8, seed: 3}\n")
        subprocess.run([PSCTL, "import", self.path, "--into", checkpoint, "--config", config], check=True, capture_output=True)
        with lodestone.local(1, config={"cluster": {"shards": 8, "seed": 3},
                                        "checkpoint": {"dir": os.path.dirname(checkpoint), "load": "saved"}}) as servers, \
                servers.observe() as other:
            np.testing.assert_array_equal(other.table("p/tower").pull().result(), dense)
            np.testing.assert_array_equal(other.table("p/items").pull([7, 2**63 + 5]).result(), rows[:2])
        exported = os.path.join(self.temporary.name, "exported.safetensors")
        subprocess.run([PSCTL, "export", checkpoint, "--out", exported, "--with-state"], check=True, capture_output=True)
        with lodestone.local(1) as servers, servers.connect() as other:
            tables = lodestone.load(exported, other)
            np.testing.assert_array_equal(tables["p/tower"].pull().result(), dense)
            np.testing.assert_array_equal(tables["p/items"].pull([7, 2**63 + 5]).result(), rows[:2])


if __name__ == "__main__":
    unittest.main()
