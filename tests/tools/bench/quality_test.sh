#!/bin/sh
# The tests of quality.py and torch_model.py, by the Python that has NumPy, which tools/install --test installs; what needs PyTorch is skipped without it.
set -eu
export PYTHONPATH="$PWD/tools/bench/quality" PYTHONDONTWRITEBYTECODE=1
python=/usr/bin/python3
"$python" -c 'import numpy' 2>/dev/null || { echo "$python has no NumPy: run tools/install --test" >&2; exit 1; }
exec "$python" tools/bazel/run_unittest.py tests/tools/bench/quality_test.py
