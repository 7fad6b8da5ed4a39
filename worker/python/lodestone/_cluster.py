"""A cluster: its tables, pushes and pulls."""

from __future__ import annotations

import atexit
import collections
import ctypes
import itertools
import json
import threading
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Deque, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple, Union, overload

from ._arrays import address
from ._call import Call
from ._errors import FailedPrecondition, InvalidArgument
from ._library import Destination, Gradients, ReadVersions, interruptibly, library
from ._spec import SGD, Initializer, Optimizer, spec_of
from ._subscription import Following, RowSubscription, Subscription
from ._tables import Dense, Embedding, Table, destination_argument, gradient_arguments


class Cluster:
    """A connection to a cluster; made by connect() or observe(). Thread-safe. Close it, or use it in a `with` statement."""

    def __init__(self, handle: c_void_p, pushes_in_flight_max: int, observes: bool):
        self._handle: Optional[c_void_p] = handle
        self._lock = threading.Lock()
        self._clock = itertools.count(1)
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

    # Tables.

    def dense(self, name: str, shape: Union[int, Sequence[int]], optimizer: Union[Optimizer, Mapping[str, Any]] = SGD(),
              initializer: Union[Initializer, Mapping[str, Any], None] = None, **settings: Any) -> Dense:
        """Makes a dense table of `shape`, float32, or finds it.

        A table that exists must have the same shape and kind of optimizer; its rates and settings become these.
        settings: more of TableSpec of proto/table.proto, as broadcast={"every_ms": 20}, guard={"norm_max_factor": 10}.
        """
        dims = [shape] if isinstance(shape, int) else [int(d) for d in shape]
        return Dense(self, self._open_table(name, {"dense": {"dims": dims}}, optimizer, initializer, settings))

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
        return Embedding(self, self._open_table(name, {"embedding": shape}, optimizer, initializer, settings))

    def _open_table(self, name: str, shape: Dict[str, Any], optimizer: Any, initializer: Any,
                    settings: Mapping[str, Any]) -> c_void_p:
        spec = {"name": name, **shape, "optimizer": spec_of(optimizer), **settings}
        if initializer is not None:
            spec["initializer"] = spec_of(initializer)
        table = c_void_p()
        lib = library()
        text = json.dumps(spec).encode()
        interruptibly(lambda: lib.table_open(self._alive(), text, byref(table)))
        return table

    def table(self, name: str) -> Union[Dense, Embedding]:
        """A table that exists, with its settings as they are. Raises NotFound."""
        table = c_void_p()
        lib = library()
        interruptibly(lambda: lib.table_find(self._alive(), name.encode(), byref(table)))
        return Dense(self, table) if lib.table_elements(table) > 0 else Embedding(self, table)

    # Pushes and pulls.

    def push(self, gradients: Mapping[Any, Any], *, clock: Optional[int] = None, read: Any = None,
             copy: bool = True) -> Call[None]:
        """Sends gradients of several tables as one update: {dense: gradient, embedding: (keys, gradients)}.

        Returns at once; waits while `worker.pushes_in_flight_max` (4) pushes are not acknowledged. An acknowledged push
        is applied exactly once. Gradients that are float32 and contiguous are not converted; copy=False also sends those
        of dense tables from where they lie: they must stay unchanged until the call is done.

        clock: the step; None: one more than the last. read: the pull that the gradients were computed from, or several:
        the delay is measured with it.

        Raises InvalidArgument: a gradient has another shape than its table, [shape] or [n, dim]; keys are no whole numbers;
        FailedPrecondition: the cluster is closed, or observes. The call ends with InvalidArgument: a gradient is not
        finite; PushRefused: a table's guard refused it; ResourceExhausted: there is no memory for new rows; Unavailable or
        DeadlineExceeded: servers did not answer for worker.retry_timeout_ms.
        """
        arguments, keep = gradient_arguments(gradients, copy, Gradients)
        versions, versions_keep = _read_versions(read)
        handle = c_void_p()
        self._wait_for_room()
        library().push(self._alive(), self._step(clock), arguments, len(arguments), versions, byref(handle))
        call: Call[None] = Call(self, handle, (keep if not copy else None, versions_keep), lambda: None)
        self._pushes.append(call)
        return call

    def pull(self, tables: Iterable[Any], out: Optional[Mapping[Any, Any]] = None) -> Call[Dict[Any, Any]]:
        """Reads several tables at once: [dense, (embedding, keys), ...]. The result is {table: array}, float32 of the table's
        shape or, of keys [...], [..., dim]; `out` has arrays of these shapes to read into. Errors are those of push()."""
        return self._start_pull(tables, out, lambda arrays: arrays)

    def push_pull(self, gradients: Mapping[Any, Any], tables: Iterable[Any], out: Optional[Mapping[Any, Any]] = None, *,
                  clock: Optional[int] = None, read: Any = None) -> Call[Dict[Any, Any]]:
        """push, then pull: what is read includes the gradients. In one exchange with each server where possible."""
        return self._start_push_pull(gradients, tables, out, lambda arrays: arrays, clock, read)

    def _destinations(self, tables: Iterable[Any], out: Optional[Mapping[Any, Any]]) -> Tuple[Any, Any, Any, Set[str]]:
        wanted = [entry if isinstance(entry, tuple) else (entry, None) for entry in tables]
        arguments = (Destination * len(wanted))()
        keep, arrays, finishes = [], {}, []
        for argument, (table, keys) in zip(arguments, wanted):
            given = None if out is None else out.get(table)
            kept, array, finish = destination_argument(table, keys, given, argument)
            keep.append(kept)
            arrays[table] = array if given is None else given
            if finish is not None:
                finishes.append(finish)

        def end() -> Dict[Any, Any]:
            for finish in finishes:
                finish()
            return arrays

        return arguments, keep, end, {"dense" if isinstance(table, Dense) else "rows" for table, _ in wanted}

    def _start_pull(self, tables: Iterable[Any], out: Optional[Mapping[Any, Any]],
                    pick: Callable[[Dict[Any, Any]], Any]) -> Call[Any]:
        """A pull whose result is `pick` of the arrays by table."""
        arguments, keep, finish, reads = self._destinations(tables, out)
        handle = c_void_p()
        library().pull(self._alive(), arguments, len(arguments), byref(handle))
        return Call(self, handle, keep, lambda: pick(finish()), reads)

    def _start_push_pull(self, gradients: Mapping[Any, Any], tables: Iterable[Any], out: Optional[Mapping[Any, Any]],
                         pick: Callable[[Dict[Any, Any]], Any], clock: Optional[int], read: Any) -> Call[Any]:
        pushed, pushed_keep = gradient_arguments(gradients, True, Gradients)
        arguments, keep, finish, reads = self._destinations(tables, out)
        versions, versions_keep = _read_versions(read)
        handle = c_void_p()
        self._wait_for_room()
        library().push_pull(self._alive(), self._step(clock), pushed, len(pushed), versions, arguments, len(arguments),
                            byref(handle))
        call: Call[Any] = Call(self, handle, (pushed_keep, keep, versions_keep), lambda: pick(finish()), reads)
        self._pushes.append(call)
        return call

    def _pull_one(self, table: Table, keys: Any, out: Any) -> Call[Any]:
        return self._start_pull([(table, keys)], None if out is None else {table: out}, lambda arrays: arrays[table])

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
        self._alive()
        while self._pushes:
            self._wait_for(self._pushes[0])
            self._forget_pushes()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.check()

    @overload
    def subscribe(self, *tables: Dense, into: Optional[Sequence[Any]] = None) -> Subscription: ...

    @overload
    def subscribe(self, *tables: Embedding, keys: Any, into: Any = None, every: float = 0.1) -> RowSubscription: ...

    def subscribe(self, *tables: Any, keys: Any = None, into: Any = None, every: float = 0.1) -> Any:
        """Follows dense tables by their broadcasts; see Subscription. `into`: float32 arrays of their shapes, which it
        refreshes in place; None: arrays of its own.

        With `keys` [...]: follows these rows of one embedding table, which are pulled every so many seconds; see
        RowSubscription. `into`: a float32 array [..., dim].
        """
        if keys is None and all(isinstance(table, Dense) for table in tables):
            subscription: Following = Subscription(self, tables, into)
        elif keys is not None and len(tables) == 1 and isinstance(tables[0], Embedding):
            subscription = RowSubscription(self, tables[0], keys, into, every)
        else:
            raise InvalidArgument("subscribe takes dense tables, or one embedding table with keys=")
        self._subscriptions.add(subscription)
        return subscription

    # The cluster's other workers.

    def report(self, *, clock: Optional[int] = None, samples: int = 0, loss: float = 0.0) -> None:
        """Reports progress, which status and the page show: steps taken, samples seen, the latest loss."""
        library().report(self._alive(), 0 if clock is None else clock, samples, loss)

    def await_clock(self, clock: int) -> None:
        """Waits until all other workers have reported at least `clock` steps: those of cluster.workers (as many as launch()
        starts, local(workers=)) that have not joined yet too, but not those that have left or died."""
        lib = library()
        interruptibly(lambda: lib.await_clock(self._alive(), clock))

    def check(self) -> None:
        """Raises what makes this client useless, if anything does: its lease has ended, say."""
        library().health(self._alive())

    # Its life.

    def close(self) -> None:
        """Leaves the cluster. Calls in flight end with Cancelled; wait for them, or flush(), before. May be repeated."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        _open.discard(self)
        for subscription in list(self._subscriptions):
            subscription.close()
        library().disconnect(handle)
        for call in list(self._in_flight):
            call.exception()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None and self._handle is not None and not self._observes:
            self.flush()
        self.close()

    def __repr__(self) -> str:
        what = "observer" if self._observes else f"worker {self.index}"
        return f"<lodestone.Cluster {what}{'' if self._handle is not None else ', closed'}>"

    # Of this package.

    def _alive(self) -> c_void_p:
        if self._handle is None:
            raise FailedPrecondition("the cluster is closed: connect again")
        return self._handle

    def _step(self, clock: Optional[int]) -> int:
        return next(self._clock) if clock is None else clock

    def _wait_for_room(self) -> None:
        """Waits, so that Ctrl-C works, where the library would."""
        self._forget_pushes()
        while len(self._pushes) >= self._pushes_max:
            self._wait_for(self._pushes[0])
            self._forget_pushes()

    @staticmethod
    def _wait_for(call: Call[Any]) -> None:
        while not call._settle(None):
            pass

    def _forget_pushes(self) -> None:
        while self._pushes and self._pushes[0].done():
            try:
                call = self._pushes.popleft()
            except IndexError:  # Another thread was first.
                return
            if call._error is not None and not call._asked and self._failure is None:
                self._failure = call._error
                call._asked = True

    def _started(self, call: Call[Any]) -> None:
        with self._lock:
            self._in_flight.add(call)
            calls: List[Call[Any]] = list(self._in_flight) if len(self._in_flight) > 16 else []
        for other in calls:  # What nothing waits for still has to be let go.
            if other is not call:
                other.done()

    def _ended(self, call: Call[Any]) -> None:
        with self._lock:
            self._in_flight.discard(call)

    def _versions_of(self, handle: Any) -> Any:
        import numpy as np

        versions = np.zeros(self.shards, dtype=np.uint64)
        library().call_versions(handle, address(versions), self.shards)
        return versions


def _read_versions(read: Any) -> Tuple[Any, Any]:
    """For the library: the versions that the pulls `read` saw, and what that refers to."""
    if read is None:
        return None, None
    versions, keep = ReadVersions(), []
    for call in read if isinstance(read, (list, tuple)) else [read]:
        if not isinstance(call, (Call, Following)):
            raise InvalidArgument("read must be a pull, or a list of them")
        of = call.versions
        keep.append(of)
        if "dense" in call._reads:
            versions.dense = address(of)
        if "rows" in call._reads:
            versions.rows = address(of)
    return byref(versions), (versions, keep)


_open: "weakref.WeakSet[Cluster]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for cluster in list(_open):
        try:
            cluster.close()
        except Exception:  # pylint: disable=broad-except  # The interpreter ends.
            pass
