"""The exceptions of the package: one for each status code, with the words of the server."""

from __future__ import annotations


class LodestoneError(Exception):
    """A call that failed. `code` is the status' name, as "UNAVAILABLE"."""

    code = "UNKNOWN"


class Cancelled(LodestoneError):
    code = "CANCELLED"


class InvalidArgument(LodestoneError, ValueError):
    code = "INVALID_ARGUMENT"


class DeadlineExceeded(LodestoneError, TimeoutError):
    code = "DEADLINE_EXCEEDED"


class NotFound(LodestoneError, LookupError):
    code = "NOT_FOUND"


class AlreadyExists(LodestoneError):
    code = "ALREADY_EXISTS"


class PermissionDenied(LodestoneError, PermissionError):
    code = "PERMISSION_DENIED"


class ResourceExhausted(LodestoneError):
    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(LodestoneError):
    code = "FAILED_PRECONDITION"


class Aborted(LodestoneError):
    code = "ABORTED"


class PushRefused(LodestoneError):
    """A table's guard refused a push: its gradients were not numbers, or too large (OUT_OF_RANGE)."""

    code = "OUT_OF_RANGE"


class Unimplemented(LodestoneError, NotImplementedError):
    code = "UNIMPLEMENTED"


class Internal(LodestoneError):
    code = "INTERNAL"


class Unavailable(LodestoneError, ConnectionError):
    code = "UNAVAILABLE"


class DataLoss(LodestoneError):
    code = "DATA_LOSS"


class Unauthenticated(LodestoneError, PermissionError):
    code = "UNAUTHENTICATED"


class WorkerFailed(LodestoneError):
    """A process of launch() that ended otherwise than with exit code 0; those that still ran were ended."""

    code = "ABORTED"

    def __init__(self, worker: int, exit_code: int):
        import signal

        how = f"exit code {exit_code}" if exit_code >= 0 else f"signal {signal.Signals(-exit_code).name}"
        super().__init__(f"worker {worker} ended with {how}; the others were ended")
        #: Its index.
        self.worker = worker
        #: As a shell has it: 128 + the signal's number if one ended it.
        self.exit_code = exit_code if exit_code >= 0 else 128 - exit_code


_BY_CODE = {
    1: Cancelled, 2: LodestoneError, 3: InvalidArgument, 4: DeadlineExceeded, 5: NotFound, 6: AlreadyExists,
    7: PermissionDenied, 8: ResourceExhausted, 9: FailedPrecondition, 10: Aborted, 11: PushRefused, 12: Unimplemented,
    13: Internal, 14: Unavailable, 15: DataLoss, 16: Unauthenticated,
}


def error_of(code: int, message: str) -> LodestoneError:
    """The exception for a status code of the C interface (worker/capi/lodestone.h)."""
    return _BY_CODE.get(code, LodestoneError)(message)
