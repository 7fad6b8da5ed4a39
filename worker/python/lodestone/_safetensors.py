"""Files of tensors (safetensors): a cluster's tables in them, as psctl writes and reads them, and any others.

The format is a uint64 with the length of a header, the header as JSON ({name: {"dtype", "shape", "data_offsets"}}, with texts
under "__metadata__"), and the tensors' bytes. A dense table is a tensor of its name; an embedding table is NAME.keys
(uint64 [n]) and NAME.values (float32 [n, dim]). The text "lodestone" has the tables' specifications.
"""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple, Union

from ._arrays import _as_array, keys as keys_of
from ._assign import assign, find_or_make
from ._errors import DataLoss, InvalidArgument
from ._tables import Dense, Embedding, Table, with_whole_numbers

if TYPE_CHECKING:
    from ._cluster import Cluster

Path = Union[str, "os.PathLike[str]"]

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
          "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}


def write_safetensors(path: Path, tensors: Mapping[str, Any], metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes {name: array}, of NumPy, torch or what converts to it, as a .safetensors file, and texts beside them.
    Raises InvalidArgument for a type of numbers that the format lacks."""
    import numpy as np

    names = {np.dtype(code): name for name, code in _TYPES.items() if name != "BF16"}
    header: Dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    arrays, at = [], 0
    for name, tensor in tensors.items():
        array = np.asarray(_as_array(tensor), order="C")
        if array.dtype not in names:
            raise InvalidArgument(f"tensor `{name}` is of {array.dtype}, which safetensors does not have")
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        arrays.append(array)
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = os.fspath(path) + ".tmp"
    with open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays:
            file.write(array.tobytes())
    os.replace(temporary, path)


def read_safetensors(path: Path) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """The arrays of a .safetensors file by name, and its texts. bfloat16 becomes float32. Raises DataLoss for a file that is
    not whole."""
    import numpy as np

    with open(path, "rb") as file:
        data = file.read()
    try:
        size = struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:8 + size])
        metadata = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            content = memoryview(data)[8 + size + begin:8 + size + end]
            array = np.frombuffer(content, _TYPES[entry["dtype"]]).reshape(entry["shape"])
            if entry["dtype"] == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = array
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise DataLoss(f"{os.fspath(path)} is no whole .safetensors file: {error}") from error
    return tensors, metadata


def save(path: Path, *tables: Any) -> None:
    """Writes the newest values of tables of one cluster, dense or (embedding, keys), as a .safetensors file.

    `psctl import` makes a checkpoint of it that servers start from (checkpoint.load), and lodestone.load() brings it into
    a cluster that runs. Optimizers' state is in the servers' own checkpoints, not here.
    """
    wanted = [entry if isinstance(entry, tuple) else (entry, None) for entry in tables]
    if not wanted or not all(isinstance(table, Table) for table, _ in wanted):
        raise InvalidArgument("save(path, ...) takes dense tables and pairs of an embedding table and keys")
    cluster: "Cluster" = wanted[0][0].cluster
    values = cluster.pull([entry if entry[1] is not None else entry[0] for entry in wanted]).result()
    tensors: Dict[str, Any] = {}
    for table, keys in wanted:
        if isinstance(table, Embedding):
            flat = keys_of(keys, f"table `{table.name}`")
            tensors[table.name + ".keys"] = flat
            tensors[table.name + ".values"] = values[table].reshape(flat.size, table.dim)
        else:
            tensors[table.name] = values[table]
    specs = [cluster.table(table.name).spec for table, _ in wanted]
    write_safetensors(path, tensors, {"lodestone": json.dumps({"shards": cluster.shards, "tables": specs})})


def load(path: Path, cluster: "Cluster") -> Dict[str, Union[Dense, Embedding]]:
    """Sets a cluster's tables to the values of a file of save() or `psctl export`, as Cluster.assign does; {name: table}.

    A table that does not exist is made as the file says, without the description of a model that psctl predicts by. Raises
    InvalidArgument: a table has another shape than its tensor; NotFound: neither cluster nor file say what a tensor is.
    """
    tensors, metadata = read_safetensors(path)
    noted: List[Dict[str, Any]] = json.loads(metadata.get("lodestone", "{}")).get("tables", [])
    specs = {spec["name"]: with_whole_numbers(spec) for spec in noted}
    values: Dict[Any, Any] = {}
    for name, array in tensors.items():
        prefix, _, part = name.rpartition(".")
        of_rows = name not in specs and f"{prefix}.keys" in tensors
        if of_rows and part == "values":
            values[find_or_make(cluster, specs.get(prefix, {"name": prefix}))] = (tensors[f"{prefix}.keys"], array)
        elif not (of_rows and part == "keys") and (name in specs or part not in ("state", "scalars")):  # Optimizers'.
            values[find_or_make(cluster, specs.get(name, {"name": name}))] = array
    assign(cluster, values)
    return {table.name: table for table in values}
