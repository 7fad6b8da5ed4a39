#!/usr/bin/env python3
"""Trains what quality_data has written in one PyTorch process: the model, start, optimizers, batch size and epochs of a
configuration, synchronously; the peer that quality.py compares with.

    torch_model.py FOLDER [--seed N] [--threads N] [--delay D]     prints one JSON object

--delay applies each gradient D steps late. The optimizers are written out here as proto/table.proto defines them, rows
by row, since torch.optim's sparse ones differ in epsilon, or count steps for all rows together.

Debian has it as python3-torch: apt-get install --no-install-recommends python3-torch python3-numpy
"""
import argparse
import collections
import json
import os
import sys
import time

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Before the library loads.
import torch  # noqa: E402

EVALUATION_BATCH = 8192


class Table:
    """A table's values and what its optimizer keeps: dense, or rows of which a step touches some."""

    def __init__(self, description, start):
        self.dense = description["dense"]
        self.values = torch.from_numpy(start.copy())
        optimizer = description["optimizer"]
        kinds = [k for k in ("sgd", "momentum", "adagrad", "adam", "rmsprop") if k in optimizer]
        self.kind = kinds[0] if kinds else "sgd"
        known = {"sgd", "momentum", "adagrad", "adam", "rmsprop", "learningRate", "schedule", "weightDecay"}
        if set(optimizer) - known:
            sys.exit(f"torch_model: {description['name']}: {sorted(set(optimizer) - known)} is not written here")
        self.options = optimizer.get(self.kind, {})
        self.rate = optimizer.get("learningRate", 0.01)
        self.schedule = optimizer.get("schedule", {})
        self.decay = optimizer.get("weightDecay", 0.0)
        self.steps = 0
        self.first = torch.full_like(self.values, self.options.get("initialAccumulator", 0.0))
        self.second = torch.zeros_like(self.values) if self.kind == "adam" else None
        self.counts = torch.zeros(len(self.values))  # Steps of each row (Adam); of a dense table the first counts.

    def scheduled_rate(self):
        step, warm = self.steps, int(self.schedule.get("warmupSteps", 0))
        if step < warm:
            return self.rate * step / warm
        step -= warm
        if "inverseSqrt" in self.schedule:
            steps = float(self.schedule["inverseSqrt"].get("steps", 1000))
            return self.rate * (steps / (steps + step)) ** 0.5
        if "step" in self.schedule:
            of = self.schedule["step"]
            return self.rate * of.get("factor", 0.5) ** (step // int(of.get("everySteps", 1000)))
        if "cosine" in self.schedule:
            of = self.schedule["cosine"]
            done = min(1.0, step / float(of.get("steps", 10000)))
            floor = of.get("floor", 0.0)
            return self.rate * (floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * done)))
        return self.rate

    def step(self, rows, gradient):
        """Applies a gradient: of all values (rows is None), or of these distinct rows."""
        rate = self.scheduled_rate()
        self.steps += 1
        at = slice(None) if rows is None else rows
        values = self.values[at]
        if self.decay:
            gradient = gradient + self.decay * values
        if self.kind == "adagrad":
            state = self.first[at] + gradient * gradient
            self.first[at] = state
            change = gradient / (state.sqrt() + self.options.get("epsilon", 1e-7))
        elif self.kind == "rmsprop":
            rho = self.options.get("rho", 0.9)
            state = rho * self.first[at] + (1 - rho) * gradient * gradient
            self.first[at] = state
            change = gradient / (state.sqrt() + self.options.get("epsilon", 1e-7))
        elif self.kind == "momentum":
            change = self.options.get("momentum", 0.9) * self.first[at] + gradient
            self.first[at] = change
        elif self.kind == "adam":
            beta1, beta2 = self.options.get("beta1", 0.9), self.options.get("beta2", 0.999)
            mean = beta1 * self.first[at] + (1 - beta1) * gradient
            square = beta2 * self.second[at] + (1 - beta2) * gradient * gradient
            self.first[at], self.second[at] = mean, square
            self.counts[at] += 1
            count = float(self.counts[0]) if rows is None else self.counts[at][:, None]
            change = mean / (1 - beta1 ** count) / ((square / (1 - beta2 ** count)).sqrt() + self.options.get("epsilon", 1e-8))
        else:
            change = gradient
        self.values[at] = values - rate * change


class Samples:
    """One set, from which batches are taken."""

    def __init__(self, data, name, fields):
        self.labels = torch.from_numpy(data[name + "/labels"])
        self.numeric = torch.from_numpy(data[name + "/numeric"])
        self.offsets = data[name + "/offsets"]
        self.rows = data[name + "/rows"]
        self.values = data[name + "/values"] if name + "/values" in data else None
        self.fields = fields
        if fields:
            self.matrix = self.rows.reshape(len(self.labels), fields)

    def __len__(self):
        return len(self.labels)

    def batch(self, indices):
        """Labels, numbers, the distinct rows, and for each feature its sample, its place among them and its value."""
        taken = torch.from_numpy(indices)
        if len(self.rows) == 0:
            return self.labels[taken], self.numeric[taken], None, None, None, None
        if self.fields:
            features = self.matrix[indices].ravel()
            sample = np.repeat(np.arange(len(indices)), self.fields)
            at = None
        else:
            begins, counts = self.offsets[indices], self.offsets[indices + 1] - self.offsets[indices]
            sample = np.repeat(np.arange(len(indices)), counts)
            at = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
            features = self.rows[at]
        distinct, place = np.unique(features, return_inverse=True)
        values = None
        if self.values is not None and at is not None:
            values = torch.from_numpy(self.values[at])
        return (self.labels[taken], self.numeric[taken], torch.from_numpy(distinct), torch.from_numpy(sample),
                torch.from_numpy(place), values)


class Model:
    def __init__(self, folder):
        with open(os.path.join(folder, "model.json"), encoding="utf-8") as file:
            self.plan = json.load(file)
        if self.plan["bottom"]:
            sys.exit("torch_model: dlrm is not written here")
        data = np.load(os.path.join(folder, "data.npz"))
        self.data = {name: data[name] for name in data.files}
        self.tables = {t["name"]: Table(t, self.data["start/" + t["name"]]) for t in self.plan["tables"]}
        self.prior = torch.from_numpy(self.data["prior"]) if len(self.data["prior"]) else None
        self.sets = {name: Samples(self.data, name, self.plan["fields"]) for name in ("train", "test")}

    def logits(self, parameters, batch, training):
        _, numeric, distinct, sample, place, values = batch
        size, plan = len(batch[0]), self.plan
        logits = parameters["bias"].expand(size, -1)
        if self.prior is not None:
            logits = logits + self.prior
        if plan["linear_numeric"]:
            logits = logits + numeric @ parameters["numeric"]
        if plan["embedding_dim"]:
            weights, vectors = torch.split(parameters["embedding"][place],
                                           (plan["linear_columns"], plan["embedding_dim"]), 1)
        if plan["linear_rows"]:
            features = weights if plan["linear_columns"] else parameters["linear"][place]
            if values is not None:
                features = features * values[:, None]
            logits = logits.index_add(0, sample, features)
        if plan["pairs"]:
            scaled = vectors if values is None else vectors * values[:, None]
            zeros = torch.zeros(size, plan["embedding_dim"])
            sums, squares = zeros.index_add(0, sample, scaled), zeros.index_add(0, sample, scaled * scaled)
            logits = logits + 0.5 * (sums * sums - squares).sum(1, keepdim=True)
        if plan["mlp"]:
            x = numeric
            if plan["type"] == "deepfm":
                x = torch.cat((vectors.reshape(size, -1), numeric), 1)
            for i, layer in enumerate(plan["mlp"]):
                x = x @ parameters[f"mlp/{i}/weight"]
                if layer["activation"] == 0:
                    continue
                x = x + parameters[f"mlp/{i}/bias"]
                x = torch.relu(x) if layer["activation"] == 1 else torch.nn.functional.gelu(x, approximate="tanh")
                if training and plan["dropout"] > 0:
                    x = torch.nn.functional.dropout(x, plan["dropout"])
            logits = logits + x
        return logits

    def losses(self, logits, labels):
        if self.plan["loss"] == "logistic":
            return torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels, reduction="none")
        if self.plan["loss"] == "softmax":
            return torch.nn.functional.cross_entropy(logits, labels.long(), reduction="none")
        return 0.5 * (logits[:, 0] - labels) ** 2

    def parameters(self, distinct):
        """The values that a batch is computed from, as leaves."""
        return {name: (table.values.clone() if table.dense else table.values[distinct]).requires_grad_()
                for name, table in self.tables.items() if table.dense or distinct is not None}

    def train(self, seed, delay):
        plan, samples = self.plan, self.sets["train"]
        generator = np.random.default_rng(seed)
        torch.manual_seed(seed)
        waiting = collections.deque()
        total, left, steps = int(round(plan["epochs"] * len(samples))), 0, 0
        left = total
        while left > 0:
            order = generator.permutation(len(samples))[:left]
            left -= len(order)
            for indices in np.array_split(order, -(-len(order) // plan["batch_size"])):
                batch = samples.batch(indices)
                distinct = batch[2]
                parameters = self.parameters(distinct)
                loss = self.losses(self.logits(parameters, batch, True), batch[0]).mean()
                if plan["l2"] and distinct is not None:
                    for name, table in self.tables.items():
                        if not table.dense:
                            loss = loss + plan["l2"] / 2 * (parameters[name] ** 2).sum()
                loss.backward()
                waiting.append((distinct, {name: leaf.grad for name, leaf in parameters.items()}))
                if len(waiting) > delay:
                    self.apply(*waiting.popleft())
                steps += 1
        while waiting:
            self.apply(*waiting.popleft())
        return total

    def apply(self, distinct, gradients):
        with torch.no_grad():
            for name, gradient in gradients.items():
                table = self.tables[name]
                if gradient is not None:
                    table.step(None if table.dense else distinct, gradient)

    def evaluate(self):
        samples, logits, loss = self.sets["test"], [], 0.0
        with torch.no_grad():
            for begin in range(0, len(samples), EVALUATION_BATCH):
                batch = samples.batch(np.arange(begin, min(begin + EVALUATION_BATCH, len(samples))))
                scores = self.logits(self.parameters(batch[2]), batch, False)
                loss += float(self.losses(scores, batch[0]).sum())
                logits.append(scores.numpy())
        scores, labels = np.concatenate(logits), samples.labels.numpy()
        result = {"samples": len(labels), "loss": loss / len(labels)}
        if self.plan["loss"] == "softmax":
            result["accuracy"] = float((scores.argmax(1) == labels).mean())
        elif self.plan["loss"] == "logistic":
            result["accuracy"] = float(((scores[:, 0] >= 0) == (labels > 0.5)).mean())
            result["auc"] = auc(scores[:, 0], labels > 0.5)
        else:
            result["rmse"] = float(np.sqrt(np.mean((scores[:, 0] - labels) ** 2)))
        return result


def auc(scores, positive):
    """The Mann-Whitney statistic, equal scores counted half."""
    order = np.argsort(scores, kind="stable")
    _, first, counts = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.empty(len(scores))
    ranks[order] = np.repeat(first + (counts + 1) / 2, counts)
    n = int(positive.sum())
    m = len(scores) - n
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the samples, and of dropout")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0, help="steps that each gradient is applied late")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    model = Model(arguments.folder)
    begin = time.monotonic()
    samples = model.train(arguments.seed, arguments.delay)
    seconds = time.monotonic() - begin
    print(json.dumps({"samples": samples, "seconds": seconds, "samples_per_second": samples / max(seconds, 1e-9),
                      "test": model.evaluate()}))


if __name__ == "__main__":
    main()
