#!/usr/bin/env python3
"""An MLP on MNIST whose parameters live on the cluster; each process trains on its part of the images.

    python3 mnist.py FOLDER_OF_MNIST                                 two processes and servers of their own
    python3 mnist.py FOLDER_OF_MNIST --address ps-0:7000 --part 0/4  one of four, of a cluster that runs
"""

import argparse
import gzip
import multiprocessing
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import lodestone
import lodestone.torch


def read_idx(path):
    with gzip.open(path) as file:
        data = file.read()
    dims = [int.from_bytes(data[4 + 4 * i:8 + 4 * i], "big") for i in range(data[3])]
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + 4 * len(dims)).reshape(dims).copy())


def load(folder, name):
    images = read_idx(os.path.join(folder, f"{name}-images-idx3-ubyte.gz")).float().flatten(1) / 255
    return images, read_idx(os.path.join(folder, f"{name}-labels-idx1-ubyte.gz")).long()


def train(address, folder, part, parts, epochs, result=None):
    torch.set_num_threads(1)
    images, labels = load(folder, "train")
    images, labels = images[part::parts], labels[part::parts]
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    with lodestone.connect(address) as cluster:
        optimizer = lodestone.torch.AsyncOptimizer(model, cluster, lodestone.Adam(2e-3), prefix="mnist/")
        order = torch.Generator().manual_seed(part)
        for _ in range(epochs):
            for batch in torch.randperm(len(images), generator=order).split(128):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step(loss=loss.item())
        optimizer.refresh()
        images, labels = load(folder, "t10k")
        with torch.no_grad():
            accuracy = (model(images).argmax(1) == labels).float().mean().item()
        print(f"part {part}: accuracy {accuracy:.4f}", flush=True)
        if result is not None:
            result.put((part, accuracy))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="with train-images-idx3-ubyte.gz and the other three")
    parser.add_argument("--address", help="host:port of ps 0; none: servers of its own")
    parser.add_argument("--part", default="0/1", help="which part of the images, I/N")
    parser.add_argument("--epochs", type=int, default=2)
    of = parser.parse_args()
    if of.address:
        part, parts = map(int, of.part.split("/"))
        train(of.address, of.folder, part, parts, of.epochs)
        return
    # Each process connects by itself: a fork would not take the connection with it.
    context = multiprocessing.get_context("spawn")
    with lodestone.local(servers=2) as servers:
        processes = [context.Process(target=train, args=(servers.address, of.folder, part, 2, of.epochs))
                     for part in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a process failed")


if __name__ == "__main__":
    main()
