#!/bin/sh
# A ps, and a program in C that uses it by liblodestone.so; and that the library exports its own functions only.
set -eu
cat >"$TEST_TMPDIR/ps.yaml" <<'YAML'
cluster: {servers: 1, workers: 2, shards: 8}
server: {listen: "127.0.0.1:0"}
YAML
server/ps --config "$TEST_TMPDIR/ps.yaml" --address-file "$TEST_TMPDIR/address" 2>"$TEST_TMPDIR/ps.log" &
ps=$!
trap 'kill $ps 2>/dev/null; cat "$TEST_TMPDIR/ps.log"' EXIT
while [ ! -s "$TEST_TMPDIR/address" ]; do kill -0 $ps && sleep 0.05; done
tests/worker/capi/c_client "$(cat "$TEST_TMPDIR/address")"
others=$(nm -D --defined-only worker/capi/liblodestone.so | awk '{ print $3 }' | grep -v -e '^lodestone_' -e '^LODESTONE_1' || true)
[ -z "$others" ] || { echo "liblodestone.so exports more than lodestone_*: $others"; exit 1; }
