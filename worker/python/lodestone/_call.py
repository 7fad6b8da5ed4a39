"""Pushes and pulls under way."""

from __future__ import annotations

import ctypes
import itertools
import logging
import queue
import threading
from typing import TYPE_CHECKING, AbstractSet, Any, Callable, Dict, Generator, Generic, List, Optional, TypeVar

from ._errors import LodestoneError
from ._library import DoneFunction, library, wait_for_call

if TYPE_CHECKING:
    from ._cluster import Cluster

Result = TypeVar("Result")
_log = logging.getLogger("lodestone")


class Call(Generic[Result]):
    """A push or pull that goes on by itself. `result()` waits for it, `await call` lets others run meanwhile.

    Thread-safe. What it writes to must not be used before it is done. A call whose outcome is never asked for and that
    fails is logged as a warning.
    """

    __slots__ = ("_cluster", "_handle", "_keep", "_finish", "_reads", "_lock", "_settled", "_error", "_result", "_versions",
                 "_asked", "_callbacks", "_notified", "__weakref__")

    def __init__(self, cluster: "Cluster", keep: Any, finish: Callable[[], Result],
                 reads: AbstractSet[str] = frozenset()):
        # `keep`: what the library uses until the call is done. `reads`: of "dense" and "rows".
        self._cluster = cluster
        self._handle = ctypes.c_void_p()  # Set by Cluster._begin.
        self._keep = keep
        self._finish = finish
        self._reads = reads
        self._lock = threading.Lock()
        self._settled = False
        self._error: Optional[Exception] = None
        self._result: Optional[Result] = None
        self._versions: Any = None
        self._asked = False
        self._callbacks: List[Callable[["Call[Result]"], None]] = []
        self._notified = False

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._settled or self._settle(0)

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits until it is done, and returns what was read (None of a push). Raises what it failed with (a
        LodestoneError, or what copying to `out` raised), and TimeoutError after `timeout` seconds, when it still goes on."""
        self._ask(timeout)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def exception(self, timeout: Optional[float] = None) -> Optional[Exception]:
        """Waits as result() does; what it failed with, or None."""
        self._ask(timeout)
        return self._error

    @property
    def versions(self) -> Any:
        """The version of each shard at which values were read, uint64 [shards], 0 where none were. Waits."""
        self.result()
        with self._lock:
            if self._versions is None:
                self._versions = self._cluster._versions_of(self._handle)
            return self._versions

    def add_done_callback(self, function: Callable[["Call[Result]"], None]) -> None:
        """Calls function(call) when it is done, on a thread of the package, or at once if it is known to be done."""
        with self._lock:
            known = self._settled and self._notified
            if not known:
                self._callbacks.append(function)
            ask = not self._notified
            self._notified = True
        if known:
            function(self)
        elif ask:
            _notifier.watch(self)

    def __await__(self) -> Generator[Any, None, Result]:
        import asyncio  # Takes as long to load as the rest of the package.

        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def on_done(_: "Call[Result]") -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:  # The loop was closed meanwhile.
                pass

        self.add_done_callback(on_done)
        yield from future.__await__()
        return self.result()

    def _ask(self, timeout: Optional[float]) -> None:
        """Waits for the outcome. One that has not come in time was not asked for: flush() raises that of a push."""
        self._asked = True
        try:
            if self._settled or self._settle(timeout):
                return
        except BaseException:  # Ctrl-C.
            self._asked = False
            raise
        with self._lock:
            if self._settled:  # By another thread, which may have counted on this one.
                return
            self._asked = False
        raise TimeoutError(f"the call is not done after {timeout} s; it goes on")

    def _settle(self, timeout: Optional[float]) -> bool:
        """Takes the outcome over if the call ends within `timeout` seconds (None: no limit)."""
        error: Optional[Exception] = None
        try:
            if not wait_for_call(self._handle, timeout):
                return False
        except LodestoneError as failed:
            error = failed
        with self._lock:
            if self._settled:
                return True
            if error is None:
                try:
                    self._result = self._finish()
                except Exception as failed:  # pylint: disable=broad-except  # A copy to `out`: this call's own.
                    error = failed
            self._error = error
            self._keep = None
            self._settled = True
        self._cluster._ended(self)
        return True

    def _run_callbacks(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            try:
                function(self)
            except Exception:  # pylint: disable=broad-except  # One callback's error is no other's.
                _log.exception("a callback of a call failed")

    def __del__(self) -> None:
        # No thread waits for a handle that no object refers to.
        if getattr(self, "_handle", None) is not None:
            library().call_release(self._handle)
        if getattr(self, "_error", None) is not None and not self._asked and not self._notified:
            _log.warning("a call that nothing waited for failed: %s", self._error)


class _Notifier:
    """Carries the ends of calls from the library's threads to one of Python's, which runs callbacks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Dict[int, "Call[Any]"] = {}
        self._next = itertools.count(1)
        self._ended: "queue.SimpleQueue[int]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        # On a thread of the library: nothing but the hand-over.
        self._function = DoneFunction(lambda handle, token: self._ended.put(token))

    def watch(self, call: "Call[Any]") -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="lodestone-callbacks")
                self._thread.start()
            token = next(self._next)
            self._calls[token] = call
        library().call_on_done(call._handle, self._function, ctypes.c_void_p(token))

    def _run(self) -> None:
        while True:
            token = self._ended.get()
            with self._lock:
                call = self._calls.pop(token, None)
            try:
                if call is not None:
                    call._settle(None)
                    call._run_callbacks()
            except Exception:  # pylint: disable=broad-except  # Other calls still need this thread.
                _log.exception("the end of a call could not be taken over")
            call = None  # Nothing keeps it until the next one ends.


_notifier = _Notifier()
