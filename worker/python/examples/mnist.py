#!/usr/bin/env python3
"""An MLP on MNIST whose parameters live on the cluster; each process trains on its part of the images.

    python3 mnist.py FOLDER_OF_MNIST                                 servers, two processes that train, and a reader
    python3 mnist.py FOLDER_OF_MNIST --address ps-0:7000 --part 0/4  one of four that train, on a cluster that runs
    python3 mnist.py FOLDER_OF_MNIST --address ps-0:7000 --follow    a reader, on a cluster that runs

A reader takes no worker's place. It follows the parameters by the servers' broadcasts, and evaluates them on the test images.
"""

import argparse
import gzip
import multiprocessing
import os
import time

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


def network():
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def train(address, folder, part, parts, epochs):
    torch.set_num_threads(1)
    images, labels = load(folder, "train")
    images, labels = images[part::parts], labels[part::parts]
    model = network()
    with lodestone.connect(address) as cluster:
        optimizer = lodestone.torch.AsyncOptimizer(model, cluster, lodestone.Adam(2e-3), prefix="mnist/")
        order = torch.Generator().manual_seed(part)
        for _ in range(epochs):
            for batch in torch.randperm(len(images), generator=order).split(128):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step(loss=loss.item())
    print(f"part {part}: trained", flush=True)


def accuracy(model, images, labels):
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def follow(address, folder, training):
    """Evaluates the parameters again and again while `training()`, and once more when it has ended."""
    images, labels = load(folder, "t10k")
    model = network()
    with lodestone.observe(address) as cluster:
        values = {}
        while training() and len(values) < len(model.state_dict()):
            try:
                values = {name: cluster.table(f"mnist/{name}") for name in model.state_dict()}
            except lodestone.NotFound:
                time.sleep(0.1)  # Nothing has made it yet.
        # The broadcasts' values go straight into the module.
        following = cluster.subscribe(*values.values(), into=[p.detach() for p in model.parameters()])
        while training():
            if following.refresh(timeout=1.0, wait=True):
                print(f"accuracy so far {accuracy(model, images, labels):.4f}", flush=True)
        for parameter, table in zip(model.parameters(), values.values()):
            table.pull(out=parameter.detach()).result()
        print(f"accuracy {accuracy(model, images, labels):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="with train-images-idx3-ubyte.gz and the other three")
    parser.add_argument("--address", help="host:port of ps 0; none: servers of its own")
    parser.add_argument("--part", default="0/1", help="which part of the images, I/N")
    parser.add_argument("--follow", action="store_true", help="read and evaluate, until interrupted")
    parser.add_argument("--epochs", type=int, default=2)
    of = parser.parse_args()
    if of.address and of.follow:
        follow(of.address, of.folder, lambda: True)
        return
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
        follow(servers.address, of.folder, lambda: any(process.is_alive() for process in processes))
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a process failed")


if __name__ == "__main__":
    main()
