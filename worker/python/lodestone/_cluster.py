"""A cluster: its tables, pushes and pulls."""

from __future__ import annotations

import atexit
import collections
import ctypes
import json
import logging
import threading
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar, \
    Union, overload

from ._arrays import address
from ._call import Call
from ._connection import Connection, close_all, close_when_dropped
from ._errors import Cancelled, InvalidArgument
from ._library import Destination, Gradients, ReadVersions, interruptibly, library
from ._spec import SGD, Initializer, Optimizer, spec_of
from ._subscription import Following, RowBroadcasts, RowSubscription, Subscription
from ._tables import Dense, Embedding, Table, destination_argument, gradient_arguments, table_of

_NUMBER_MAX = 2**64 - 1
_ONE_DESTINATION = Destination * 1
_DENSE, _ROWS = frozenset(["dense"]), frozenset(["rows"])  # What a pull reads.

_log = logging.getLogger("lodestone")
OfTable = TypeVar("OfTable", Dense, Embedding)


class Cluster:
    """A connection to a cluster; made by connect() or observe(). Thread-safe. Close it, or use it in a `with` statement: one
    that is dropped is left when Python's garbage collection finds it, with its calls, and that is logged."""

    def __init__(self, handle: c_void_p, pushes_in_flight_max: int, observes: bool):
        self._connection = Connection(handle, weakref.WeakMethod(self._end_calls))
        self._native = self._connection.native
        self._lock = threading.Lock()
        self._clock = 0  # The greatest that was pushed or reported.
        self._in_flight: Set[Call[Any]] = set()
        self._pushes: Deque[Call[Any]] = collections.deque()
        self._pushes_max = pushes_in_flight_max
        self._failure: Optional[Exception] = None  # Of a push whose outcome nothing has asked for.
        self._subscriptions: "weakref.WeakSet[Following]" = weakref.WeakSet()
        lib = library()
        self._observes = observes
        #: The place of this client among the workers, from 0; None of one that observes.
        self.index: Optional[int] = None if observes else int(lib.index(handle))
        #: The number of shards that tables are divided into.
        self.shards: int = int(lib.shards(handle))
        _open.add(self)
        close_when_dropped(self, self._connection)

    # Tables.

    def dense(self, name: str, shape: Union[int, Sequence[int]], optimizer: Union[Optimizer, Mapping[str, Any]] = SGD(),
              initializer: Union[Initializer, Mapping[str, Any], None] = None, **settings: Any) -> Dense:
        """Makes a dense table of `shape`, float32, or finds it.

        A table that exists must have the same shape and kind of optimizer; its rates and settings become these, but for
        what an operator has set (`psctl set`): the table's `spec` says what they are.
        settings: more of TableSpec of proto/table.proto, as broadcast={"every_ms": 20}, guard={"norm_max_factor": 10}. A bound of
        staleness (consistency={"bounded": {...}}) is kept by worker programs; a program of Python waits by await_clock().
        """
        dims = [shape] if isinstance(shape, int) else [int(d) for d in shape]
        return self._open_table(Dense, name, {"dense": {"dims": dims}}, optimizer, initializer, settings)

    def embedding(self, name: str, dim: int, optimizer: Union[Optimizer, Mapping[str, Any]] = SGD(),
                  initializer: Union[Initializer, Mapping[str, Any], None] = None, *,
                  admission: Optional[Mapping[str, Any]] = None, eviction: Optional[Mapping[str, Any]] = None,
                  **settings: Any) -> Embedding:
        """Makes a table of rows of `dim` float32 under 64-bit keys, or finds it; see dense().

        admission, eviction: which new keys get a row, and which rows go, in the form of proto/table.proto.
        """
        shape: Dict[str, Any] = {"dim": dim}
        if admission is not None:
            shape["admission"] = dict(admission)
        if eviction is not None:
            shape["eviction"] = dict(eviction)
        return self._open_table(Embedding, name, {"embedding": shape}, optimizer, initializer, settings)

    def _open_table(self, kind: Type[OfTable], name: str, shape: Dict[str, Any], optimizer: Any, initializer: Any,
                    settings: Mapping[str, Any]) -> OfTable:
        spec = {"name": name, **shape, "optimizer": spec_of(optimizer), **settings}
        if initializer is not None:
            spec["initializer"] = spec_of(initializer)
        lib = library()
        text = json.dumps(spec).encode()

        def opened() -> OfTable:
            table = c_void_p()
            with self._native as client:
                lib.table_open(client, text, byref(table))
                return kind(self, table)

        return interruptibly(opened)

    def table(self, name: str) -> Union[Dense, Embedding]:
        """A table that exists, with its settings as they are. Raises NotFound."""
        lib = library()

        def found() -> Union[Dense, Embedding]:
            table = c_void_p()
            with self._native as client:
                lib.table_find(client, name.encode(), byref(table))
                return Dense(self, table) if lib.table_elements(table) > 0 else Embedding(self, table)

        return interruptibly(found)

    # Pushes and pulls.

    def push(self, gradients: Mapping[Any, Any], *, clock: Optional[int] = None, read: Any = None,
             copy: bool = True) -> Call[None]:
        """Sends gradients of several tables as one update: {dense: gradient, embedding: (keys, gradients)}.

        Returns at once; waits while `worker.pushes_in_flight_max` (4) pushes are not acknowledged. An acknowledged push
        is applied exactly once. Gradients that are float32 and contiguous are not converted; copy=False also sends those
        of dense tables from where they lie: they must stay unchanged until the call is done.

        clock: the step; None: one more than the last. read: the pull that the gradients were computed from, or several:
        the delay is measured with it, and of tables with `consistency: {async: {rate: by_delay}}` the learning rate goes by it.

        Raises InvalidArgument: a gradient has another shape than its table, [shape] or [n, dim]; keys are no whole numbers;
        FailedPrecondition: the cluster is closed, or observes. The call ends with InvalidArgument: a gradient is not
        finite; PushRefused: a table's guard refused it; ResourceExhausted: there is no memory for new rows; Unavailable or
        DeadlineExceeded: servers did not answer for worker.retry_timeout_ms.
        """
        arguments, keep = gradient_arguments(self, gradients, copy, Gradients)
        versions, versions_keep = self._read_versions(read)
        self._wait_for_room()
        call: Call[None] = Call(self, (keep if not copy else None, versions_keep), lambda: None)
        return self._begin(call, lambda client: library().push(
            client, self._step(clock), arguments, len(arguments), versions, byref(call._handle)), self._pushes)

    def pull(self, tables: Iterable[Any], out: Optional[Mapping[Any, Any]] = None) -> Call[Dict[Any, Any]]:
        """Reads several tables at once: [dense, (embedding, keys), ...]. The result is {table: array}, float32 of the table's
        shape or, of keys [...], [..., dim]; `out` has arrays of these shapes to read into. Errors are those of push()."""
        arguments, keep, finish, reads = self._destinations(tables, out)
        call: Call[Dict[Any, Any]] = Call(self, keep, finish, reads)
        return self._begin(call, lambda client: library().pull(client, arguments, len(arguments), byref(call._handle)))

    def push_pull(self, gradients: Mapping[Any, Any], tables: Iterable[Any], out: Optional[Mapping[Any, Any]] = None, *,
                  clock: Optional[int] = None, read: Any = None) -> Call[Dict[Any, Any]]:
        """push, then pull: what is read includes the gradients. In one exchange with each server where possible."""
        return self._start_push_pull(gradients, tables, out, lambda arrays: arrays, clock, read)

    def _destinations(self, tables: Iterable[Any], out: Optional[Mapping[Any, Any]]) -> Tuple[Any, Any, Any, Set[str]]:
        wanted = [entry if isinstance(entry, tuple) else (entry, None) for entry in tables]
        if out is not None:
            for table in out:
                if not any(table is of for of, _ in wanted):
                    raise InvalidArgument(f"out has an array for {table!r}, which is not read")
        arguments = (Destination * len(wanted))()
        keep, arrays, finishes = [], {}, []
        for argument, (table, keys) in zip(arguments, wanted):
            given = None if out is None else out.get(table)
            kept, array, finish = destination_argument(self, table, keys, given, argument)
            keep.append(kept)
            arrays[table] = array if given is None else given
            if finish is not None:
                finishes.append(finish)

        def end() -> Dict[Any, Any]:
            for finish in finishes:
                finish()
            return arrays

        return arguments, keep, end, {"dense" if isinstance(table, Dense) else "rows" for table, _ in wanted}

    def _start_push_pull(self, gradients: Mapping[Any, Any], tables: Iterable[Any], out: Optional[Mapping[Any, Any]],
                         pick: Callable[[Dict[Any, Any]], Any], clock: Optional[int], read: Any) -> Call[Any]:
        pushed, pushed_keep = gradient_arguments(self, gradients, True, Gradients)
        arguments, keep, finish, reads = self._destinations(tables, out)
        versions, versions_keep = self._read_versions(read)
        self._wait_for_room()
        call: Call[Any] = Call(self, (pushed_keep, keep, versions_keep), lambda: pick(finish()), reads)
        return self._begin(call, lambda client: library().push_pull(
            client, self._step(clock), pushed, len(pushed), versions, arguments, len(arguments), byref(call._handle)),
            self._pushes)

    def _pull_one(self, table: Table, keys: Any, out: Any) -> Call[Any]:
        """As pull() of one table, with less work: a call that waits for a server comes back to cold caches."""
        arguments = _ONE_DESTINATION()
        keep, array, finish = destination_argument(self, table, keys, out, arguments[0])
        result = array if out is None else out

        def end() -> Any:
            if finish is not None:
                finish()
            return result

        call: Call[Any] = Call(self, (arguments, keep), end, _DENSE if isinstance(table, Dense) else _ROWS)
        handle = byref(call._handle)
        return self._begin(call, lambda client: library().pull(client, arguments, 1, handle))

    def _push_pull_one(self, table: Table, keys: Any, gradient: Any, pull_keys: Any, out: Any, clock: Optional[int],
                       read: Any) -> Call[Any]:
        gradients = {table: gradient if isinstance(table, Dense) else (keys, gradient)}
        wanted = (table, keys if pull_keys is None else pull_keys)
        return self._start_push_pull(gradients, [wanted], None if out is None else {table: out},
                                     lambda arrays: arrays[table], clock, read)

    def assign(self, values: Mapping[Any, Any]) -> None:
        """Sets values, {dense: values [shape], embedding: (keys [n], values [n, dim])}, and waits until all workers read
        them. For models that are loaded: no other worker may push to these tables meanwhile (what it pushes would be lost, or
        noticed and Aborted).

        Optimizers keep their state, but for momentum, which starts from zero; a row's or block's count of steps grows by
        as many pushes as it takes (2 to 4). If the process dies on the way the tables' settings are not those of their
        specification until a worker opens them again (dense(), embedding()), and the values are not whole.

        Raises InvalidArgument: a shape, a key that comes twice, a value that is not finite; Unimplemented: FTRL and Lion;
        Aborted: another worker pushes, or there is no room for the rows.
        """
        from ._assign import assign

        assign(self, values)

    def flush(self) -> None:
        """Waits until all pushes are acknowledged. Raises the first error of those whose outcome was not asked for."""
        with self._native:  # Raises if the cluster is closed.
            pass
        while (oldest := self._oldest()) is not None:
            self._wait_for(oldest)
            self._forget_pushes()
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.check()

    @overload
    def subscribe(self, *tables: Dense, into: Optional[Sequence[Any]] = None) -> Subscription: ...

    @overload
    def subscribe(self, *tables: Embedding, keys: Any, into: Any = None, every: float = 0.1) -> RowSubscription: ...

    @overload
    def subscribe(self, *tables: Embedding, keys: Any, into: Any = None, every: None) -> RowBroadcasts: ...

    def subscribe(self, *tables: Any, keys: Any = None, into: Any = None, every: Optional[float] = 0.1) -> Any:
        """Follows dense tables by their broadcasts; see Subscription. `into`: float32 arrays of their shapes, which it
        refreshes in place; None: arrays of its own.

        With `keys` [...]: follows these rows of one embedding table, which are pulled every so many seconds; see
        RowSubscription. every=None: by the table's broadcasts; see RowBroadcasts. `into`: a float32 array [..., dim].
        """
        for table in tables:
            table_of(self, table)
        if keys is None and all(isinstance(table, Dense) for table in tables):
            subscription: Following = Subscription(self, tables, into)
        elif keys is not None and len(tables) == 1 and isinstance(tables[0], Embedding):
            subscription = (RowBroadcasts(self, tables[0], keys, into) if every is None else
                            RowSubscription(self, tables[0], keys, into, every))
        else:
            raise InvalidArgument("subscribe takes dense tables, or one embedding table with keys=")
        self._subscriptions.add(subscription)
        return subscription

    # The cluster's other workers.

    def report(self, *, clock: Optional[int] = None, samples: int = 0, loss: float = 0.0) -> None:
        """Reports progress, which status and the page show: steps taken (clock; None: the greatest that was pushed or
        reported), samples seen, the latest loss."""
        _check_number("samples", samples)
        if clock is not None:
            _check_number("clock", clock)
        with self._lock:
            self._clock = max(self._clock, clock or 0)
            steps = self._clock if clock is None else clock
        with self._native as client:
            library().report(client, steps, samples, loss)

    def await_clock(self, clock: int) -> None:
        """Waits until all other workers have reported at least `clock` steps: those of cluster.workers (as many as launch()
        starts, local(workers=)) that have not joined yet too, but not those that have left or died."""
        _check_number("clock", clock)
        lib = library()

        def wait() -> None:
            with self._native as client:
                lib.await_clock(client, clock)

        interruptibly(wait)

    def check(self) -> None:
        """Raises what makes this client useless, if anything does: its lease has ended, say."""
        with self._native as client:
            library().health(client)

    # Its life.

    def close(self) -> None:
        """Leaves the cluster. Calls in flight end with Cancelled; wait for them, or flush(), before. May be repeated.
        The error of a push that nothing has asked for is logged.

        Waits two seconds for other threads that are in a method (and for what Ctrl-C has left); if that is not enough, the
        cluster is left when the last of them ends.
        """
        if self._native.closed:
            return
        _open.discard(self)
        self._forget_pushes()
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            _log.warning("a push that nothing waited for failed: %s", failure)
        for subscription in list(self._subscriptions):
            subscription._leave()  # The servers see its end by that of the connections.
        self._connection.close()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None and not self._native.closed and not self._observes:
                self.flush()
        finally:
            self.close()

    def __repr__(self) -> str:
        what = "observer" if self._observes else f"worker {self.index}"
        return f"<lodestone.Cluster {what}{', closed' if self._native.closed else ''}>"

    # Of this package.

    def _end_calls(self) -> None:
        """Takes the outcomes of calls in flight over, once the native client has ended."""
        with self._lock:
            calls = list(self._in_flight)
        for call in calls:
            call._settle(None)
            if isinstance(call._error, Cancelled):  # As close() says.
                call._asked = True

    def _begin(self, call: Call[Any], begin: Callable[[c_void_p], Any],
               queue: Optional[Deque[Call[Any]]] = None) -> Call[Any]:
        """Starts a call by `begin`, and puts it into `queue`. What the library uses is kept before it does, so that Ctrl-C
        right after the start finds it."""
        with self._native as client:
            with self._lock:
                self._in_flight.add(call)
            self._connection.keep(call)
            try:
                begin(client)
            finally:
                if not call._handle:
                    self._ended(call)
                elif queue is not None:
                    queue.append(call)
        self._let_go(call)
        return call

    def _step(self, clock: Optional[int]) -> int:
        if clock is not None:
            _check_number("clock", clock)
        with self._lock:
            step = self._clock + 1 if clock is None else clock
            self._clock = max(self._clock, step)
        return step

    def _wait_for_room(self) -> None:
        """Waits, so that Ctrl-C works, where the library would."""
        self._forget_pushes()
        while len(self._pushes) >= self._pushes_max:
            oldest = self._oldest()
            if oldest is not None:
                self._wait_for(oldest)
            self._forget_pushes()

    @staticmethod
    def _wait_for(call: Call[Any]) -> None:
        while not call._settle(None):
            pass

    def _oldest(self) -> Optional[Call[Any]]:
        with self._lock:
            return self._pushes[0] if self._pushes else None

    def _forget_pushes(self) -> None:
        while (call := self._oldest()) is not None and call.done():
            with self._lock:
                if not self._pushes or self._pushes[0] is not call:  # Another thread was first.
                    continue
                self._pushes.popleft()
                if call._error is not None and not call._asked and self._failure is None:
                    self._failure = call._error
                    call._asked = True

    def _let_go(self, call: Call[Any]) -> None:
        """Takes the outcomes over of what nothing waits for, once there are many."""
        if len(self._in_flight) <= 16:
            return
        with self._lock:
            calls: List[Call[Any]] = list(self._in_flight)
        for other in calls:
            if other is not call and other._handle:  # Another thread may be about to start it.
                other.done()

    def _ended(self, call: Call[Any]) -> None:
        with self._lock:
            self._in_flight.discard(call)
        self._connection.forget(call)

    def _versions_of(self, handle: Any) -> Any:
        import numpy as np

        versions = np.zeros(self.shards, dtype=np.uint64)
        library().call_versions(handle, address(versions), self.shards)
        return versions

    def _read_versions(self, read: Any) -> Tuple[Any, Any]:
        """For the library: the versions that the pulls `read` saw, and what that refers to."""
        if read is None:
            return None, None
        versions, keep = ReadVersions(), []
        for call in read if isinstance(read, (list, tuple)) else [read]:
            if not isinstance(call, (Call, Following)):
                raise InvalidArgument("read must be a pull, or a list of them")
            if call._cluster is not self:
                raise InvalidArgument("read is a pull of another connection: give one of this connection's")
            of = call.versions
            keep.append(of)
            if "dense" in call._reads:
                versions.dense = address(of)
            if "rows" in call._reads:
                versions.rows = address(of)
        return byref(versions), (versions, keep)


def _check_number(what: str, value: int) -> None:
    if not 0 <= value <= _NUMBER_MAX:
        raise InvalidArgument(f"{what} is {value}: it must be from 0 to 2^64 - 1")


_open: "weakref.WeakSet[Cluster]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for cluster in list(_open):
        try:
            cluster.close()
        except Exception:  # pylint: disable=broad-except  # The interpreter ends.
            pass
    close_all()
