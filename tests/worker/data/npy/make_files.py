#!/usr/bin/env python3
"""Writes the files of this folder by NumPy (1.24.2): 40 rows of Criteo's log, as its lines and as TorchRec's preprocessing keeps them.

    python3 make_files.py FOLDER

lines.tsv       the log's lines
kept.tsv        the same with the numbers of the arrays, in digits that give the same floats
day_0_*.npy     float32, int32 and int32 [N, 1], of npy's version 1.0
day_1_*.npy     the same rows: versions 2.0 and 3.0, categories int64, labels int64 [N]
"""

import sys

import numpy as np

ROWS = 40
out = sys.argv[1]


def draw(i, column):
    """Some 32 bits."""
    x = (i * 2654435761 + column * 40503 + 12345) & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 2246822519 & 0xFFFFFFFF
    return x ^ x >> 13


def write(name, array, version):
    with open(f"{out}/{name}.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)


labels = [int(draw(i, 99) % 4 == 0) for i in range(ROWS)]
integers = [["" if draw(i, c) % 5 == 0 else str(draw(i, c) % 3000 - 2) for c in range(13)] for i in range(ROWS)]
categories = [["" if draw(i, c) % 7 == 0 else f"{draw(i % 11, c):08x}" for c in range(13, 39)] for i in range(ROWS)]

# A missing integer is 0; all numbers of the day are moved so that the least is 2, and then their logarithm is taken.
dense = np.array([[int(x or 0) for x in row] for row in integers], np.int64)
dense = np.log((dense - dense.min() + 2).astype(np.float32))
bits = np.array([[int(x or "0", 16) for x in row] for row in categories], np.int64)

for name, numbers in (("lines", integers), ("kept", [[f"{x:.9g}" for x in row] for row in dense])):
    with open(f"{out}/{name}.tsv", "w") as file:
        for label, row, rest in zip(labels, numbers, categories):
            file.write("\t".join([str(label), *row, *rest]) + "\n")

write("day_0_dense", dense, (1, 0))
write("day_0_sparse", bits.astype(np.uint32).view(np.int32), (1, 0))
write("day_0_labels", np.array(labels, np.int32).reshape(-1, 1), (1, 0))
write("day_1_dense", dense, (2, 0))
write("day_1_sparse", bits, (3, 0))
write("day_1_labels", np.array(labels, np.int64), (2, 0))
