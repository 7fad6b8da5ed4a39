#!/bin/sh
# The tests of quality.py and torch_model.py, by the Python that has NumPy; what needs PyTorch is skipped without it.
set -eu
export PYTHONPATH="$PWD/tools/bench/quality" PYTHONDONTWRITEBYTECODE=1
python=/usr/bin/python3
"$python" -c 'import numpy' 2>/dev/null || { echo "skipped: $python has no NumPy"; exit 0; }
exec "$python" -m unittest -v tests/tools/bench/quality_test.py
