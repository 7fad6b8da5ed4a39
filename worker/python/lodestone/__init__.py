"""Lodestone: train with parameters on a cluster of parameter servers.

    import lodestone
    with lodestone.connect("ps-0:7000") as cluster:
        items = cluster.embedding("items", 16, lodestone.Adagrad(0.1))
        rows = items.pull([3, 5, 8]).result()          # float32 [3, 16]
        items.push([3, 5, 8], gradients)               # goes on by itself; applied exactly once

Values are float32. NumPy arrays, torch tensors, and whatever has the array interface, DLPack or the buffer protocol are
used in place. Log lines go to the logger "lodestone" of `logging`.
"""

from __future__ import annotations

from ._call import Call
from ._cluster import Cluster
from ._connect import connect, observe, status
from ._errors import (Aborted, AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, FailedPrecondition, Internal,
                      InvalidArgument, LodestoneError, NotFound, PermissionDenied, PushRefused, ResourceExhausted,
                      Unauthenticated, Unavailable, Unimplemented, WorkerFailed)
from ._launch import launch
from ._local import LocalCluster, local
from ._log import log_level
from ._safetensors import load, read_safetensors, save, write_safetensors
from ._spec import (SGD, Adagrad, Adam, AdamW, Constant, Ftrl, He, Initializer, Lion, Momentum, Nesterov, Normal,
                    Optimizer, RMSprop, RowwiseAdagrad, Uniform, Xavier, Zeros)
from ._subscription import RowBroadcasts, RowSubscription, Subscription
from ._tables import Dense, Embedding, Table

__all__ = [
    "Aborted", "Adagrad", "Adam", "AdamW", "AlreadyExists", "Call", "Cancelled", "Cluster", "Constant", "DataLoss",
    "DeadlineExceeded", "Dense", "Embedding", "FailedPrecondition", "Ftrl", "He", "Initializer", "Internal",
    "InvalidArgument", "Lion", "LocalCluster", "LodestoneError", "Momentum", "Nesterov", "Normal", "NotFound",
    "Optimizer", "PermissionDenied", "PushRefused", "RMSprop", "ResourceExhausted", "RowBroadcasts",
    "RowSubscription",
    "RowwiseAdagrad", "SGD",
    "Subscription", "Table", "Unauthenticated", "Unavailable", "Uniform", "Unimplemented", "WorkerFailed", "Xavier",
    "Zeros", "connect", "launch", "load", "local", "log_level", "observe", "read_safetensors", "save", "status",
    "version", "write_safetensors",
]


def version() -> str:
    """The version of the library."""
    from ._library import library

    return str(library().version().decode())
