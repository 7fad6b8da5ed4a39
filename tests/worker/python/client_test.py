"""What a program does with a cluster: tables, pushes, pulls, subscriptions."""

import asyncio
import gc
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import time
import unittest
from unittest import mock

import numpy as np

import lodestone
from cluster_case import ClusterCase
from lodestone import _connect, _library


def child_is_refused(cluster, pipe):
    try:
        cluster.flush()
        pipe.send("was not refused")
    except lodestone.FailedPrecondition as error:
        pipe.send(str(error))


class Client(ClusterCase):
    def test_a_dense_table_adds_up_what_is_pushed(self):
        table = self.cluster.dense("d/sum", (2, 3), lodestone.SGD(-1))
        gradient = np.arange(6, dtype=np.float32).reshape(2, 3)
        self.assertIsNone(table.push(gradient).result())
        np.testing.assert_array_equal(table.pull().result(), gradient)
        out = np.zeros((2, 3), np.float32)
        self.assertIs(table.pull(out=out).result(), out)
        np.testing.assert_array_equal(table.push_pull(gradient).result(), 2 * gradient)
        np.testing.assert_array_equal(out, gradient)

    def test_rows_are_those_of_their_keys(self):
        table = self.cluster.embedding("e/sum", 2, lodestone.SGD(-1))
        table.push([7, 9, 7], [[1, 2], [3, 4], [10, 20]]).result()
        keys = np.array([[9, 7], [7, 100]])
        rows = table.pull(keys).result()
        np.testing.assert_array_equal(rows, [[[3, 4], [11, 22]], [[11, 22], [0, 0]]])
        after = table.push_pull([9], [[1, 1]], pull_keys=[7, 9]).result()
        np.testing.assert_array_equal(after, [[11, 22], [4, 5]])
        self.assertEqual(table.pull([]).result().shape, (0, 2))

    def test_several_tables_are_one_update(self):
        dense = self.cluster.dense("m/d", 4, lodestone.SGD(-1))
        rows = self.cluster.embedding("m/e", 1, lodestone.SGD(-1))
        self.cluster.push({dense: np.ones(4), rows: ([1, 2], np.ones((2, 1)))}).result()
        pull = self.cluster.pull([dense, (rows, [2, 3])])
        read = pull.result()
        np.testing.assert_array_equal(read[dense], np.ones(4))
        np.testing.assert_array_equal(read[rows], [[1], [0]])
        self.assertEqual(pull.versions.shape, (self.cluster.shards,))
        self.assertGreater(int(pull.versions.max()), 0)
        both = self.cluster.push_pull({dense: np.ones(4)}, [dense], read=pull)
        np.testing.assert_array_equal(both.result()[dense], 2 * np.ones(4))

    def test_what_is_read_is_of_the_same_connection(self):
        table = self.cluster.dense("m/read", 4)
        with self.local.observe() as observer:
            other = observer.table("m/read").pull()
            for push in (lambda: table.push(np.ones(4), read=other), lambda: table.push_pull(np.ones(4), read=[other])):
                with self.assertRaisesRegex(lodestone.InvalidArgument, "another connection"):
                    push()

    def test_out_is_of_tables_that_are_read(self):
        tables = [self.cluster.dense(f"m/out{i}", 2) for i in range(2)]
        with self.assertRaisesRegex(lodestone.InvalidArgument, "m/out1.* is not read"):
            self.cluster.pull(tables[:1], out={tables[1]: np.zeros(2, np.float32)})

    def test_numbers_do_not_wrap(self):
        table = self.cluster.dense("m/wrap", 2)
        for call in (lambda: table.push([1, 1], clock=-1), lambda: table.push([1, 1], clock=2**64),
                     lambda: self.cluster.report(clock=-1), lambda: self.cluster.report(samples=-5),
                     lambda: self.cluster.await_clock(-1)):
            with self.assertRaisesRegex(lodestone.InvalidArgument, "must be from 0 to"):
                call()

    def test_a_table_is_subscribed_to_once(self):
        table, again = self.cluster.dense("m/twice", 2), self.cluster.table("m/twice")
        for tables in ((table, table), (table, again)):
            with self.assertRaisesRegex(lodestone.InvalidArgument, "`m/twice` is given twice"):
                self.cluster.subscribe(*tables)
        table.push([1, 1]).result()

    def test_a_table_that_exists_is_found_with_its_settings(self):
        self.cluster.dense("f/x", [2, 2], lodestone.Adam(1e-3), lodestone.Constant(3), broadcast={"every_ms": 20})
        found = self.cluster.table("f/x")
        self.assertEqual(found.shape, (2, 2))
        self.assertAlmostEqual(found.spec["optimizer"]["learning_rate"], 1e-3)
        np.testing.assert_array_equal(found.pull().result(), np.full((2, 2), 3))
        with self.local.observe() as observer:  # Tables that exist keep their settings for it.
            opened = observer.dense("f/x", [2, 2], lodestone.Adam(0.5), lodestone.Constant(3))
            self.assertAlmostEqual(opened.spec["optimizer"]["learning_rate"], 1e-3)
            np.testing.assert_array_equal(observer.table("f/x").pull().result(), np.full((2, 2), 3))
        with self.assertRaisesRegex(lodestone.NotFound, "no table `f/none`"):
            self.cluster.table("f/none")
        with self.assertRaisesRegex(lodestone.LodestoneError, "f/x"):
            self.cluster.dense("f/x", [3])

    def test_calls_are_awaited_together(self):
        table = self.cluster.embedding("a/e", 1, lodestone.SGD(-1))

        async def train():
            for _ in range(20):
                await table.push([1], [[1.0]])
            return await asyncio.gather(*(table.pull([key]) for key in range(30)))

        rows = asyncio.run(train())
        self.assertEqual(float(rows[1][0, 0]), 20)
        self.assertEqual(float(rows[2][0, 0]), 0)

    def test_callbacks_run_once_each(self):
        table = self.cluster.dense("c/d", 2)
        done = []
        call = table.pull()
        call.add_done_callback(done.append)
        call.add_done_callback(done.append)
        call.result()
        table.pull().result()
        while len(done) < 2:
            call.done()
        call.add_done_callback(done.append)
        while len(done) < 3:
            pass
        self.assertEqual(done, [call] * 3)

    def test_many_calls_that_nothing_waits_for_are_let_go(self):
        table = self.cluster.embedding("g/e", 4, lodestone.SGD(-1))
        for step in range(500):
            table.push([step % 7], np.ones((1, 4)))
        for _ in range(500):
            table.pull(np.arange(64))
        self.cluster.flush()
        gc.collect()
        self.assertEqual(float(table.pull(np.arange(7)).result().sum()), 500 * 4)
        table.pull([1]).result()
        self.assertLess(len(self.cluster._in_flight), 100)

    def test_arrays_that_are_not_copied_are_sent_from_where_they_lie(self):
        table = self.cluster.dense("b/d", 300_000, lodestone.SGD(-1))
        gradient = np.ones(300_000, np.float32)
        for _ in range(5):
            table.push(gradient, copy=False).result()
        self.assertEqual(float(table.pull().result().min()), 5)

    def test_what_cannot_be_is_refused_with_a_reason(self):
        table = self.cluster.embedding("r/e", 2)
        with self.assertRaisesRegex(lodestone.InvalidArgument, r"r/e.*must be \[1, 2\]"):
            table.push([1], [[1, 2, 3]])
        with self.assertRaisesRegex(lodestone.LodestoneError, "r/e"):
            table.push([1], [[float("nan"), 0]]).result()
        self.cluster.flush()  # That one was asked for.
        table.push([1], [[0, float("inf")]])
        with self.assertRaisesRegex(lodestone.LodestoneError, "r/e"):
            self.cluster.flush()
        self.cluster.flush()
        with self.assertRaises(TypeError):
            self.cluster.dense()
        with self.assertRaisesRegex(lodestone.InvalidArgument, "optimizer"):
            self.cluster.dense("r/x", 2, {"adamm": {}})

    def test_gradients_have_the_shape_of_their_keys(self):
        table = self.cluster.embedding("shape/e", 2, lodestone.SGD(-1))
        for keys in ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])):
            self.assertEqual(table.pull(keys).result().shape, (2, 2, 2))
            for shape in ((4, 2), (2, 2, 2)):
                table.push(keys, np.ones(shape)).result()
            table.push(keys, np.ones((2, 2, 2)).tolist()).result()
            for shape in ((8,), (2, 4), (1, 8), (4, 1, 2)):
                with self.assertRaisesRegex(lodestone.InvalidArgument, r"shape/e.*must be \[4, 2\]"):
                    table.push(keys, np.ones(shape))
        np.testing.assert_array_equal(table.pull([4]).result(), [[6, 6]])

    def test_steps_go_on_from_the_greatest(self):
        with mock.patch.object(_library.library(), "push", wraps=_library.library().push) as push, \
                mock.patch.object(_library.library(), "report", wraps=_library.library().report) as report:
            table = self.cluster.dense("steps", 1)
            for clock in (None, 100, None, 7, None):
                table.push([1], clock=clock).result()
            self.cluster.report()
            self.cluster.report(clock=200)
            self.cluster.report(samples=1)
            table.push([1]).result()
        self.assertEqual([call.args[1] for call in push.call_args_list], [1, 100, 101, 7, 102, 201])
        self.assertEqual([call.args[1] for call in report.call_args_list], [102, 200, 200])

    def test_a_configuration_is_changed_only_by_what_is_given(self):
        config = {"cluster": {"name": "other"}, "coordinator": {"join_timeout_ms": 300}}
        read = lambda **given: json.loads(_connect._config_text("a:1", **{
            "cluster": None, "token": None, "tls": None, "worker": None, "timeout": None, "config": config, **given}))
        self.assertEqual(read(), {"cluster": {"name": "other"},
                                  "coordinator": {"join_timeout_ms": 300, "address": "a:1"}})
        found = read(cluster="mine", timeout=2.0)
        self.assertEqual((found["cluster"]["name"], found["coordinator"]["join_timeout_ms"]), ("mine", 2000))
        with self.assertRaisesRegex(lodestone.LodestoneError, "other"):
            lodestone.connect(self.local.address, config=config)

    def test_a_subscription_follows(self):
        table = self.cluster.dense("s/d", 5, lodestone.SGD(-1), broadcast={"every_ms": 5})
        into = np.full(5, 9, np.float32)
        with self.cluster.subscribe(table, into=[into]) as subscription:
            self.assertTrue(subscription.refresh())
            np.testing.assert_array_equal(into, np.zeros(5))
            for step in range(1, 4):
                table.push(np.ones(5))
                while into[0] < step:
                    subscription.refresh(wait=True)
                np.testing.assert_array_equal(into, np.full(5, step))
            table.push(np.ones(5))
            for arrays in subscription:
                if arrays[0][4] == 4:
                    break
            self.assertGreater(int(subscription.versions.max()), 0)

    def test_a_subscription_refreshes_in_the_background(self):
        table = self.cluster.dense("s/b", 3, lodestone.SGD(-1), broadcast={"every_ms": 5})
        subscription = self.cluster.subscribe(table).start()
        table.push(np.ones(3)).result()
        while subscription.arrays[0][2] < 1:
            pass
        subscription.close()
        subscription.close()
        with self.assertRaises(lodestone.FailedPrecondition):
            subscription.refresh()

    def test_rows_are_followed(self):
        table = self.cluster.embedding("s/rows", 2, lodestone.SGD(-1))
        other = self.cluster.embedding("s/others", 2, lodestone.SGD(-1))
        into = np.full((2, 2, 2), 9, np.float32)
        with self.cluster.subscribe(table, keys=[[3, 5], [5, 2**63 + 1]], into=into, every=0.001) as following:
            self.assertTrue(following.refresh())
            np.testing.assert_array_equal(into, np.zeros((2, 2, 2)))
            self.assertFalse(following.refresh())
            self.assertFalse(following.refresh(timeout=0.01, wait=True))
            other.push(range(64), np.ones((64, 2))).result()  # In the same shards.
            self.assertFalse(following.refresh())
            table.push([5], [[1, 2]])
            self.assertTrue(following.refresh(wait=True))
            np.testing.assert_array_equal(into, [[[0, 0], [1, 2]], [[1, 2], [0, 0]]])
            table.push([2**63 + 1], [[4, 4]], read=following)
            for arrays in following:
                np.testing.assert_array_equal(arrays[0][1][1], [4, 4])
                break
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "closed"):
            following.refresh()
        for tables, keys in (([table], None), ([self.cluster.dense("s/no", 2)], [1]), ([table, table], [1])):
            with self.assertRaisesRegex(lodestone.InvalidArgument, "keys="):
                self.cluster.subscribe(*tables, keys=keys)

    def test_rows_are_followed_by_broadcasts(self):
        table = self.cluster.embedding("s/sent", 2, lodestone.SGD(-1), broadcast={"every_ms": 5},
                                       eviction={"ttl_ms": 1000})
        into = np.full((2, 2, 2), 9, np.float32)
        with self.cluster.subscribe(table, keys=[[3, 5], [5, 2**63 + 1]], into=into, every=None) as following:
            self.assertIsInstance(following, lodestone.RowBroadcasts)
            self.assertTrue(following.refresh())
            np.testing.assert_array_equal(into, np.zeros((2, 2, 2)))
            table.push([3, 5], [[3, 3], [1, 2]]).result()
            while into[0][0][0] != 3 or into[0][1][0] != 1:
                following.refresh(wait=True)
            np.testing.assert_array_equal(into, [[[3, 3], [1, 2]], [[1, 2], [0, 0]]])
            table.push([2**63 + 1], [[4, 4]], read=following)
            for arrays in following:
                if arrays[0][1][1][0] == 4:
                    break
            while into.any():  # Rows that nobody uses are evicted: they are what they would begin with again.
                following.refresh(wait=True)
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "closed"):
            following.refresh()

    def test_rows_are_followed_in_the_background_by_an_observer(self):
        table = self.cluster.embedding("s/back", 1, lodestone.SGD(-1))
        with self.local.observe() as observer:
            following = observer.subscribe(observer.table("s/back"), keys=[7], every=0.001).start()
            table.push([7], [[1]])
            while following.arrays[0][0, 0] < 1:
                pass
        self.assertIsNone(following._thread)

    def test_a_second_client_sees_the_first_ones_pushes(self):
        table = self.cluster.dense("t/d", 2, lodestone.SGD(-1))
        table.push([1, 2]).result()
        with lodestone.connect(self.local.address) as other:
            self.assertNotEqual(other.index, self.cluster.index)
            np.testing.assert_array_equal(other.table("t/d").pull().result(), [1, 2])

    def test_an_observer_reads_what_workers_train_and_takes_no_place(self):
        table = self.cluster.dense("o/d", 3, lodestone.SGD(-1), broadcast={"every_ms": 5})
        rows = self.cluster.embedding("o/e", 2, lodestone.SGD(-1))
        rows.push([4], [[1, 2]]).result()
        with self.local.observe() as observer:
            self.assertIsNone(observer.index)
            found = observer.table("o/d")
            subscription = observer.subscribe(found).start()
            table.push([1, 2, 3]).result()
            while subscription.arrays[0][2] < 3:
                pass
            np.testing.assert_array_equal(observer.table("o/e").pull([4, 5]).result(), [[1, 2], [0, 0]])
            with self.assertRaisesRegex(lodestone.FailedPrecondition, "observes"):
                found.push([1, 1, 1])
            with self.assertRaises(lodestone.FailedPrecondition):
                observer.await_clock(1)
        workers = lodestone.status(self.local.address)["cluster"]["workers"]
        self.assertEqual(sum(worker.get("alive", False) for worker in workers), 1)

    def test_a_closed_cluster_says_so(self):
        for _ in range(10):  # What is in flight uses the tables to its end.
            other = lodestone.connect(self.local.address)
            table = other.dense("x/d", 20_000)
            pulls = [table.pull() for _ in range(50)]
            other.close()
            other.close()
            for pull in pulls:
                self.assertTrue(pull.done())
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "connect again"):
            table.pull()

    def test_tables_of_another_connection_are_refused(self):
        other = lodestone.connect(self.local.address)
        dense, rows = other.dense("x/of_another", 4), other.embedding("x/rows_of_another", 2)
        for end in (lambda: None, other.close):  # Once it is closed they are gone.
            end()
            for call in (lambda: self.cluster.push({dense: np.ones(4)}), lambda: self.cluster.pull([dense]),
                         lambda: self.cluster.push_pull({rows: ([1], [[1, 1]])}, [(rows, [1])]),
                         lambda: self.cluster.subscribe(dense), lambda: self.cluster.subscribe(rows, keys=[1], every=None)):
                with self.assertRaisesRegex(lodestone.InvalidArgument, "of_another` was opened by another connection"):
                    call()
        with self.assertRaisesRegex(lodestone.InvalidArgument, "a table is needed.* and not str"):
            self.cluster.pull(["x/of_another"])

    def test_a_subscription_that_is_closed_ends_at_the_servers(self):
        table = self.cluster.dense("x/ends", 100, broadcast={"every_ms": 5})
        rows = self.cluster.embedding("x/rows_end", 2, broadcast={"every_ms": 5})
        with self.cluster.subscribe(table) as kept:
            kept.refresh()
            for _ in range(3):
                with self.cluster.subscribe(table) as ends, self.cluster.subscribe(rows, keys=[1, 2], every=None) as rows_end:
                    ends.refresh()
                    rows_end.refresh()
            while len(lodestone.status(self.local.address)["subscribers"]) != 1:  # The one that is kept.
                time.sleep(0.01)
            table.push(np.ones(100)).result()
            self.assertTrue(kept.refresh(wait=True))

    def test_every_place_taken_is_said(self):
        with self.assertRaisesRegex(lodestone.DeadlineExceeded, "places for a worker are held"):
            for _ in range(9):
                self.addCleanup(lodestone.connect(self.local.address, timeout=0.5).close)

    def test_a_forked_child_is_refused_and_the_parent_goes_on(self):
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=child_is_refused, args=(self.cluster, there))
        child.start()
        self.assertIn("spawn", here.recv())
        child.join()
        self.assertEqual(child.exitcode, 0)
        here.close()
        there.close()
        self.cluster.flush()

    def test_a_hundred_forks_while_calls_are_in_flight(self):
        table = self.cluster.embedding("k/e", 8, lodestone.SGD(-1))
        for _ in range(100):
            table.push(np.arange(100), np.ones((100, 8)))
            child = os.fork()
            if child == 0:
                os._exit(0)  # As a DataLoader's worker that never uses the cluster.
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.cluster.flush()
        self.assertEqual(float(table.pull([5]).result()[0, 0]), 100)

    def test_status_needs_no_place(self):
        self.cluster.dense("st/d", 2)
        found = lodestone.status(self.local.address)
        self.assertIn("st/d", [table["name"] for table in found["tables"]])
        text = subprocess.run([sys.executable, "-m", "lodestone", "status", self.local.address], check=True,
                              capture_output=True, text=True).stdout
        self.assertIn("st/d", text)

    def test_warnings_go_to_logging(self):
        with self.assertLogs("lodestone", logging.INFO) as logs:
            lodestone.log_level(logging.INFO)
            lodestone.connect(self.local.address).close()
            lodestone.log_level()
        self.assertTrue(any("connected" in line for line in logs.output), logs.output)

    def test_a_script_that_closes_nothing_ends_by_itself(self):
        script = ("import lodestone, sys\n"
                  "c = lodestone.connect(sys.argv[1])\n"
                  "t = c.dense('z/d', 4)\n"
                  "s = c.subscribe(t).start()\n"
                  "t.push([1, 2, 3, 4])\n"
                  "t.pull().add_done_callback(lambda call: None)\n"
                  "print('end')\n")
        ended = subprocess.run([sys.executable, "-c", script, self.local.address], check=False, capture_output=True,
                               text=True)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "end\n", ""))


if __name__ == "__main__":
    unittest.main()
