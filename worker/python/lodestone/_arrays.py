"""Arrays of a program as the library takes them: contiguous, float32 values and 64-bit keys.

What has that form is used in place: NumPy arrays, torch tensors of the CPU, and whatever has the array interface, DLPack
or the buffer protocol. Other types of numbers are converted, which copies; a tensor of a CUDA device is copied to pinned
memory of the host, and so are arrays of a CUDA device that NumPy cannot convert, CuPy's, where torch is imported.
"""

from __future__ import annotations

import sys
from typing import Any, Optional, Tuple

from ._errors import InvalidArgument


def _is_tensor(source: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor)


def _on_host(tensor: Any) -> Any:
    """A tensor, or a copy of it on the host: in pinned memory, which a CUDA device writes to at its full rate."""
    if tensor.device.type != "cuda":
        return tensor.cpu()
    # The device is named, as torch.set_default_device() may say another.
    return sys.modules["torch"].empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True).copy_(tensor)


def _is_of_cuda(source: Any) -> bool:
    return hasattr(source, "__cuda_array_interface__") and not _is_tensor(source)


def _by_numpy(source: Any) -> Optional[Any]:
    """What NumPy makes of an array of another library on a CUDA device; None: nothing. JAX's and Numba's copy themselves to
    the host; CuPy's refuse to."""
    import numpy as np

    if not hasattr(source, "__array__"):
        return None
    try:
        return np.asarray(source)
    except TypeError:
        return None


def _from_cuda(source: Any) -> Any:
    """A copy on the host of an array of another library on a CUDA device, made by torch."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise InvalidArgument("an array of a CUDA device is taken where torch is imported and finds the device; copy it to the "
                              "host first: array.get()")
    interface = source.__cuda_array_interface__
    if interface.get("stream") is not None:  # On which it may still be computed; torch does not wait for it.
        torch.cuda.synchronize(getattr(getattr(source, "device", None), "id", None))
    is_uint64 = interface["typestr"] == "<u8"
    try:
        # torch has no uint64 before 2.3.
        array = _on_host(torch.as_tensor(source.view("int64") if is_uint64 else source, device="cuda")).numpy()
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"torch does not take this array of a CUDA device: {error}; copy it to the host first: "
                              "array.get()") from error
    return array.view(np.uint64) if is_uint64 else array


def _as_array(source: Any) -> Any:
    import numpy as np

    if isinstance(source, np.ndarray):
        return source
    if _is_of_cuda(source):
        array = _by_numpy(source)
        return _from_cuda(source) if array is None else array
    if _is_tensor(source):
        tensor = source.detach()
        if tensor.dtype.is_floating_point and tensor.dtype != sys.modules["torch"].float64:
            tensor = tensor.float()  # NumPy has no bfloat16.
        return _on_host(tensor).numpy()
    if hasattr(source, "__dlpack__") and not hasattr(source, "__array__"):
        return np.from_dlpack(source)
    return np.asarray(source)


def address(array: Any) -> int:
    """Where the elements of a NumPy array lie."""
    return int(array.__array_interface__["data"][0])  # Half the time of array.ctypes.data.


def shape_of(source: Any) -> Tuple[int, ...]:
    """The shape of an array, or of what becomes one, such as nested lists."""
    import numpy as np

    return tuple(source.shape) if hasattr(source, "shape") else np.shape(source)


def floats(source: Any, shape: Tuple[int, ...], what: str) -> Any:
    """A contiguous float32 array of `shape` with the values of `source`; `source` itself where it is one."""
    import numpy as np

    array = np.ascontiguousarray(_as_array(source), dtype=np.float32)
    if array.shape != shape and array.size == int(np.prod(shape, dtype=np.int64)) and len(shape) == 1:
        array = array.reshape(shape)
    if array.shape != shape:
        raise InvalidArgument(f"{what} must be {list(shape)}, and is {list(array.shape)}")
    return array


def keys(source: Any, what: str) -> Any:
    """A contiguous uint64 array [n] with the keys of `source`, which may have any shape."""
    import numpy as np

    array = _as_array(source)
    if array.dtype.kind in "fO" and isinstance(source, (list, tuple)):  # Some, but not all, may be of 2^63 and more.
        objects = np.array(source, dtype=object)
        if all(isinstance(key, int) for key in objects.flat):
            outside = next((key for key in objects.flat if not -2**63 <= key < 2**64), None)
            if outside is not None:
                raise InvalidArgument(f"the keys of {what} must be of 64 bits, and one is {outside}")
            array = np.array([key % 2**64 for key in objects.flat], np.uint64)
    if array.dtype.kind not in "iu" and array.size > 0:
        raise InvalidArgument(f"the keys of {what} must be whole numbers, and are {array.dtype}")
    array = np.ascontiguousarray(array.reshape(-1))
    # The bits of a negative key are those of a large one, as in every other client.
    return array.view(np.uint64) if array.dtype == np.int64 else array.astype(np.uint64, copy=False)


def target(out: Any, shape: Tuple[int, ...], what: str) -> Tuple[Any, Any]:
    """An array that the library writes into, and what to do with it then: (array, finish). finish() is called once the
    values are there; it copies them to `out` if that is not a float32 array of the host that can be written in place."""
    import numpy as np

    if out is None:
        array = np.empty(shape, dtype=np.float32)
        return array, None
    if _is_tensor(out):
        torch = sys.modules["torch"]
        if tuple(out.shape) != shape:
            raise InvalidArgument(f"out of {what} must be {list(shape)}, and is {list(out.shape)}")
        tensor = out.detach()
        if tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous():
            return tensor.numpy(), None
        staged = torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=tensor.device.type == "cuda")
        return staged.numpy(), lambda: tensor.copy_(staged)
    if _is_of_cuda(out):  # What NumPy makes of it is a copy.
        raise InvalidArgument(f"out of {what} is an array of a CUDA device: only a tensor of torch may be one; take "
                              "torch.as_tensor(array, device=\"cuda\"), which shares its memory")
    array = out if isinstance(out, np.ndarray) else np.asarray(out)
    if isinstance(out, (list, tuple)):  # What NumPy makes of it is a copy.
        raise InvalidArgument(f"out of {what} must be an array or a tensor, and is a {type(out).__name__}")
    if array.shape != shape:
        raise InvalidArgument(f"out of {what} must be {list(shape)}, and is {list(array.shape)}")
    if array.dtype == np.float32 and array.flags.c_contiguous and array.flags.writeable:
        return array, None
    if not array.flags.writeable:
        raise InvalidArgument(f"out of {what} cannot be written to")
    staged_array = np.empty(shape, dtype=np.float32)

    def finish() -> None:
        array[...] = staged_array

    return staged_array, finish
