#!/bin/sh
# Runs a test, of whose cases tools/test counts each, by the system's Python, with the package as a wheel has it: library and program beside the modules.
set -eu
site="$TEST_TMPDIR/site"
mkdir -p "$site/lodestone/bin"
cp worker/python/lodestone/* "$site/lodestone/"
ln -sf "$PWD/worker/capi/liblodestone.so" "$site/lodestone/liblodestone.so"
ln -sf "$PWD/server/ps" "$site/lodestone/bin/lodestone-ps"
export PYTHONPATH="$site:$PWD/tests/worker/python" PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 -X faulthandler -W error tools/bazel/run_unittest.py "$1"
