#!/usr/bin/env python3
"""DeepFM on Criteo's clicks: the embeddings' rows and the tower's parameters live on the cluster.

    python3 deepfm.py TRAIN.tsv TEST.tsv                              servers of its own
    python3 deepfm.py TRAIN.tsv TEST.tsv --address ps-0:7000          of a cluster that runs
"""

import argparse
import contextlib
import tempfile
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import lodestone
import lodestone.torch

NUMBERS, FIELDS, DIM = 13, 26, 8


def load(path):
    """Labels [n], numbers [n, 13] as log(1 + x), keys [n, 26]: a field's number in the high bits, its text's hash below."""
    labels, numbers, keys = [], [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            columns = line.rstrip("\n").split("\t")
            labels.append(float(columns[0]))
            numbers.append([np.log1p(max(0.0, float(x))) if x else 0.0 for x in columns[1:1 + NUMBERS]])
            keys.append([(f << 32) | zlib.crc32(x.encode()) for f, x in enumerate(columns[1 + NUMBERS:])])
    return torch.tensor(labels), torch.tensor(numbers, dtype=torch.float32), torch.tensor(keys)


class DeepFM(nn.Module):
    """Guo et al. 2017: bias + linear + second-order + MLP. Rows of `linear` and `factors` are the cluster's."""

    def __init__(self, cluster):
        super().__init__()
        adagrad = lodestone.Adagrad(0.05)
        self.linear = lodestone.torch.Embedding(cluster.embedding("deepfm/linear", 1, adagrad))
        self.factors = lodestone.torch.Embedding(
            cluster.embedding("deepfm/factors", DIM, adagrad, lodestone.Normal(0, 0.01)))
        self.numbers = nn.Linear(NUMBERS, 1)
        self.tower = nn.Sequential(nn.Linear(FIELDS * DIM + NUMBERS, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers, keys):
        factors = self.factors(keys)
        second_order = (factors.sum(1).pow(2) - factors.pow(2).sum(1)).sum(1) / 2
        deep = self.tower(torch.cat([factors.flatten(1), numbers], 1)).squeeze(1)
        return self.linear(keys).sum((1, 2)) + self.numbers(numbers).squeeze(1) + second_order + deep


def auc(scores, labels):
    """The share of pairs of a click and no click in which the click has the higher score; ties count half."""
    order = torch.argsort(scores)
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    for score in scores.unique():
        same = scores == score
        if same.sum() > 1:
            ranks[same] = ranks[same].mean()
    positives = labels.sum().item()
    return (ranks[labels == 1].sum().item() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--address", help="host:port of ps 0; none: servers of its own")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--crash", action="store_true", help="kill a server in the middle and start it again")
    of = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    labels, numbers, keys = load(of.train)
    with contextlib.ExitStack() as stack:
        if of.address:
            cluster = stack.enter_context(lodestone.connect(of.address))
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            servers = stack.enter_context(lodestone.local(servers=2, folder=folder))
            cluster = stack.enter_context(servers.connect())
        model = DeepFM(cluster)
        optimizer = lodestone.torch.AsyncOptimizer(model, cluster, lodestone.Adam(1e-3), prefix="deepfm/")
        for epoch in range(of.epochs):
            model.train()
            batches = torch.randperm(len(labels)).split(128)
            wanted = {model.linear: lambda batch: keys[batch], model.factors: lambda batch: keys[batch]}
            for step, batch in enumerate(lodestone.torch.prefetch(batches, wanted)):
                optimizer.zero_grad()
                loss = functional.binary_cross_entropy_with_logits(model(numbers[batch], keys[batch]), labels[batch])
                loss.backward()
                optimizer.step(loss=loss.item())
                if of.crash and not of.address and epoch == 0 and step == 20:
                    servers.kill(1)
                    servers.start(1)
            print(f"epoch {epoch}: loss of the last batch {loss.item():.4f}", flush=True)
        cluster.flush()
        optimizer.refresh()
        model.eval()
        test_labels, test_numbers, test_keys = load(of.test)
        with torch.no_grad():
            print(f"auc {auc(model(test_numbers, test_keys), test_labels):.4f}")


if __name__ == "__main__":
    main()
