"""Ways into a cluster: as a worker, as a reader, and without joining it at all."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import byref, c_void_p
from typing import Any, Dict, Mapping, Optional, Union

from . import _log
from ._cluster import Cluster
from ._connection import leave_dropped
from ._errors import InvalidArgument
from ._library import interruptibly, library

TLS = Union[str, "os.PathLike[str]", Mapping[str, Any]]

_PUSHES_IN_FLIGHT = 4  # worker.pushes_in_flight_max of proto/config.proto.


# What launch() gives its processes.
ADDRESS, WORKER, WORKERS = "LODESTONE_ADDRESS", "LODESTONE_WORKER", "LODESTONE_WORKERS"


def _address(given: Optional[str]) -> str:
    if given is None and not os.environ.get(ADDRESS):
        raise InvalidArgument(f"connect() needs the address of ps 0: give it, or start this script by `python -m lodestone "
                              f"launch` (which sets {ADDRESS})")
    return given if given is not None else os.environ[ADDRESS]


def _config_text(address: str, cluster: Optional[str], token: Any, tls: Optional[TLS], worker: Optional[int],
                 timeout: Optional[float], config: Optional[Mapping[str, Any]]) -> str:
    """The configuration as JSON, in the form of Lodestone's configuration files."""
    merged: Dict[str, Any] = json.loads(json.dumps(dict(config or {})))

    def put(section: str, name: str, value: Any) -> None:
        merged.setdefault(section, {})[name] = value

    put("coordinator", "address", address)
    if cluster is not None:
        put("cluster", "name", cluster)
    if timeout is not None:
        put("coordinator", "join_timeout_ms", max(100, int(timeout * 1000)))
    if token is not None:
        put("security", "token", os.fspath(token))
    if tls is not None:
        files = {"authorities": tls} if isinstance(tls, (str, os.PathLike)) else dict(tls)
        for name, path in files.items():
            put("security", name, os.fspath(path))
    if worker is not None:
        put("worker", "index", worker)
        merged.setdefault("cluster", {}).setdefault("workers", worker + 1)  # For the check of the file; the ps's own counts.
    return json.dumps(merged)


def connect(address: Optional[str] = None, *, cluster: Optional[str] = None, token: Any = None, tls: Optional[TLS] = None,
            worker: Optional[int] = None, timeout: Optional[float] = None,
            config: Optional[Mapping[str, Any]] = None) -> "Cluster":
    """Joins a cluster as one of its workers.

    address: host:port of the ps that serves the coordinator (ps 0), as coordinator.address of a configuration. None, in a
        process of launch(): the cluster that it was started for, as the worker that it is.
    cluster: its name (cluster.name); None: that of config, or lodestone.
    token: the file with this client's token, where the cluster has identities.
    tls: the PEM file of the authorities that vouch for the servers, or {"authorities":, "certificate":, "key":}.
    worker: which of the workers' places to take; None: the lowest that is free.
    timeout: seconds to wait for the servers; None: coordinator.join_timeout_ms of config, or 60.
    config: more of a worker's configuration (configs/README.md), such as {"worker": {"connections_per_server": 2}}.

    Raises DeadlineExceeded, with what it waited for: nothing was reached, or all places of cluster.workers are taken.
    """
    if address is None and worker is None:
        worker = int(os.environ[WORKER]) if WORKER in os.environ else None
    text = _config_text(_address(address), cluster, token, tls, worker, timeout, config)
    in_flight = (config or {}).get("worker", {}).get("pushes_in_flight_max", _PUSHES_IN_FLIGHT)
    return _join(text, int(in_flight), observe=False)


def observe(address: Optional[str] = None, *, cluster: Optional[str] = None, token: Any = None, tls: Optional[TLS] = None,
            timeout: Optional[float] = None, config: Optional[Mapping[str, Any]] = None) -> "Cluster":
    """Connects to a cluster to read only: to pull, and to subscribe. It takes no worker's place; whatever trains raises
    FailedPrecondition. The arguments are those of connect()."""
    text = _config_text(_address(address), cluster, token, tls, None, timeout, config)
    return _join(text, _PUSHES_IN_FLIGHT, observe=True)


def _join(text: str, pushes_in_flight_max: int, *, observe: bool) -> "Cluster":
    lib = library()
    _log.begin()
    leave_dropped()
    join = lib.observe if observe else lib.connect

    def connected() -> Cluster:
        handle = c_void_p()
        join(text.encode(), byref(handle))
        return Cluster(handle, pushes_in_flight_max, observe)

    return interruptibly(connected, undo=Cluster.close)


def status(address: str, *, token: Any = None, tls: Optional[TLS] = None, timeout: float = 5.0) -> Dict[str, Any]:
    """The status of a ps, and of the cluster if it serves the coordinator, without joining it (Admin.Status of
    proto/admin.proto)."""
    config = {"worker": {"call_timeout_ms": max(10, int(timeout * 1000))}}
    text = _config_text(address, None, token, tls, None, None, config)
    json_text = c_void_p()
    lib = library()
    _log.begin()

    def query() -> None:
        lib.status(text.encode(), byref(json_text))

    interruptibly(query)
    try:
        found: Dict[str, Any] = json.loads(ctypes.string_at(json_text))
        return found
    finally:
        lib.free(json_text)
