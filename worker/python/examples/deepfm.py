#!/usr/bin/env python3
"""DeepFM on Criteo's clicks: the embeddings' rows and all other parameters live on the cluster.

    python3 deepfm.py TRAIN.tsv TEST.tsv                              servers of its own
    python3 deepfm.py TRAIN.tsv TEST.tsv --address ps-0:7000          of a cluster that runs

It is the model of configs/criteo_deepfm.yaml, which lodestone-worker trains, without its dropout: the same tables, keys and
initial values.
"""

import argparse
import contextlib
import functools
import math
import tempfile

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import lodestone
import lodestone.torch

NUMBERS, FIELDS, DIM, HIDDEN = 13, 26, 4, (32, 16)
BITS = 2**64 - 1


def mix(x):
    """SplitMix64's finalizer (Steele et al. 2014)."""
    x = (x + 0x9e3779b97f4a7c15) & BITS
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & BITS
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & BITS
    return x ^ x >> 31


@functools.lru_cache(maxsize=None)
def key_of(text, field):
    """The hash that lodestone-worker makes of a category (tools/psctl/README.md)."""
    data = text.encode()
    hashed = mix(field ^ (0xff51afd7ed558ccd * (len(data) + 1)) & BITS)
    for begin in range(0, len(data) - 7, 8):
        hashed = mix(hashed ^ int.from_bytes(data[begin:begin + 8], "little"))
    return mix(hashed ^ int.from_bytes(data[len(data) // 8 * 8:], "little"))


def load(path):
    """Labels [n], numbers [n, 13] as +-log(1 + |x|), keys [n, 26]."""
    labels, numbers, keys = [], [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            columns = line.rstrip("\n").split("\t")
            labels.append(float(columns[0]))
            values = [float(x or 0) for x in columns[1:1 + NUMBERS]]
            numbers.append([math.copysign(math.log1p(abs(x)), x) for x in values])
            keys.append([key_of(x, f) for f, x in enumerate(columns[1 + NUMBERS:])])
    return torch.tensor(labels), torch.tensor(numbers), torch.from_numpy(np.array(keys, np.uint64).view(np.int64))


class DeepFM(nn.Module):
    """Guo et al. 2017: bias + linear + second-order + MLP."""

    def __init__(self, cluster, clicks):
        super().__init__()
        # weight_decay of a row acts in the batches that have it.
        adagrad = lodestone.Adagrad(0.01, weight_decay=1e-5)
        self.linear = lodestone.torch.Embedding(cluster.embedding("linear", 1, adagrad, lodestone.Zeros()))
        self.factors = lodestone.torch.Embedding(cluster.embedding("embedding", DIM, adagrad, lodestone.Normal(0, 0.01)))
        widths = (FIELDS * DIM + NUMBERS, *HIDDEN, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.numeric = nn.Parameter(torch.zeros(NUMBERS, 1))
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(i, o)) for i, o in zip(widths, widths[1:]))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in HIDDEN)
        # Initial values are those of the cluster's seed; the bias starts as the odds of a click.
        starts = {"bias": lodestone.Constant(math.log((clicks.sum() + 0.5) / ((1 - clicks).sum() + 0.5)))}
        starts.update({f"weights.{i}": lodestone.He() for i in range(len(HIDDEN))})
        starts[f"weights.{len(HIDDEN)}"] = lodestone.Xavier()
        names = {"bias": "bias", "numeric": "numeric"}
        names.update({f"weights.{i}": f"mlp/{i}/weight" for i in range(len(widths) - 1)})
        names.update({f"biases.{i}": f"mlp/{i}/bias" for i in range(len(HIDDEN))})
        self.tables = {name: cluster.dense(names[name], tuple(parameter.shape), lodestone.Adam(1e-3),
                                           starts.get(name, lodestone.Zeros()))
                       for name, parameter in self.named_parameters()}

    def forward(self, numbers, keys):
        factors = self.factors(keys)
        second_order = (factors.sum(1).pow(2) - factors.pow(2).sum(1)).sum(1) / 2
        deep = torch.cat([factors.flatten(1), numbers], 1)
        for weight, bias in zip(self.weights, self.biases):
            deep = functional.relu(deep @ weight + bias)
        deep = (deep @ self.weights[len(HIDDEN)]).squeeze(1)
        return self.bias + self.linear(keys).sum((1, 2)) + (numbers @ self.numeric).squeeze(1) + second_order + deep


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
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of initial values (servers of its own) and order")
    parser.add_argument("--exact", action="store_true", help="in the file's order, and each step waits for the one before")
    parser.add_argument("--crash", action="store_true", help="kill a server in the middle and start it again")
    of = parser.parse_args()
    torch.manual_seed(of.seed)
    torch.set_num_threads(1)
    labels, numbers, keys = load(of.train)
    with contextlib.ExitStack() as stack:
        if of.address:
            cluster = stack.enter_context(lodestone.connect(of.address))
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            servers = stack.enter_context(lodestone.local(servers=2, folder=folder, config={"cluster": {"seed": of.seed}}))
            cluster = stack.enter_context(servers.connect())
        model = DeepFM(cluster, labels)
        optimizer = lodestone.torch.AsyncOptimizer(model, cluster, tables=model.tables)
        for epoch in range(of.epochs):
            model.train()
            order = torch.arange(len(labels)) if of.exact else torch.randperm(len(labels))
            # As many batches as there must be, whose sizes differ by at most one.
            count = -(-len(order) // 64)
            batches = order.tensor_split([len(order) * i // count for i in range(1, count)])
            wanted = {model.linear: lambda batch: keys[batch], model.factors: lambda batch: keys[batch]}
            for step, batch in enumerate(lodestone.torch.prefetch(batches, wanted, ahead=0 if of.exact else 1)):
                optimizer.zero_grad()
                loss = functional.binary_cross_entropy_with_logits(model(numbers[batch], keys[batch]), labels[batch])
                loss.backward()
                optimizer.step(loss=loss.item())
                if of.exact:
                    cluster.flush()
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
