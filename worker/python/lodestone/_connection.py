"""The native client of a cluster, and the end of one whose Cluster is dropped without close()."""

from __future__ import annotations

import gc
import logging
import queue
import threading
import weakref
from ctypes import c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Set

from ._library import Handle, library

if TYPE_CHECKING:
    from ._call import Call

CLOSE_SECONDS = 2.0  # What close() waits for other threads.

_log = logging.getLogger("lodestone")


class Connection:
    """The native client, and the memory that its calls read from and write to. Thread-safe.

    It refers to no Cluster, Table or Call, which refer to each other and are collected together: this stays until the
    client has let go of that memory.
    """

    def __init__(self, handle: c_void_p, ended: "weakref.WeakMethod[Callable[[], None]]"):
        # `ended`: runs once the client has ended, if there still is what it belongs to.
        self.native = Handle(handle, self._disconnect, "the cluster is closed: connect again")
        self._ended = ended
        self._kept: Dict[int, Any] = {}  # By call, until that has ended.
        _open.add(self)

    def keep(self, call: "Call[Any]") -> None:
        """Keeps what the call uses until forget(), or until the client has ended."""
        self._kept[id(call)] = call._keep

    def forget(self, call: "Call[Any]") -> None:
        """The call has ended, or was not begun."""
        self._kept.pop(id(call), None)

    def close(self) -> None:
        """Leaves the cluster; see Cluster.close(). May be repeated."""
        self.native.close(CLOSE_SECONDS)

    def close_dropped(self) -> None:
        """close(), of a cluster that does not exist any more."""
        if self.native.closed:
            return
        level = logging.WARNING if self._kept else logging.INFO
        _log.log(level, "a cluster was dropped without close() and is left now%s; close it, or use it in a `with` statement",
                 ", with calls whose outcome nothing asked for" if self._kept else "")
        self.close()

    def _disconnect(self, handle: c_void_p) -> None:
        """The end of the native client: no thread is in it any more."""
        library().disconnect(handle)
        try:
            ended = self._ended()
            if ended is not None:
                ended()
        finally:
            self._kept.clear()
            _open.discard(self)


class _Closer:
    """Closes connections of clusters that are dropped, on a thread of its own: garbage is collected on any thread, also on
    one of the library's, and with any lock held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dropped: "queue.SimpleQueue[Connection]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None

    def watch(self, cluster: Any, connection: Connection) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # A forked child has none.
                self._thread = threading.Thread(target=self._run, daemon=True, name="lodestone-closer")
                self._thread.start()
        weakref.finalize(cluster, self._dropped.put, connection).atexit = False

    def _run(self) -> None:
        while True:
            connection: Optional[Connection] = self._dropped.get()
            try:
                assert connection is not None
                connection.close_dropped()
            except Exception:  # pylint: disable=broad-except  # Other connections still need this thread.
                _log.exception("a cluster that was dropped could not be left")
            connection = None  # Nothing keeps it until the next one comes.


def close_when_dropped(cluster: Any, connection: Connection) -> None:
    """Has the connection closed once nothing refers to `cluster`."""
    _closer.watch(cluster, connection)


def leave_dropped() -> None:
    """Has the connections closed, soon, of clusters that were dropped with calls in flight, which are only found when garbage
    is collected: a worker that connects may need their place."""
    if _open:
        gc.collect()


def close_all() -> None:
    """Closes all connections, those of clusters that were dropped too."""
    for connection in list(_open):
        try:
            connection.close()
        except Exception:  # pylint: disable=broad-except  # The interpreter ends.
            pass


_open: Set[Connection] = set()
_closer = _Closer()
