"""Servers on this machine, for notebooks and tests."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional

from ._cluster import Cluster
from ._connect import connect, observe
from ._errors import DeadlineExceeded, FailedPrecondition

if TYPE_CHECKING:
    import subprocess

_STOP_SECONDS = 10.0


def ending_with_this_process() -> List[str]:
    """What goes before a command so that it ends when this process does, however that ends. (The kernel looks at the
    thread that starts it: another than the main one may end before.)"""
    import shutil

    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []
    return [setpriv, "--pdeathsig", "TERM", "--"]


def _program(given: Optional[str]) -> str:
    import shutil

    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "lodestone-ps")
    found = given or (beside if os.path.exists(beside) else shutil.which("lodestone-ps"))
    if found is None:
        raise FailedPrecondition("lodestone-ps is not installed: install the package lodestone, or name it by program=")
    return found


class LocalCluster:
    """Servers that local() has started. Ends them at the end of the `with` statement, by stop(), or with the process."""

    def __init__(self, servers: int, workers: int, program: Optional[str], folder: Optional[str],
                 config: Optional[Mapping[str, Any]]):
        import tempfile

        self._program = _program(program)
        self._pid = os.getpid()
        self._data = folder
        self._config: Dict[str, Any] = json.loads(json.dumps(dict(config or {})))
        self._config.setdefault("cluster", {}).update({"servers": servers, "workers": workers})
        self._processes: List[Optional[subprocess.Popen[bytes]]] = [None] * servers
        self._folder = tempfile.mkdtemp(prefix="lodestone-")
        #: Where ps 0 listens, host:port: what connect() takes.
        self.address = ""
        self._clusters: List[Cluster] = []
        atexit.register(self.stop)
        try:
            for index in range(servers):
                self.start(index)
        except BaseException:
            self.stop()
            raise

    def start(self, index: int) -> None:
        """Starts server `index`, which does not run; at the address and with the data that it had."""
        import subprocess

        config = json.loads(json.dumps(self._config))
        server = config.setdefault("server", {})
        server["index"] = index
        server.setdefault("listen", "127.0.0.1:0")
        if self._data is not None:
            server["data_dir"] = os.path.join(self._data, f"ps-{index}")
        if self.address:
            config.setdefault("coordinator", {})["address"] = self.address
            if index == 0:
                server["listen"] = self.address
        path = os.path.join(self._folder, f"ps-{index}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)  # JSON is YAML.
        address_file = os.path.join(self._folder, "address")
        with open(os.path.join(self._folder, f"ps-{index}.log"), "ab") as log:
            self._processes[index] = subprocess.Popen(
                ending_with_this_process() + [self._program, "--config", path]
                + ([] if self.address else ["--address-file", address_file]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        if not self.address:
            self.address = self._await_address(address_file)

    def _await_address(self, path: str) -> str:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    return file.read().strip()
            process = self._processes[0]
            if process is not None and process.poll() is not None:
                raise FailedPrecondition(f"{self._program} ended with exit code {process.returncode}:\n{self.log(0)}")
            time.sleep(0.01)
        raise DeadlineExceeded(f"{self._program} has not taken calls within 30 s:\n{self.log(0)}")

    def connect(self, **arguments: Any) -> Cluster:
        """lodestone.connect() to it; the connection ends with the servers."""
        cluster = connect(self.address, **arguments)
        self._clusters.append(cluster)
        return cluster

    def observe(self, **arguments: Any) -> Cluster:
        """lodestone.observe() of it; the connection ends with the servers."""
        cluster = observe(self.address, **arguments)
        self._clusters.append(cluster)
        return cluster

    def kill(self, index: int) -> None:
        """Kills a server, as a crash would."""
        self._end(index, signal.SIGKILL)

    def log(self, index: int) -> str:
        """What server `index` has logged."""
        with open(os.path.join(self._folder, f"ps-{index}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self) -> None:
        """Ends connections and servers, the last one first. May be repeated. Does nothing in a forked child: they are its
        parent's."""
        import shutil

        if os.getpid() != self._pid:
            return
        for cluster in self._clusters:
            cluster.close()
        self._clusters.clear()
        for index in reversed(range(len(self._processes))):
            self._end(index, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.stop)

    def _end(self, index: int, how: int) -> None:
        import subprocess

        process, self._processes[index] = self._processes[index], None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.stop()


def local(servers: int = 2, *, workers: int = 8, program: Optional[str] = None, folder: Optional[str] = None,
          config: Optional[Mapping[str, Any]] = None) -> LocalCluster:
    """Starts servers on this machine, on free ports:

        with lodestone.local(servers=2) as servers, servers.connect() as cluster: ...

    workers: how many clients may connect at a time. program: lodestone-ps; None: the package's own or that of PATH.
    folder: where servers keep their data, so that they can be killed and started again; None: in memory. config: more of
    their configuration (configs/README.md).
    """
    return LocalCluster(servers, workers, program, folder, config)
