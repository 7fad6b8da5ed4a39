"""Values that follow the cluster's: dense tables by its broadcasts, rows by these or by pulls."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, AbstractSet, Any, Iterator, List, Optional, Sequence, Tuple

from ._arrays import address, keys as keys_of, shape_of, target
from ._errors import FailedPrecondition, InvalidArgument, LodestoneError
from ._library import Handle, library

if TYPE_CHECKING:
    from ._cluster import Cluster
    from ._tables import Dense, Embedding

_SLICE_MS = 100
_CLOSE_SECONDS = 1.0  # For waits of other threads, which take a slice.
_AGAIN_SECONDS = 1.0  # After a refresh in the background that failed.

_log = logging.getLogger("lodestone")


def _followed(into: Any, shape: Tuple[int, ...], name: str) -> Any:
    """The array of this shape that is kept fresh: `into`, or a new one."""
    array, finish = target(into, shape, f"table `{name}`")
    if finish is not None:
        raise InvalidArgument(f"into of table `{name}` must be a contiguous float32 array of the host")
    return array


class Following:
    """What subscriptions have in common. Thread-safe. Close it, or use it in a `with` statement.

    refresh() brings `arrays` to the newest values. `for arrays in subscription` waits for the next ones each time. start()
    refreshes them in the background, in place, while the program reads them.
    """

    _reads: AbstractSet[str] = frozenset()

    def __init__(self, cluster: "Cluster", what: str):
        import numpy as np

        self._cluster = cluster
        self._what = what
        #: float32, in the order of what is followed.
        self.arrays: List[Any] = []
        #: The version of each shard that the arrays are at least of, uint64 [shards].
        self.versions = np.zeros(cluster.shards, dtype=np.uint64)
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def refresh(self, timeout: Optional[float] = None, *, wait: bool = False) -> bool:
        """Brings what has changed since the last time into `arrays`; with `wait` it waits until something has. False:
        nothing has (within `timeout` seconds, None: no limit). Raises FailedPrecondition when it is closed."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[List[Any]]:
        while not self._stop.is_set() and self.refresh(wait=True):
            yield self.arrays

    def _start(self) -> None:
        self.refresh()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="lodestone-subscription")
            self._thread.start()

    def _run(self) -> None:
        failed = False
        while not self._stop.is_set():
            try:
                self.refresh(timeout=1.0, wait=True)
                failed = False
            except LodestoneError as error:
                if self._stop.is_set() or self._is_over():
                    return
                if not failed:
                    _log.warning("what follows %s is not refreshed, and goes on trying: %s", self._what, error)
                failed = True
                self._stop.wait(_AGAIN_SECONDS)

    def _is_over(self) -> bool:
        """Whether the cluster is closed, or lost: the next call says so."""
        try:
            self._cluster.check()
        except LodestoneError:
            return True
        return False

    def close(self) -> None:
        """Ends it: `arrays` stay as they are. May be repeated."""
        self._leave()

    def _leave(self) -> None:
        """Ends what this process does for it."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)  # It may be in a pull from a server that is away.
            self._thread = None


class Broadcasts(Following):
    """What follows broadcasts: the library keeps a copy, of which refresh() takes what has changed."""

    def __init__(self, cluster: "Cluster", what: str):
        super().__init__(cluster, what)
        self._lock = threading.Lock()
        self._stamp = 0  # Of the last copy.
        self._native: Handle

    def _subscribe(self, function: str, *arguments: Any) -> None:
        handle = c_void_p()
        with self._cluster._native as client:
            getattr(library(), function)(client, *arguments, byref(handle))
        self._native = Handle(handle, library().subscription_release, "the subscription is closed")

    def _copy(self, handle: c_void_p, copied: c_uint64) -> None:
        """Copies what has changed since self._stamp; sets `copied`."""
        raise NotImplementedError

    def refresh(self, timeout: Optional[float] = None, *, wait: bool = False) -> bool:
        """Copies what has come since the last time into `arrays`. The first time it waits until all values are there;
        with `wait` always, until there is something new. False: nothing new (within `timeout` seconds, None: no limit).
        """
        stamp = c_uint64(self._stamp)
        if not self._wait(stamp, timeout if wait or self._stamp == 0 else 0.0):
            return False
        with self._lock, self._native as handle:
            copied = c_uint64(0)
            self._copy(handle, copied)
            self._stamp = copied.value
        return True

    def _wait(self, stamp: c_uint64, timeout: Optional[float]) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        before = stamp.value
        while True:
            left = _SLICE_MS if end is None else min(_SLICE_MS, max(0, int((end - time.monotonic()) * 1000)))
            with self._native as handle:
                library().subscription_wait(handle, left, byref(stamp))
            if stamp.value > before:
                return True
            self._cluster.check()
            if self._stop.is_set() or (end is not None and time.monotonic() >= end):
                return False

    def close(self) -> None:
        """Ends it: `arrays` stay as they are. May be repeated."""
        if not self._native.closed:
            # Not on this thread, which may be one of the library's own that runs a callback: the end waits for these.
            ends = threading.Thread(target=self._unsubscribe, daemon=True, name="lodestone-subscription")
            ends.start()
            ends.join(_CLOSE_SECONDS)
        super().close()

    def __del__(self) -> None:
        native = getattr(self, "_native", None)
        if native is not None:
            native.close(0.0)  # Frees the copy; nothing uses it.

    def _unsubscribe(self) -> None:
        try:
            with self._cluster._native as client, self._native as handle:
                library().unsubscribe(client, handle)
        except LodestoneError:  # The cluster is closed: it has ended.
            pass

    def _leave(self) -> None:
        super()._leave()
        self._native.close(_CLOSE_SECONDS)


class Subscription(Broadcasts):
    """Arrays that follow dense tables: `arrays` are float32 of the tables' shapes, in their order.

    refresh() brings them to the newest broadcast. `for arrays in subscription` waits for the next one each time.
    start() refreshes them in the background, in place, while the program reads them: each block of a table (64 Ki
    elements by default) is of one version, different blocks may be of different ones.

    How often servers broadcast is the table's setting: broadcast={"every_ms": 100} by default.
    """

    _reads = frozenset({"dense"})

    def __init__(self, cluster: "Cluster", tables: Sequence["Dense"], into: Optional[Sequence[Any]]):
        super().__init__(cluster, "tables " + ", ".join(f"`{table.name}`" for table in tables))
        if into is not None and len(into) != len(tables):
            raise InvalidArgument(f"into has {len(into)} arrays for {len(tables)} tables")
        for i, table in enumerate(tables):
            self.arrays.append(_followed(None if into is None else into[i], table.shape, table.name))
        handles = (c_void_p * len(tables))(*[table._handle.value for table in tables])
        self._subscribe("subscribe", handles, len(tables))

    def _copy(self, handle: c_void_p, copied: c_uint64) -> None:
        pointers = (c_void_p * len(self.arrays))(*[address(array) for array in self.arrays])
        library().subscription_copy(handle, pointers, self._stamp, byref(copied), address(self.versions),
                                    self._cluster.shards)

    def start(self) -> "Subscription":
        """Refreshes the arrays in the background from now on, whenever something comes. Returns itself."""
        self._start()
        return self

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


class RowBroadcasts(Broadcasts):
    """Rows that follow an embedding table's by its broadcasts: `arrays` has one, float32 [..., dim] of the keys [...].

    Every ps sends all rows of the table once, whatever the keys are, and from then on those that change: for few rows of
    a large table RowSubscription costs less. Rows that the table does not have are what a pull says they would begin with.
    Reading them is no use that evictions count.

    How often servers broadcast is the table's setting: broadcast={"every_ms": 100} by default.
    """

    _reads = frozenset({"rows"})

    def __init__(self, cluster: "Cluster", table: "Embedding", keys: Any, into: Any):
        import numpy as np

        super().__init__(cluster, f"rows of table `{table.name}`")
        self._table = table
        self._keys = keys_of(keys, f"table `{table.name}`").copy()
        self.arrays.append(_followed(into, (*shape_of(keys), table.dim), table.name))
        self._present = np.ones(len(self._keys), dtype=np.uint8)
        self._subscribe("subscribe_rows", table._handle, address(self._keys), len(self._keys))

    def _copy(self, handle: c_void_p, copied: c_uint64) -> None:
        array = self.arrays[0]
        before = self._present.copy()
        library().subscription_copy_rows(handle, address(array), address(self._present), self._stamp, byref(copied),
                                         address(self.versions), self._cluster.shards)
        gone = (before > self._present).nonzero()[0]  # At first: those that were never there.
        if len(gone) == 0:
            return
        try:
            array.reshape(len(self._keys), self._table.dim)[gone] = self._table.pull(self._keys[gone]).result()
        except BaseException:
            self._present[gone] = 1  # The next refresh pulls them.
            raise

    def start(self) -> "RowBroadcasts":
        """Refreshes the array in the background from now on, whenever something comes. Returns itself."""
        self._start()
        return self

    def __enter__(self) -> "RowBroadcasts":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


class RowSubscription(Following):
    """Rows that follow an embedding table's: `arrays` has one, float32 [..., dim] of the keys [...].

    It pulls the rows again every `every` seconds, all of them, and looks at what comes: the shards' versions, and then the
    values. Pulls count as uses where rows are evicted. RowBroadcasts has what changes sent by the servers instead.
    """

    _reads = frozenset({"rows"})

    def __init__(self, cluster: "Cluster", table: "Embedding", keys: Any, into: Any, every: float):
        super().__init__(cluster, f"rows of table `{table.name}`")
        self._table = table
        self._keys = keys_of(keys, f"table `{table.name}`").copy()
        self.arrays.append(_followed(into, (*shape_of(keys), table.dim), table.name))
        self._every = every
        self._lock = threading.Lock()
        self._pulled = False
        self._next = 0.0

    def refresh(self, timeout: Optional[float] = None, *, wait: bool = False) -> bool:
        """Pulls the rows. True: they are others than the last time, or it is the first time. With `wait` it does so every
        `every` seconds until they are, at most for `timeout` seconds (None: no limit)."""
        end = None if timeout is None else time.monotonic() + timeout
        while not wait or self._pause(end):
            if self._pull():
                return True
            if not wait:
                return False
        return False

    def _pause(self, end: Optional[float]) -> bool:
        """Waits until the next pull is due; False if that is too late, or it is closed."""
        due = self._next if end is None else min(self._next, end)
        self._stop.wait(max(0.0, due - time.monotonic()))
        return not self._stop.is_set() and (end is None or self._next <= end)

    def _pull(self) -> bool:
        import numpy as np

        with self._lock:
            if self._stop.is_set():
                raise FailedPrecondition("the subscription is closed")
            call = self._table.pull(self._keys)
            rows = call.result()
            self._next = time.monotonic() + self._every
            if self._pulled and np.array_equal(call.versions, self.versions):
                return False
            self.versions = call.versions
            rows = rows.reshape(self.arrays[0].shape)
            if self._pulled and np.array_equal(rows, self.arrays[0]):
                return False
            self._pulled = True
            self.arrays[0][...] = rows
            return True

    def start(self) -> "RowSubscription":
        """Refreshes the array in the background from now on. Returns itself."""
        self._start()
        return self

    def __enter__(self) -> "RowSubscription":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


assert ctypes.sizeof(c_void_p) == 8, "liblodestone.so is for 64-bit machines"
