"""What ends while other threads use it, and what Ctrl-C leaves behind."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy as np

import lodestone
from cluster_case import ClusterCase
from lodestone import _connection, _library


class Held:
    """A function of the library that is not left, or not entered, until the test says so."""

    def __init__(self, test, name, after=False):
        self.real = getattr(_library.library(), name)
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.after = after
        self.calls = 0
        patch = mock.patch.object(_library.library(), name, self)
        patch.start()
        test.addCleanup(patch.stop)
        test.addCleanup(self.go_on.set)

    def __call__(self, *arguments):
        self.calls += 1
        result = self.real(*arguments) if self.after else None
        self.entered.set()
        self.go_on.wait()
        return result if self.after else self.real(*arguments)


class Counted:
    """A function of the library whose calls are counted."""

    def __init__(self, test, name):
        self.real = getattr(_library.library(), name)
        self.calls = 0
        self.called = threading.Event()
        patch = mock.patch.object(_library.library(), name, self)
        patch.start()
        test.addCleanup(patch.stop)

    def __call__(self, *arguments):
        self.calls += 1
        result = self.real(*arguments)
        self.called.set()
        return result


def interrupting(name):
    """Has Ctrl-C come just after a function of the library has returned."""
    real = getattr(_library.library(), name)

    def call(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    return mock.patch.object(_library.library(), name, call)


def start(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


class Closing(ClusterCase):
    def test_the_client_stays_while_another_thread_is_in_it(self):
        other = lodestone.connect(self.local.address)
        table = other.dense("used", (2, 3))
        held, disconnected = Held(self, "health"), Counted(self, "disconnect")
        thread = start(other.check)
        held.entered.wait()
        other.close()
        self.assertEqual(disconnected.calls, 0)
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "connect again"):
            other.report()
        self.assertEqual(table.size, 6)
        held.go_on.set()
        thread.join()
        self.assertEqual(disconnected.calls, 1)
        self.assertEqual(table.size, 6)
        other.close()
        self.assertEqual(disconnected.calls, 1)

    def test_closing_waits_for_a_call_that_ends(self):
        other = lodestone.connect(self.local.address)
        held, disconnected = Held(self, "health"), Counted(self, "disconnect")
        thread = start(other.check)
        held.entered.wait()
        with mock.patch("lodestone._connection.CLOSE_SECONDS", 3600):
            closing = start(other.close)
            held.go_on.set()
            closing.join()
        self.assertEqual(disconnected.calls, 1)
        thread.join()

    def test_what_ctrl_c_left_in_the_client_ends_it(self):
        script = ("import lodestone, sys, threading\n"
                  "from lodestone._library import library\n"
                  "real = library().await_clock\n"
                  "def entering(*arguments):\n"
                  "    print('waits', flush=True)\n"
                  "    real(*arguments)\n"
                  "library().await_clock = entering\n"
                  "with lodestone.connect(sys.argv[1]) as cluster:\n"
                  "    try:\n"
                  "        cluster.await_clock(10**9)\n"
                  "    except KeyboardInterrupt:\n"
                  "        pass\n"
                  "print('end')\n")
        program = subprocess.Popen([sys.executable, "-c", script, self.local.address], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertEqual(program.stdout.readline(), "waits\n")
        program.send_signal(signal.SIGINT)
        self.assertEqual((*program.communicate(), program.returncode), ("end\n", "", 0))

    def test_malloc_keeps_what_messages_were_in_unless_the_environment_says_how_it_works(self):
        # glibc marks memory that is a mapping of its own, which free() gives back, by a bit before it.
        script = ("import ctypes, lodestone\n"
                  "malloc = ctypes.CDLL(None).malloc\n"
                  "malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]\n"
                  "mapped = lambda size: bool(ctypes.c_size_t.from_address(malloc(size) - 8).value & 2)\n"
                  "before = mapped(8 << 20)\n"
                  "lodestone._library.library()\n"
                  "print(before, mapped(8 << 20), mapped(64 << 20))\n")
        own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
        for environment, expected in ((own, "True False True\n"), ({**own, "MALLOC_ARENA_TEST": "8"}, "True True True\n")):
            found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment)
            self.assertEqual(found.stdout, expected)

    def test_a_subscription_stays_while_another_thread_waits_on_it(self):
        released = Counted(self, "subscription_release")
        subscription = self.cluster.subscribe(self.cluster.dense("followed", 2))
        subscription.refresh()
        held = Held(self, "subscription_wait")
        found = []
        thread = start(lambda: found.append(subscription.refresh(wait=True)))
        held.entered.wait()
        subscription.close()
        self.assertEqual(released.calls, 0)
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "closed"):
            subscription.refresh()
        held.go_on.set()
        thread.join()
        self.assertEqual((released.calls, found), (1, [False]))

    def test_a_with_statement_whose_flush_fails_closes(self):
        with self.assertRaisesRegex(lodestone.LodestoneError, "flushed"):
            with lodestone.connect(self.local.address) as other:
                other.embedding("flushed", 1).push([1], [[float("nan")]])
        with self.assertRaisesRegex(lodestone.FailedPrecondition, "connect again"):
            other.check()

    def test_a_push_that_failed_after_a_wait_that_was_too_short_is_raised_by_flush(self):
        push = self.cluster.embedding("too/short", 1).push([1], [[float("nan")]])
        for wait in (push.result, push.exception):
            with mock.patch("lodestone._call.wait_for_call", lambda handle, timeout: False):
                with self.assertRaises(TimeoutError):
                    wait(timeout=0)
        with self.assertRaisesRegex(lodestone.LodestoneError, "too/short"):
            self.cluster.flush()

    def test_a_push_that_failed_unseen_is_logged_at_the_end(self):
        other = lodestone.connect(self.local.address)
        push = other.embedding("unseen", 1).push([1], [[float("nan")]])
        while not push.done():
            pass
        other._forget_pushes()
        with self.assertLogs("lodestone", logging.WARNING) as logs:
            other.close()
        self.assertIn("unseen", "\n".join(logs.output))


class Dropped(ClusterCase):
    def drop(self, begin):
        """Begins calls of a cluster that goes without close(); its place."""
        other = lodestone.connect(self.local.address)
        begin(other)
        return other.index

    def test_what_calls_of_a_dropped_cluster_use_stays_until_it_is_left(self):
        held, gone = Held(self, "disconnect"), threading.Event()

        def begin(cluster):
            out = np.zeros(1000, np.float32)
            weakref.finalize(out, gone.set)
            cluster.dense("dropped", 1000).pull(out)

        with self.assertLogs("lodestone", logging.WARNING):
            place = self.drop(begin)
            gc.collect()
            self.assertTrue(held.entered.wait(60))
        self.assertFalse(gone.is_set())
        held.go_on.set()
        self.assertTrue(gone.wait(60))
        lodestone.connect(self.local.address, worker=place).close()

    def test_places_of_dropped_clusters_are_free_for_the_next(self):
        gc.disable()
        self.addCleanup(gc.enable)
        logging.getLogger("lodestone").setLevel(logging.ERROR)
        self.addCleanup(logging.getLogger("lodestone").setLevel, logging.NOTSET)
        for _ in range(10):  # Of 8.
            self.drop(lambda cluster: cluster.dense("places", 2).pull())
        gc.collect()
        while len(_connection._open) > 1:  # That of this test.
            time.sleep(0.01)

    def test_a_dropped_cluster_with_a_subscription_says_what_to_do(self):
        freed, left = Counted(self, "subscription_release"), Counted(self, "disconnect")
        with self.assertLogs("lodestone", logging.WARNING) as logs:
            self.drop(lambda cluster: (cluster.subscribe(cluster.dense("followed", 2)), cluster.dense("followed", 2).pull()))
            gc.collect()
            self.assertTrue(left.called.wait(60))
        self.assertIn("dropped without close()", "\n".join(logs.output))
        self.assertEqual(freed.calls, 1)

    def test_a_call_or_a_table_that_is_held_holds_its_cluster(self):
        left = Counted(self, "disconnect")
        table = lodestone.connect(self.local.address).dense("held", 2, lodestone.SGD(-1))
        gc.collect()
        table.push([1, 2]).result()
        pull = table.pull()
        cluster = table.cluster
        del table
        cluster.close()
        del cluster
        self.assertEqual(left.calls, 1)
        self.assertIsInstance(pull.exception(), (type(None), lodestone.Cancelled))

    def test_what_a_forked_child_leaves_is_its_parents(self):
        script = ("import lodestone, os, sys\n"
                  "with lodestone.local(servers=1) as servers:\n"
                  "    if os.fork() == 0:\n"
                  "        sys.exit(0)\n"
                  "    print(os.wait()[1], os.path.exists(servers._folder))\n"
                  "    servers.connect().close()\n"
                  "print(os.path.exists(servers._folder))\n")
        ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "0 True\nFalse\n", ""))


class Threads(ClusterCase):
    def test_a_push_in_flight_is_not_forgotten_by_two_threads(self):
        calls, cluster = [], self.cluster

        class Racing:
            _error, _asked = None, False

            def __init__(self, ended):
                self.ended = ended

            def done(self):  # Another thread removes it between the look at the oldest and its removal.
                if self.ended and self in cluster._pushes:
                    calls.append(cluster._pushes.popleft())
                return self.ended

        ended, under_way = Racing(True), Racing(False)
        cluster._pushes.extend([ended, under_way])
        cluster._forget_pushes()
        self.assertEqual((calls, list(cluster._pushes)), ([ended], [under_way]))
        cluster._pushes.clear()
        cluster._pushes.append(Racing(True))
        cluster._forget_pushes()
        self.assertEqual(list(cluster._pushes), [])

    def test_threads_that_push_and_flush(self):
        table = self.cluster.embedding("many", 1, lodestone.SGD(-1))
        errors = []

        def push():
            try:
                for _ in range(200):
                    table.push([1], [[1]])
                self.cluster.flush()
            except BaseException as error:
                errors.append(error)

        threads = [start(push) for _ in range(4)]
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(float(table.pull([1]).result()[0, 0]), 800)


class Copies(ClusterCase):
    def failing(self, name):
        """A pull whose values cannot be copied to where they are wanted."""
        table = self.cluster.dense(name, 2)
        out = np.zeros(2)
        with mock.patch("lodestone._tables.target", lambda _, shape, what: (np.empty(shape, np.float32), self.fail_to_copy)):
            return table, table.pull(out=out)

    @staticmethod
    def fail_to_copy():
        raise OSError("no copy")

    def test_a_copy_that_fails_is_the_calls_own_error(self):
        table, call = self.failing("copy/result")
        with self.assertRaisesRegex(OSError, "no copy"):
            call.result()
        self.assertIsInstance(call.exception(), OSError)
        calls = [self.failing("copy/result")[1]]
        for _ in range(40):  # None of these is to blame.
            calls.append(table.pull())
        table.push([1, 1]).result()
        self.cluster.close()
        self.assertIsInstance(calls[0].exception(), OSError)

    def test_callbacks_go_on_after_a_copy_that_fails(self):
        table, call = self.failing("copy/callback")
        ended, next_ended = threading.Event(), threading.Event()
        call.add_done_callback(lambda _: ended.set())
        self.assertTrue(ended.wait(60))
        table.pull().add_done_callback(lambda _: next_ended.set())
        self.assertTrue(next_ended.wait(60))

        async def wait():
            await self.failing("copy/await")[1]

        with self.assertRaisesRegex(OSError, "no copy"):
            asyncio.run(wait())


class CtrlC(ClusterCase):
    def test_buffers_of_a_call_stay_when_ctrl_c_follows_its_start(self):
        table = self.cluster.embedding("kept", 1, lodestone.SGD(-1))
        for name, begin in (("push", lambda: table.push([1], [[1]])), ("pull", lambda: table.pull([1])),
                            ("push_pull", lambda: table.push_pull([1], [[1]]))):
            before = set(self.cluster._in_flight)
            with interrupting(name), self.assertRaises(KeyboardInterrupt):
                begin()
            started = set(self.cluster._in_flight) - before
            self.assertEqual([call._keep is not None for call in started], [True], name)
            self.assertEqual(len(self.cluster._pushes), name != "pull", name)
            self.cluster.flush()
        self.assertEqual(float(table.pull([1]).result()[0, 0]), 2)

    def test_a_call_that_does_not_start_is_not_in_flight(self):
        table = self.cluster.dense("not", 1)
        before = set(self.cluster._in_flight)
        with mock.patch.object(_library.library(), "pull", mock.Mock(side_effect=lodestone.Unavailable("none"))):
            with self.assertRaises(lodestone.Unavailable):
                table.pull()
        self.assertLessEqual(self.cluster._in_flight, before)

    def interrupted(self, held, function):
        """Runs a function and has Ctrl-C come once it is in a function of the library."""
        real, interrupts = threading.Event.wait, [KeyboardInterrupt()]

        def wait(event, timeout=None):
            if interrupts and timeout == _library._SLICE_SECONDS and threading.current_thread() is threading.main_thread():
                while not held.entered.is_set():
                    if real(event, 0.01):
                        return True
                raise interrupts.pop()
            return real(event, timeout)

        with mock.patch.object(threading.Event, "wait", wait), self.assertRaises(KeyboardInterrupt):
            function()

    def test_a_connection_that_comes_after_ctrl_c_is_given_back(self):
        held, left = Held(self, "connect", after=True), Counted(self, "disconnect")
        self.interrupted(held, lambda: lodestone.connect(self.local.address))
        held.go_on.set()
        self.assertTrue(left.called.wait(60))
        self.assertEqual(left.calls, 1)

    def test_an_assignment_that_ctrl_c_ends_restores_the_settings_last(self):
        table = self.cluster.dense("assigned", 2, lodestone.SGD(0.25))
        texts, held, restoring = [], mock.Mock(entered=threading.Event()), threading.Event()
        real = _library.library().table_open

        def late(handle, text, out):
            if held.entered.is_set():
                restoring.set()
            else:
                held.entered.set()
                restoring.wait(0.5)  # For what must not come before this has ended.
            real(handle, text, out)
            texts.append(text)

        with mock.patch.object(_library.library(), "table_open", late):
            self.interrupted(held, lambda: table.assign([1, 2]))
        self.assertEqual([b'"clip"' in text for text in texts], [True, False])
        self.assertEqual(self.cluster.table("assigned").spec["optimizer"]["learning_rate"], 0.25)


if __name__ == "__main__":
    unittest.main()
