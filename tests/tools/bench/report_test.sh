#!/usr/bin/env bash
# Runs report_test.py.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tools/bench
exec python3 tests/tools/bench/report_test.py -v
