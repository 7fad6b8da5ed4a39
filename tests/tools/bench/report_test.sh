#!/usr/bin/env bash
# Runs report_test.py.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tools/bench
exec python3 tools/bazel/run_unittest.py tests/tools/bench/report_test.py
