"""The protocol's arithmetic, told once more as proto/README.md tells it, by the Python standard library alone.

  test_vectors.py FILE            checks FILE (proto/test_vectors.json): exits with 1 and names what differs
  test_vectors.py --write FILE    writes it
Numbers of 64 bits are hexadecimal strings in the file, because many readers of JSON have 53 bits only.
"""

import json
import math
import struct
import sys

MASK = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stable_hash(data, salt=0):
    h = mix64(salt ^ ((0xFF51AFD7ED558CCD * (len(data) + 1)) & MASK))
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        h = mix64(h ^ int.from_bytes(data[i:i + 8], "little"))
    return mix64(h ^ int.from_bytes(data[whole:], "little"))


def table_id(name):
    return stable_hash(name.encode()) & 0xFFFFFFFF


def shard_of_key(key, shards):
    return mix64(key) * shards >> 64


def shard_of_block(table, block, shards):
    return (mix64(table) % shards + block) % shards


def block_elements(elements, shards):
    share = -(-elements // shards)
    return min(max(-(-share // 1024) * 1024, 4096), 65536)


def stream_seed(seed, name):
    return mix64(mix64(seed) ^ name)


def random_bits(seed, n):
    return mix64((seed + mix64(n)) & MASK)


def normal_quantile(p):
    """Wichura 1988, algorithm AS 241, PPND7."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return (q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
                (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0))
    r = math.sqrt(-math.log(p if q < 0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        r = ((((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
             ((0.12021132975 * r + 0.73700164250) * r + 1.0))
    else:
        r -= 5.0
        r = ((((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
             ((0.012258202635 * r + 0.24197894225) * r + 1.0))
    return -r if q < 0 else r


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def float32_below(x):
    """The next float32 towards zero from a positive one."""
    return struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0] - 1))[0]


def uniform(low, high, seed, first, count):
    largest = float32_below(float32(high))
    numbers = [low + (high - low) * ((random_bits(seed, first + i) >> 11) * 2.0**-53) for i in range(count)]
    return [min(float32(x), largest) for x in numbers]


def normal(mean, stddev, seed, first, count):
    numbers = [((random_bits(seed, first + i) >> 12) + 0.5) * 2.0**-52 for i in range(count)]
    return [float32(mean + stddev * normal_quantile(p)) for p in numbers]


def initial_values(case):
    """What the case's elements are before any update: of a row (`key`), or of a dense table from element `first` on."""
    kind, = case["initializer"]
    parameters = case["initializer"][kind]
    seed = stream_seed(stream_seed(int(case["cluster_seed"], 16), stable_hash(case["table"].encode())),
                       int(case.get("key", "0x0"), 16))
    first, count = case.get("first", 0), case["count"]
    elements = math.prod(case.get("dims", [1]))
    fan_out = case["dims"][-1] if len(case.get("dims", [])) > 1 else 1
    fan_in = elements // fan_out
    if kind == "uniform":
        return uniform(float32(parameters["low"]), float32(parameters["high"]), seed, first, count)
    if kind == "normal":
        return normal(float32(parameters["mean"]), float32(parameters["stddev"]), seed, first, count)
    if kind == "xavier":
        bound = math.sqrt(6.0 / (fan_in + fan_out))
        return uniform(-bound, bound, seed, first, count)
    if kind == "he":
        return normal(0.0, math.sqrt(2.0 / fan_in), seed, first, count)
    raise ValueError(kind)


def rows_payload(keys, values):
    return (struct.pack("<%dQ" % len(keys), *keys) + struct.pack("<%df" % len(values), *values)).hex()


def text_of(number):
    return "0x%016x" % number


def bits_of(values):
    return ["0x%08x" % struct.unpack("<I", struct.pack("<f", x))[0] for x in values]


NUMBERS = [0, 1, 2, 3, 1000, 0xDEADBEEF, 1 << 32, (1 << 53) + 1, 1 << 63, MASK]
NAMES = ["bias", "embedding", "linear", "mlp/0/weights", "12345678"]
TEXTS = ["", "a", "12345678", "123456789", "lodestone", "größer"]
INITIAL = [
    {"table": "embedding", "initializer": {"uniform": {"low": -0.01, "high": 0.01}}, "key": text_of(7), "count": 4},
    {"table": "embedding", "initializer": {"normal": {"mean": 0.0, "stddev": 0.01}}, "key": text_of(MASK), "count": 4},
    {"table": "weights", "initializer": {"normal": {"mean": 1.5, "stddev": 2.0}}, "dims": [100], "first": 96, "count": 4},
    {"table": "mlp/0/weights", "initializer": {"xavier": {}}, "dims": [784, 128], "first": 0, "count": 4},
    {"table": "mlp/0/weights", "initializer": {"he": {}}, "dims": [784, 128], "first": 100000, "count": 4},
]


def vectors():
    initial = []
    for seed in (1, 0xABCDEF0123456789):
        for case in INITIAL:
            case = dict(case, cluster_seed=text_of(seed))
            initial.append(dict(case, float32_bits=bits_of(initial_values(case))))
    return {
        "format": 1,
        "mix64": [{"x": text_of(x), "mixed": text_of(mix64(x))} for x in NUMBERS],
        "stable_hash": [{"text": text, "salt": text_of(salt), "hash": text_of(stable_hash(text.encode(), salt))}
                        for text in TEXTS for salt in (0, 99)],
        "table_id": [{"name": name, "id": table_id(name)} for name in NAMES],
        "shard_of_key": [{"key": text_of(key), "shards": shards, "shard": shard_of_key(key, shards)}
                         for key in NUMBERS for shards in (1, 3, 64, 4096)],
        "shard_of_block": [{"table": name, "block": block, "shards": shards,
                            "shard": shard_of_block(table_id(name), block, shards)}
                           for name in NAMES[:3] for block in (0, 1, 100) for shards in (1, 3, 64)],
        "block_elements": [{"elements": elements, "shards": shards, "block_elements": block_elements(elements, shards)}
                           for elements in (1, 4097, 100352, 1 << 20, 1 << 30) for shards in (1, 3, 64)],
        "initial_values": initial,
        "rows_payload": [{"keys": [text_of(1), text_of(MASK)], "values": [0.5, -1.0, 3.25, 0.0],
                          "hex": rows_payload([1, MASK], [0.5, -1.0, 3.25, 0.0])}],
    }


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--write":
        told = vectors()
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            parts = [json.dumps(name) + ": " + (json.dumps(cases) if isinstance(cases, int) else
                     "[\n    " + ",\n    ".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n  ]")
                     for name, cases in told.items()]
            file.write("{\n  " + ",\n  ".join(parts) + "\n}\n")
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        written = json.load(file)
    told = vectors()
    wrong = [name for name in sorted(set(told) | set(written)) if told.get(name) != written.get(name)]
    for name in wrong:
        print("differs: %s" % name)
    sys.exit(1 if wrong else 0)


main()
