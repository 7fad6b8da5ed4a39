"""The operations' tests, which tests/kernels/emulated has once more."""

OPERATIONS = ["activation", "embedding", "loss", "matmul", "quantize"]
