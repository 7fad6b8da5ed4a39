"""Values that follow the cluster's by its broadcasts."""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence

from ._arrays import target
from ._errors import InvalidArgument
from ._library import library

if TYPE_CHECKING:
    from ._cluster import Cluster
    from ._tables import Dense

_SLICE_MS = 100


class Subscription:
    """Arrays that follow dense tables: `arrays` are float32 of the tables' shapes, in their order.

    refresh() brings them to the newest broadcast. `for arrays in subscription` waits for the next one each time.
    start() refreshes them in the background, in place, while the program reads them: each block of a table (64 Ki
    elements by default) is of one version, different blocks may be of different ones.

    How often servers broadcast is the table's setting: broadcast={"every_ms": 100} by default.
    """

    _reads = frozenset({"dense"})

    def __init__(self, cluster: "Cluster", tables: Sequence["Dense"], into: Optional[Sequence[Any]]):
        import numpy as np

        if into is not None and len(into) != len(tables):
            raise InvalidArgument(f"into has {len(into)} arrays for {len(tables)} tables")
        self._cluster = cluster
        self.arrays: List[Any] = []
        for i, table in enumerate(tables):
            array, finish = target(None if into is None else into[i], table.shape, f"table `{table.name}`")
            if finish is not None:
                raise InvalidArgument(f"into of table `{table.name}` must be a contiguous float32 array of the host")
            self.arrays.append(array)
        #: The version of each shard that the arrays are at least of, uint64 [shards].
        self.versions = np.zeros(cluster.shards, dtype=np.uint64)
        self._lock = threading.Lock()
        self._stamp = 0  # Of the last copy.
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        handles = (c_void_p * len(tables))(*[table._handle.value for table in tables])
        self._handle: Optional[c_void_p] = c_void_p()
        library().subscribe(cluster._alive(), handles, len(tables), byref(self._handle))

    def refresh(self, timeout: Optional[float] = None, *, wait: bool = False) -> bool:
        """Copies what has come since the last time into `arrays`. The first time it waits until all values are there;
        with `wait` always, until there is something new. False: nothing new (within `timeout` seconds, None: no limit).
        """
        stamp = c_uint64(self._stamp)
        if not self._wait(stamp, timeout if wait or self._stamp == 0 else 0.0):
            return False
        with self._lock:
            pointers = (c_void_p * len(self.arrays))(*[array.ctypes.data for array in self.arrays])
            copied = c_uint64(0)
            library().subscription_copy(self._alive(), pointers, self._stamp, byref(copied), self.versions.ctypes.data,
                                        self._cluster.shards)
            self._stamp = copied.value
        return True

    def _wait(self, stamp: c_uint64, timeout: Optional[float]) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        before = stamp.value
        while True:
            left = _SLICE_MS if end is None else min(_SLICE_MS, max(0, int((end - time.monotonic()) * 1000)))
            library().subscription_wait(self._alive(), left, byref(stamp))
            if stamp.value > before:
                return True
            self._cluster.check()
            if self._stop.is_set() or (end is not None and time.monotonic() >= end):
                return False

    def __iter__(self) -> Iterator[List[Any]]:
        while not self._stop.is_set() and self.refresh(wait=True):
            yield self.arrays

    def start(self) -> "Subscription":
        """Refreshes the arrays in the background from now on, whenever something comes. Returns itself."""
        self.refresh()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="lodestone-subscription")
            self._thread.start()
        return self

    def _run(self) -> None:
        from ._errors import LodestoneError

        while not self._stop.is_set():
            try:
                self.refresh(timeout=1.0, wait=True)
            except LodestoneError:  # The cluster is closed, or lost: the next call says so.
                return

    def close(self) -> None:
        """Ends it: `arrays` stay as they are. May be repeated."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            library().subscription_release(handle)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()

    def _alive(self) -> c_void_p:
        from ._errors import FailedPrecondition

        if self._handle is None:
            raise FailedPrecondition("the subscription is closed")
        return self._handle


assert ctypes.sizeof(c_void_p) == 8, "liblodestone.so is for 64-bit machines"
