"""Assignment: values that are set, and not trained, as those of a model that is loaded.

The protocol has no such operation; it is made of what there is. While it lasts the tables have settings (which a worker
may change, and which are logged and replicated like pushes) under which a push adds its gradients to the values: SGD at
-1, or the table's own method with an epsilon so large that it divides by a constant. All factors are powers of two, so
that nothing is rounded but the sum; what that leaves is pushed once more, until reading gives what was to be set. Gradients
are clipped to the largest difference that there is, so that a push of another worker, which must not come, changes no value by
more than that.
"""

from __future__ import annotations

import contextlib
import json
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Tuple

from ._arrays import floats, keys as keys_of
from ._errors import Aborted, FailedPrecondition, InvalidArgument, NotFound, Unimplemented
from ._library import interruptibly, library
from ._tables import Dense, Embedding, Table

if TYPE_CHECKING:
    from ._cluster import Cluster

# Gradients come divided by _SCALE, so that their squares leave no trace in an optimizer's state.
_SCALE = 2.0**60
_BELOW_ONE = 1 - 2.0**-24
# Beside epsilon, what keeps a method's state as it is.
_CHANGED: Dict[str, Dict[str, float]] = {
    "adagrad": {}, "rowwise_adagrad": {}, "rmsprop": {"rho": _BELOW_ONE}, "adam": {"beta1": 0, "beta2": _BELOW_ONE},
    "adamw": {"beta1": 0, "beta2": _BELOW_ONE}}
_SMALLEST = 2.0**-64  # What is left of a value that is smaller than what _SCALE allows for.
_ROUNDS_MAX = 6  # Three are enough where nothing else is pushed.
_CHUNK_FLOATS = 1 << 22  # Of rows, in one push.


def _adding(optimizer: Mapping[str, Any], name: str) -> Tuple[Dict[str, Any], float]:
    """An optimizer with the same layout of state that adds a gradient to the values, and what gradients are to be divided
    by for it."""
    for kind, own in optimizer.items():
        if kind == "sgd":
            break
        if kind in ("momentum", "nesterov"):
            return {kind: {"momentum": 0}, "learning_rate": -1}, 1.0
        if kind in _CHANGED:
            return {kind: {**own, **_CHANGED[kind], "epsilon": _SCALE}, "learning_rate": -_SCALE * _SCALE}, _SCALE
        if kind in ("ftrl", "lion"):
            raise Unimplemented(f"values of table `{name}` cannot be set: {kind} makes them of its state. Import them into a "
                                "checkpoint (psctl import) and start the servers from it (checkpoint.load)")
    return {"sgd": {}, "learning_rate": -1}, 1.0


class _Assignment:
    """One table's part: the values that are wanted, and how they get there."""

    def __init__(self, cluster: "Cluster", table: Table, wanted: Any):
        import numpy as np

        what = f"the values of table `{table.name}`"
        self.table = table
        self.keys: Any = None
        if isinstance(table, Embedding):
            keys, values = wanted
            self.keys = keys_of(keys, f"table `{table.name}`")
            if len(np.unique(self.keys)) < self.keys.size:
                raise InvalidArgument(f"{what} have a key more than once")
            self.values = floats(values, (self.keys.size, table.dim), what)
        else:
            assert isinstance(table, Dense)
            self.values = floats(wanted, table.shape, what)
        if not np.isfinite(self.values).all():
            raise InvalidArgument(f"{what} are not all finite")
        self.spec: Dict[str, Any] = cluster.table(table.name).spec  # As they are now.
        held = [path for path in self.spec.get("held", ())
                if any((path + ".").startswith(of) for of in ("optimizer.", "guard.", "embedding.admission."))]
        if held:  # Values are pushed under other settings for a while, which would count for nothing.
            raise FailedPrecondition(f"{what} cannot be set while an operator holds {', '.join(held)}: let it go first "
                                     f"(psctl set {table.name} --release {held[0]})")
        optimizer, self.scale = _adding(self.spec.get("optimizer", {}), table.name)
        #: The largest difference.
        self.bound = max((float(np.abs(self._left(piece)).max(initial=0)) for piece in self.pieces()), default=0.0)
        optimizer["clip"] = {"value": self.bound / self.scale}
        self.temporary = {**self.spec, "optimizer": optimizer}
        self.temporary.pop("guard", None)
        if self.keys is not None:
            admission = self.spec["embedding"].get("admission", {})  # Every key gets a row, while there is memory.
            self.temporary["embedding"] = {**self.spec["embedding"], "admission": {
                name: of for name, of in admission.items() if name == "when_full"}}

    def pieces(self) -> Iterator[slice]:
        """The rows of each push; of a dense table all at once."""
        if self.keys is None:
            yield slice(None)
            return
        rows = max(1, _CHUNK_FLOATS // self.values.shape[1])
        for begin in range(0, self.keys.size, rows):
            yield slice(begin, begin + rows)

    def run(self, cluster: "Cluster") -> None:
        """Pushes what the values lack, until they lack nothing."""
        import numpy as np

        for piece in self.pieces():
            for _ in range(_ROUNDS_MAX):
                left = self._left(piece)
                if not (np.abs(left) > _SMALLEST).any():
                    break
                self._push(cluster, piece, left / np.float32(self.scale))
            else:
                raise Aborted(f"values of table `{self.table.name}` do not stay as they are set: another worker pushes, or "
                              "the servers have no room for the rows")
            if self.spec.get("optimizer", {}).keys() & {"momentum", "nesterov"}:  # It forgets the last push.
                self._push(cluster, piece, np.zeros_like(self.values[piece]))

    def _left(self, piece: slice) -> Any:
        """What the values lack."""
        if isinstance(self.table, Dense):
            return self.values - self.table.pull().result()
        assert isinstance(self.table, Embedding)
        return self.values[piece] - self.table.pull(self.keys[piece]).result()

    def _push(self, cluster: "Cluster", piece: slice, gradient: Any) -> None:
        cluster.push({self.table: gradient if self.keys is None else (self.keys[piece], gradient)}).result()


def _use(cluster: "Cluster", spec: Mapping[str, Any]) -> None:
    """Gives a table these settings; the description of a model stays as it is."""
    lib = library()
    text = json.dumps({name: of for name, of in spec.items() if name not in ("held", "model", "revision")}).encode()

    def open_table() -> None:
        with cluster._native as client:
            lib.table_open(client, text, byref(c_void_p()))

    interruptibly(open_table, to_its_end=True)  # Settings that come later would replace those that are restored.


def assign(cluster: "Cluster", values: Mapping[Any, Any]) -> None:
    """Sets values, {dense: values [shape], embedding: (keys [n], values [n, dim])}; see Cluster.assign."""
    cluster.flush()
    parts: List[_Assignment] = [_Assignment(cluster, table, wanted) for table, wanted in values.items()]
    parts = [part for part in parts if part.bound > _SMALLEST]
    try:
        for part in parts:
            _use(cluster, part.temporary)
        for part in parts:
            part.run(cluster)
    finally:
        with contextlib.ExitStack() as stack:  # Each of them, also if one fails.
            for part in parts:
                stack.callback(_use, cluster, part.spec)
            stack.callback(cluster.flush)  # First: what Ctrl-C left in flight is meant for the temporary settings.


def find_or_make(cluster: "Cluster", spec: Mapping[str, Any]) -> Any:
    """The table of that name, with its settings as they are; a new one of this specification if there is none."""
    try:
        return cluster.table(spec["name"])
    except NotFound:
        if "dense" not in spec and "embedding" not in spec:
            raise
        _use(cluster, spec)
        return cluster.table(spec["name"])
