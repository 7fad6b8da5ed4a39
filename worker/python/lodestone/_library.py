"""liblodestone.so by ctypes: the functions of worker/capi/lodestone.h."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, List, Optional, TypeVar

from ._errors import FailedPrecondition, error_of

Result = TypeVar("Result")

ABI = 1
DISTINCT_KEYS = 1
BORROWED = 2

# How long a wait goes on before Python looks for signals.
_SLICE_SECONDS = 0.1


class Handle:
    """A handle of the library that threads use in `with` statements. It is released once it is closed and no use goes on:
    by close(), or by the last use."""

    def __init__(self, handle: c_void_p, release: Callable[[c_void_p], None], closed: str):
        self._handle = handle
        self._release = release
        self._message = closed
        self._lock = threading.Lock()
        self._uses = 0
        self._released = threading.Event()
        #: Whether it refuses uses.
        self.closed = False

    def __enter__(self) -> c_void_p:
        """Raises FailedPrecondition: it is closed."""
        with self._lock:
            if self.closed:
                raise FailedPrecondition(self._message)
            self._uses += 1
        return self._handle

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with self._lock:
            self._uses -= 1
            last = self.closed and self._uses == 0
        if last:
            self._end()

    def close(self, seconds: float) -> None:
        """Refuses uses from now on. Waits for those that go on, at most so long: one that Ctrl-C left may not end."""
        with self._lock:
            last = not self.closed and self._uses == 0
            self.closed = True
        if last:
            self._end()
        self._released.wait(seconds)

    def _end(self) -> None:
        try:
            self._release(self._handle)
        finally:
            self._released.set()


class Gradients(ctypes.Structure):
    _fields_ = [("table", c_void_p), ("keys", c_void_p), ("keys_count", c_size_t), ("values", c_void_p),
                ("flags", c_uint32)]


class Destination(ctypes.Structure):
    _fields_ = [("table", c_void_p), ("keys", c_void_p), ("keys_count", c_size_t), ("values", c_void_p),
                ("flags", c_uint32)]


class ReadVersions(ctypes.Structure):
    _fields_ = [("dense", c_void_p), ("rows", c_void_p)]


LogFunction = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_char_p, c_void_p)
DoneFunction = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)

# name: (result, arguments). Functions that return "status" raise.
_FUNCTIONS: "dict[str, tuple[Any, list[Any]]]" = {
    "abi": (c_int, []),
    "version": (c_char_p, []),
    "error_message": (c_char_p, []),
    "set_log": (None, [c_int, LogFunction, c_void_p]),
    "connect": ("status", [c_char_p, POINTER(c_void_p)]),
    "observe": ("status", [c_char_p, POINTER(c_void_p)]),
    "disconnect": (None, [c_void_p]),
    "index": (c_uint32, [c_void_p]),
    "shards": (c_size_t, [c_void_p]),
    "health": ("status", [c_void_p]),
    "status": ("status", [c_char_p, POINTER(c_void_p)]),
    "free": (None, [c_void_p]),
    "table_open": ("status", [c_void_p, c_char_p, POINTER(c_void_p)]),
    "table_find": ("status", [c_void_p, c_char_p, POINTER(c_void_p)]),
    "table_spec": (c_char_p, [c_void_p]),
    "table_elements": (c_uint64, [c_void_p]),
    "table_dim": (c_uint32, [c_void_p]),
    "push": ("status", [c_void_p, c_uint64, POINTER(Gradients), c_size_t, POINTER(ReadVersions), POINTER(c_void_p)]),
    "pull": ("status", [c_void_p, POINTER(Destination), c_size_t, POINTER(c_void_p)]),
    "push_pull": ("status", [c_void_p, c_uint64, POINTER(Gradients), c_size_t, POINTER(ReadVersions),
                             POINTER(Destination), c_size_t, POINTER(c_void_p)]),
    "flush": ("status", [c_void_p]),
    "report": ("status", [c_void_p, c_uint64, c_uint64, c_float]),
    "await_clock": ("status", [c_void_p, c_uint64]),
    "call_wait": ("status", [c_void_p, c_int64, POINTER(c_int)]),
    "call_on_done": ("status", [c_void_p, DoneFunction, c_void_p]),
    "call_versions": (None, [c_void_p, c_void_p, c_size_t]),
    "call_release": (None, [c_void_p]),
    "subscribe": ("status", [c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_void_p)]),
    "subscription_wait": ("status", [c_void_p, c_int64, POINTER(c_uint64)]),
    "subscription_copy": ("status", [c_void_p, POINTER(c_void_p), c_uint64, POINTER(c_uint64), c_void_p, c_size_t]),
    "subscribe_rows": ("status", [c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_void_p)]),
    "subscription_copy_rows": ("status", [c_void_p, c_void_p, c_void_p, c_uint64, POINTER(c_uint64), c_void_p, c_size_t]),
    "unsubscribe": ("status", [c_void_p, c_void_p]),
    "subscription_release": (None, [c_void_p]),
}


class Library:
    """The functions, without their prefix. Those that can fail raise a LodestoneError."""

    def __init__(self, path: str):
        try:
            # Functions of a CDLL run without the interpreter's lock.
            self._dll = ctypes.CDLL(path)
        except OSError as error:
            raise ImportError(f"{path} cannot be loaded: {error}") from error
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._dll, "lodestone_" + name)
            function.argtypes = arguments
            function.restype = c_int if result == "status" else result
            setattr(self, name, self._raising(function) if result == "status" else function)
        found = self.abi()
        if found != ABI:
            raise ImportError(f"{path} has interface {found} and this package needs {ABI}: install both from one version")

    def _raising(self, function: Any) -> Callable[..., None]:
        message = self._dll.lodestone_error_message

        def call(*arguments: Any) -> None:
            code = function(*arguments)
            if code != 0:
                raise error_of(code, message().decode("utf-8", "replace"))

        return call

    def __getattr__(self, name: str) -> Any:  # For type checkers: the functions are set in __init__.
        raise AttributeError(name)


_loaded: Optional[Library] = None
_loading = threading.Lock()


# glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def _keep_what_messages_were_in() -> None:
    """Lets malloc keep freed memory of some megabytes, which messages come and go in, instead of giving it back to the system
    after each: fresh pages cost as much as what is received into them. It may keep 128 MiB at the end of each of its arenas, of
    which threads have their own, and does not adapt these sizes by itself any more. What is larger than 32 MiB still goes back
    at once, as in any program that has freed something so large. Where the environment says how malloc is to work, that
    stands."""
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, size in ((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 128 << 20), (_M_TOP_PAD, 16 << 20)):
            mallopt(setting, size)


def library() -> Library:
    """The library, loaded at the first call: from the package's folder, where a wheel has it, or as the system finds it."""
    global _loaded
    if _loaded is not None:
        return _loaded
    with _loading:
        if _loaded is None:
            beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "liblodestone.so")
            _loaded = Library(beside if os.path.exists(beside) else "liblodestone.so")
            _keep_what_messages_were_in()
        return _loaded


def interruptibly(function: Callable[[], Result], *, undo: Optional[Callable[[Result], None]] = None,
                  to_its_end: bool = False) -> Result:
    """Runs what may wait for long on a thread of its own, so that Ctrl-C ends the wait (and not the function).

    undo: what is done with a result that comes after Ctrl-C. to_its_end: Ctrl-C is raised only once the function has ended
    (or Ctrl-C has come again), for what must not take effect later.
    """
    results: List[Result] = []
    errors: List[BaseException] = []
    lock = threading.Lock()
    done = threading.Event()
    abandoned = False

    def run() -> None:
        try:
            result = function()
            with lock:
                late = abandoned
                results.append(result)
            if late and undo is not None:
                undo(result)
        except BaseException as error:  # pylint: disable=broad-except  # Goes to the thread that waits.
            errors.append(error)
        done.set()

    threading.Thread(target=run, daemon=True, name="lodestone").start()
    try:
        while not done.wait(_SLICE_SECONDS):
            pass
    except BaseException:
        with lock:
            abandoned = True
            unused = list(results)
        if undo is not None:
            for result in unused:
                undo(result)
        if to_its_end:
            done.wait()
        raise
    if errors:
        raise errors[0]
    return results[0]


def wait_for_call(call: Any, timeout: Optional[float]) -> bool:
    """Waits until a call is done; raises what it failed with. False: `timeout` seconds (None: no limit) have passed."""
    wait = library().call_wait
    done = c_int(0)
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_SECONDS if end is None else min(_SLICE_SECONDS, max(0.0, end - time.monotonic()))
        wait(call, int(left * 1000), ctypes.byref(done))
        if done.value:
            return True
        if end is not None and time.monotonic() >= end:
            return False
