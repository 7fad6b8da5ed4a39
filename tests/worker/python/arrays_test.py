"""Conversion of arrays, and specifications of tables: without a cluster."""

import array
import sys
import types
import unittest
from unittest import mock

import numpy as np

import lodestone
from lodestone import _arrays


class Bare:
    """An array of a CUDA device, in fact of the host, with the interface and nothing else."""

    def __init__(self, values, stream=None):
        self.values = values
        self.shape = values.shape
        self.stream = stream

    @property
    def __cuda_array_interface__(self):
        return {**self.values.__array_interface__, "version": 3, "stream": self.stream}


class Converting(Bare):
    """One that copies itself to the host, as JAX's and Numba's."""

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)


class Refusing(Bare):
    """One that does not, as CuPy's."""

    class device:  # pylint: disable=invalid-name
        id = 0

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def view(self, dtype):
        return Refusing(self.values.view(dtype), self.stream)


class FakeTorch(types.ModuleType):
    """As much of torch as takes such arrays."""

    class Tensor:
        device = types.SimpleNamespace(type="cpu")

        def __init__(self, values):
            self.values = values

        def cpu(self):
            return self

        def numpy(self):
            return self.values

    def __init__(self, available=True, lacks=None):
        super().__init__("torch")
        self.awaited = []
        self.lacks = lacks
        self.cuda = types.SimpleNamespace(is_available=lambda: available, synchronize=self.awaited.append)

    def as_tensor(self, source, device):
        assert device == "cuda"
        if source.values.dtype == self.lacks:
            raise TypeError(f"no {source.values.dtype}")
        return self.Tensor(source.values)


class Arrays(unittest.TestCase):
    def test_float32_is_used_in_place(self):
        values = np.ones((2, 3), np.float32)
        self.assertIs(_arrays.floats(values, (2, 3), "it"), values)

    def test_other_numbers_are_converted(self):
        for source in ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], np.float64), np.array([[1, 3], [2, 4]]).T):
            converted = _arrays.floats(source, (2, 2), "it")
            self.assertEqual(converted.dtype, np.float32)
            self.assertTrue(converted.flags.c_contiguous)
            np.testing.assert_array_equal(converted, [[1, 2], [3, 4]])

    def test_the_buffer_protocol_is_used_in_place(self):
        buffer = array.array("f", [1, 2, 3])
        seen = _arrays.floats(buffer, (3,), "it")
        buffer[0] = 7
        np.testing.assert_array_equal(seen, [7, 2, 3])

    def test_dlpack_is_used_in_place(self):
        class Offer:
            """What has DLPack and nothing else, as arrays of other libraries."""

            def __init__(self, values):
                self._values = values

            def __dlpack__(self, stream=None):
                return self._values.__dlpack__(stream=stream)

            def __dlpack_device__(self):
                return self._values.__dlpack_device__()

        values = np.array([1, 2, 3], np.float32)
        seen = _arrays.floats(Offer(values), (3,), "it")
        values[0] = 7
        np.testing.assert_array_equal(seen, [7, 2, 3])

    def test_arrays_of_a_cuda_device_that_numpy_converts_are_left_to_it(self):
        values = np.array([1, 2, 3], np.float32)
        np.testing.assert_array_equal(_arrays.floats(Converting(values), (3,), "it"), values)
        np.testing.assert_array_equal(_arrays.keys(Converting(np.array([7, 8])), "t"), [7, 8])

    def test_arrays_of_a_cuda_device_that_numpy_refuses_need_torch_and_the_device(self):
        for source in (Refusing(np.zeros(3, np.float32)), Bare(np.zeros(3, np.float32))):
            for torch in (None, FakeTorch(available=False)):
                with mock.patch.dict(sys.modules, {"torch": torch}):
                    with self.assertRaisesRegex(lodestone.InvalidArgument, r"finds the device; .*array\.get\(\)"):
                        _arrays.floats(source, (3,), "it")

    def test_arrays_of_a_cuda_device_are_awaited_where_they_name_a_stream(self):
        for stream, waits in ((None, []), (1, [0]), (2, [0]), (140000, [0])):
            torch = FakeTorch()
            with mock.patch.dict(sys.modules, {"torch": torch}):
                seen = _arrays.floats(Refusing(np.array([1, 2], np.float32), stream), (2,), "it")
            np.testing.assert_array_equal(seen, [1, 2])
            self.assertEqual(torch.awaited, waits, stream)

    def test_large_keys_of_a_cuda_device_are_themselves(self):
        values = np.array([1, 2**64 - 1], np.uint64)
        torch = FakeTorch(lacks=np.uint64)
        with mock.patch.dict(sys.modules, {"torch": torch}):
            np.testing.assert_array_equal(_arrays.keys(Refusing(values), "t"), values)
            self.assertEqual(_arrays.floats(Refusing(values), (2,), "it")[1], np.float32(2**64))
        with mock.patch.dict(sys.modules, {"torch": FakeTorch(lacks=np.uint32)}):
            with self.assertRaisesRegex(lodestone.InvalidArgument, r"does not take .*no uint32.*array\.get\(\)"):
                _arrays.keys(Refusing(values.astype(np.uint32)), "t")

    def test_only_a_tensor_is_written_to_on_a_cuda_device(self):
        for out in (Converting(np.zeros(3, np.float32)), Refusing(np.zeros(3, np.float32))):
            with self.assertRaisesRegex(lodestone.InvalidArgument, "only a tensor of torch"):
                _arrays.target(out, (3,), "t")

    def test_a_wrong_shape_says_which(self):
        with self.assertRaisesRegex(lodestone.InvalidArgument, r"it must be \[3\], and is \[2, 2\]"):
            _arrays.floats(np.zeros((2, 2)), (3,), "it")

    def test_keys_are_64_bits_of_any_integer(self):
        for source in ([1, 2], np.array([1, 2], np.int32), np.array([[1], [2]], np.uint16), range(1, 3)):
            keys = _arrays.keys(source, "t")
            self.assertEqual(keys.dtype, np.uint64)
            np.testing.assert_array_equal(keys, [1, 2])
        np.testing.assert_array_equal(_arrays.keys([7, 2**63 + 5, -1], "t"), np.array([7, 2**63 + 5, 2**64 - 1], np.uint64))
        signed = np.array([-1, 5])
        self.assertEqual(int(_arrays.keys(signed, "t")[0]), 2**64 - 1)
        self.assertEqual(_arrays.keys([], "t").size, 0)
        with self.assertRaisesRegex(lodestone.InvalidArgument, "whole numbers"):
            _arrays.keys([1.5], "t")
        for key in (2**64, 2**64 + 5, -2**63 - 1):
            with self.assertRaisesRegex(lodestone.InvalidArgument, f"must be of 64 bits, and one is {key}"):
                _arrays.keys([1, key], "t")

    def test_targets_of_another_type_get_a_copy_at_the_end(self):
        out = np.zeros((2,), np.float64)
        staged, finish = _arrays.target(out, (2,), "t")
        staged[:] = [1, 2]
        finish()
        np.testing.assert_array_equal(out, [1, 2])
        for out in ([0.0, 0.0], (0.0, 0.0)):
            with self.assertRaisesRegex(lodestone.InvalidArgument, "must be an array or a tensor, and is a"):
                _arrays.target(out, (2,), "t")
        same = np.zeros((2,), np.float32)
        self.assertIs(_arrays.target(same, (2,), "t")[0], same)
        same.flags.writeable = False
        with self.assertRaisesRegex(lodestone.InvalidArgument, "cannot be written"):
            _arrays.target(same, (2,), "t")
        with self.assertRaisesRegex(lodestone.InvalidArgument, r"must be \[2\]"):
            _arrays.target(np.zeros(3, np.float32), (2,), "t")


class Specs(unittest.TestCase):
    def test_optimizers_have_the_form_of_the_schema(self):
        self.assertEqual(lodestone.SGD(0.5).spec(), {"sgd": {}, "learning_rate": 0.5})
        self.assertEqual(
            lodestone.AdamW(1e-3, weight_decay=0.1, clip_row_norm=2, schedule={"warmup_steps": 5}).spec(),
            {"adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, "learning_rate": 1e-3, "weight_decay": 0.1,
             "clip": {"row_norm": 2}, "schedule": {"warmup_steps": 5}})
        self.assertEqual(lodestone.Uniform(-1, 1).spec(), {"uniform": {"low": -1, "high": 1}})


class Errors(unittest.TestCase):
    def test_a_wrong_configuration_names_the_field(self):
        with self.assertRaisesRegex(lodestone.InvalidArgument, "did you mean"):
            lodestone.connect("127.0.0.1:1", config={"worker": {"conections_per_server": 2}})

    def test_what_cannot_be_reached_ends_in_time(self):
        with self.assertRaisesRegex(lodestone.LodestoneError, "127.0.0.1:1") as raised:
            lodestone.connect("127.0.0.1:1", timeout=0.3)
        self.assertIsInstance(raised.exception, (TimeoutError, ConnectionError))


if __name__ == "__main__":
    unittest.main()
