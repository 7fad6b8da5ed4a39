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


_BY_CODE = {
    1: Cancelled, 2: LodestoneError, 3: InvalidArgument, 4: DeadlineExceeded, 5: NotFound, 6: AlreadyExists,
    7: PermissionDenied, 8: ResourceExhausted, 9: FailedPrecondition, 10: Aborted, 11: PushRefused, 12: Unimplemented,
    13: Internal, 14: Unavailable, 15: DataLoss, 16: Unauthenticated,
}


def error_of(code: int, message: str) -> LodestoneError:
    """The exception for a status code of the C interface (worker/capi/lodestone.h)."""
    return _BY_CODE.get(code, LodestoneError)(message)
