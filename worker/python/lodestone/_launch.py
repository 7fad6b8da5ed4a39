"""Processes of a script that train together, with servers, on this machine."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

from ._connect import ADDRESS, WORKER, WORKERS
from ._errors import LodestoneError, WorkerFailed
from ._local import ending_with_this_process, local

if TYPE_CHECKING:
    import subprocess

_STOP_SECONDS = 10.0


class _Workers:
    """The processes, and their ends as they come."""

    def __init__(self, command: Sequence[str], address: str, count: int, environment: Mapping[str, str]):
        import subprocess

        self._ended: "queue.SimpleQueue[Tuple[int, int]]" = queue.SimpleQueue()
        self._processes: List["subprocess.Popen[bytes]"] = []
        try:
            for index in range(count):
                own = {**os.environ, **environment, ADDRESS: address, WORKER: str(index), WORKERS: str(count)}
                # A session of its own: Ctrl-C reaches it once, through this process.
                process = subprocess.Popen(ending_with_this_process() + [sys.executable, *command], env=own,
                                           stdin=subprocess.DEVNULL, start_new_session=True)
                self._processes.append(process)
                threading.Thread(target=self._watch, args=(index, process), daemon=True, name="lodestone-launch").start()
        except BaseException:
            self.end(signal.SIGTERM)
            raise

    def _watch(self, index: int, process: "subprocess.Popen[bytes]") -> None:
        self._ended.put((index, process.wait()))

    def wait(self) -> None:
        """Until all have ended; raises WorkerFailed at the first that fails."""
        for _ in self._processes:
            index, code = self._ended.get()
            if code != 0:
                raise WorkerFailed(index, code)

    def end(self, how: int) -> None:
        """Ends those that run: by `how`, and after ten seconds for good."""
        import subprocess

        for process in self._processes:
            if process.poll() is None:
                process.send_signal(how)
        end = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def launch(command: Sequence[str], *, workers: int = 2, servers: int = 2, address: Optional[str] = None,
           folder: Optional[str] = None, config: Optional[Mapping[str, Any]] = None,
           environment: Optional[Mapping[str, str]] = None) -> None:
    """Runs a Python script in several processes that train together, and waits until all have ended:

        lodestone.launch(["train.py", "--epochs", "2"], workers=4)

    In each process lodestone.connect() without an address joins the cluster as worker LODESTONE_WORKER, from 0, of
    LODESTONE_WORKERS (environment variables; LODESTONE_ADDRESS is ps 0's). What they print goes where this process prints.

    servers: how many are started, as by local(). address: of a cluster that runs, instead. folder, config: as local()'s.
    environment: more variables.

    The first process that fails ends the others, and WorkerFailed says which it was. So does an exception here, as
    Ctrl-C's KeyboardInterrupt, which they get too.
    """
    if address is not None:
        _run(command, address, workers, environment or {})
        return
    with local(servers, workers=workers, folder=folder, config=config) as cluster:
        _run(command, cluster.address, workers, environment or {})


def _run(command: Sequence[str], address: str, count: int, environment: Mapping[str, str]) -> None:
    running = _Workers(command, address, count, environment)
    how: int = signal.SIGTERM
    try:
        running.wait()
    except KeyboardInterrupt:
        how = signal.SIGINT
        raise
    finally:
        running.end(how)


def main(arguments: Any) -> int:
    """`python -m lodestone launch`: the exit code of the first worker that failed; 130 after Ctrl-C, 143 after SIGTERM."""

    def on_term(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, on_term)
    try:
        launch([arguments.script, *arguments.arguments], workers=arguments.workers, servers=arguments.servers,
               address=arguments.address, folder=arguments.folder)
    except WorkerFailed as error:
        print(f"lodestone: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except LodestoneError as error:
        print(f"lodestone: {error}", file=sys.stderr)
        return 1
    return 0
