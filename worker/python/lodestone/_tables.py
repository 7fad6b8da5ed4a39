"""Tables of a cluster: dense tensors, and rows under 64-bit keys."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from ._arrays import address, floats, keys as keys_of, shape_of, target
from ._call import Call
from ._errors import InvalidArgument
from ._library import library

if TYPE_CHECKING:
    from ._cluster import Cluster


def with_whole_numbers(spec: Dict[str, Any]) -> Dict[str, Any]:
    """A specification whose 64-bit numbers are numbers, and not texts, as protobuf's JSON has them."""
    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: whole(of) for name, of in value.items()}
        if isinstance(value, list):
            return [whole(of) for of in value]
        return int(value) if isinstance(value, str) and value.isdigit() else value

    # Names may be digits, and a model has names of classes.
    return {name: of if name in ("name", "model") else whole(of) for name, of in spec.items()}


class Table:
    """A table that exists on all servers. Made by Cluster.dense, Cluster.embedding or Cluster.table; thread-safe."""

    def __init__(self, cluster: "Cluster", handle: Any):
        self._cluster = cluster
        self._handle = handle
        #: The specification as the cluster had it when this was made, in the form of TableSpec of proto/table.proto.
        self.spec: Dict[str, Any] = with_whole_numbers(json.loads(library().table_spec(handle).decode()))

    @property
    def name(self) -> str:
        """Its name, unique in the cluster."""
        return str(self.spec["name"])

    @property
    def cluster(self) -> "Cluster":
        """The cluster that it is of."""
        return self._cluster

    def __repr__(self) -> str:
        return f"<lodestone.{type(self).__name__} {self.name!r}>"


class Dense(Table):
    """A tensor of fixed shape, float32."""

    def __init__(self, cluster: "Cluster", handle: Any):
        super().__init__(cluster, handle)
        self.shape: Tuple[int, ...] = tuple(int(d) for d in self.spec["dense"]["dims"])

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.shape)

    def push(self, gradient: Any, *, clock: Optional[int] = None, read: Any = None, copy: bool = True) -> Call[None]:
        """Sends a gradient of the table's shape; see Cluster.push."""
        return self._cluster.push({self: gradient}, clock=clock, read=read, copy=copy)

    def pull(self, out: Any = None) -> Call[Any]:
        """Reads the values, float32 of the table's shape: into `out` if it is given, else into a new array."""
        return self._cluster._pull_one(self, None, out)

    def push_pull(self, gradient: Any, out: Any = None, *, clock: Optional[int] = None, read: Any = None) -> Call[Any]:
        """push, then pull: what is read includes the gradient. One exchange where possible."""
        return self._cluster._push_pull_one(self, None, gradient, None, out, clock, read)

    def assign(self, values: Any) -> None:
        """Sets the values, of the table's shape; see Cluster.assign."""
        self._cluster.assign({self: values})


class Embedding(Table):
    """Rows of `dim` float32 under 64-bit keys; a key that was never pushed reads as its initial values."""

    def __init__(self, cluster: "Cluster", handle: Any):
        super().__init__(cluster, handle)
        self.dim: int = int(library().table_dim(handle))

    def push(self, keys: Any, gradients: Any, *, clock: Optional[int] = None, read: Any = None) -> Call[None]:
        """Sends gradients [n, dim] of rows: keys [n], whole numbers, of which those that come twice are added up. Of keys
        of another shape [...] they may be [..., dim], too."""
        return self._cluster.push({self: (keys, gradients)}, clock=clock, read=read)

    def pull(self, keys: Any, out: Any = None) -> Call[Any]:
        """Reads rows: of keys of any shape [...], float32 [..., dim]. Into `out` if it is given, else a new array."""
        return self._cluster._pull_one(self, keys, out)

    def push_pull(self, keys: Any, gradients: Any, pull_keys: Any = None, out: Any = None, *,
                  clock: Optional[int] = None, read: Any = None) -> Call[Any]:
        """push, then pull of `pull_keys` (None: the same keys): what is read includes the gradients."""
        return self._cluster._push_pull_one(self, keys, gradients, pull_keys, out, clock, read)

    def assign(self, keys: Any, values: Any) -> None:
        """Sets the rows of keys [n], which are distinct, to values [n, dim]; see Cluster.assign."""
        self._cluster.assign({self: (keys, values)})


def table_of(cluster: "Cluster", table: Any) -> Any:
    """The table, which must be of this connection: it goes when that is closed."""
    if not isinstance(table, Table):
        raise InvalidArgument(f"a table is needed, of dense(), embedding() or table(), and not {type(table).__name__}")
    if table.cluster is not cluster:
        raise InvalidArgument(f"table `{table.name}` was opened by another connection: open it by this one, too")
    return table


def gradient_arguments(cluster: "Cluster", pushes: Any, copy: bool, structure: Any) -> Tuple[Any, Any]:
    """The C structures of gradients {table: gradient or (keys, gradients)}, and what they refer to."""
    import numpy as np

    from ._library import BORROWED

    arguments = (structure * len(pushes))()
    keep = []
    for argument, (table, gradient) in zip(arguments, pushes.items()):
        argument.table = table_of(cluster, table)._handle
        if isinstance(table, Dense):
            values = floats(gradient, table.shape, f"the gradient of table `{table.name}`")
            argument.flags = 0 if copy else BORROWED
        else:
            keys, rows = gradient
            flat = keys_of(keys, f"table `{table.name}`")
            shape = shape_of(rows)
            if len(shape) > 2 and shape == (*shape_of(keys), table.dim):
                rows = np.reshape(rows, (flat.size, table.dim)) if not hasattr(rows, "reshape") else \
                    rows.reshape(flat.size, table.dim)
            values = floats(rows, (flat.size, table.dim), f"the gradients of table `{table.name}`")
            argument.keys, argument.keys_count = address(flat), flat.size
            keep.append(flat)
        argument.values = address(values)
        keep.append(values)
    return arguments, keep


def destination_argument(cluster: "Cluster", table: Any, keys: Any, out: Any, argument: Any) -> Tuple[Any, Any, Any]:
    """Fills a C structure; (what it refers to, the array that is filled, what is to be done then or None)."""
    argument.table = table_of(cluster, table)._handle
    if isinstance(table, Dense):
        shape, flat = table.shape, None
    else:
        assert isinstance(table, Embedding)
        flat = keys_of(keys, f"table `{table.name}`")
        argument.keys, argument.keys_count = address(flat), flat.size
        shape = (*shape_of(keys), table.dim)
    array, finish = target(out, shape, f"table `{table.name}`")
    argument.values = address(array)
    return (flat, array), array, finish
