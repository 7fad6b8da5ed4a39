#!/bin/sh
# Runs run_unittest_test.py by what it tests.
set -eu
export PYTHONDONTWRITEBYTECODE=1
exec python3 -W error tools/bazel/run_unittest.py tests/tools/bazel/run_unittest_test.py
