"""The library's log, as records of Python's `logging`."""

from __future__ import annotations

import atexit
import logging

from ._library import LogFunction, library

_logger = logging.getLogger("lodestone")
_LEVELS = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def _write(level: int, component: bytes, message: bytes, _: object) -> None:
    _logger.log(_LEVELS[level], "%s: %s", component.decode("utf-8", "replace"), message.decode("utf-8", "replace"))


_function = LogFunction(_write)
_begun = False


def log_level(level: int = logging.WARNING) -> None:
    """Has the library write events of `level`, as logging.INFO, and above to the logger "lodestone". connect() has done
    so with warnings."""
    global _begun
    _begun = True
    below = [i for i, of in enumerate(_LEVELS) if of >= level]
    library().set_log(below[0] if below else len(_LEVELS) - 1, _function, None)


def begin() -> None:
    """Warnings go to `logging`, unless log_level has said otherwise."""
    if not _begun:
        log_level()


@atexit.register
def _end() -> None:
    from . import _library

    if _library._loaded is not None:  # Threads of the library must not call into an interpreter that ends.
        _library._loaded.set_log(4, LogFunction(0), None)
