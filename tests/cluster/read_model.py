#!/usr/bin/python3
"""Predicts by a model that psctl has exported, with NumPy alone: another program that uses what the file says.

    read_model.py MODEL.safetensors|MODEL.npz DATA    prints a line per sample: its score, or its class and probability

Reads linear, fm, mf, deepfm, mlp, widedeep, dcn, twotower and multitask models of csv (with a header) and criteo data. tools/psctl/README.md describes the
file; what is done here is done by what stands there.
"""

import bisect
import csv
import datetime
import json
import math
import sys

import numpy as np

MASK = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stable_hash(data, salt):
    h = mix64(salt ^ ((0xFF51AFD7ED558CCD * (len(data) + 1)) & MASK))
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        h = mix64(h ^ int.from_bytes(data[i : i + 8], "little"))
    return mix64(h ^ int.from_bytes(data[whole:], "little"))


def read_file(path):
    """Tensors and metadata of a file."""
    if path.endswith(".npz"):
        with np.load(path) as npz:
            metadata = {name[: -len(".json")]: json.loads(npz[name]) for name in npz.files if name.endswith(".json")}
            return {name: npz[name] for name in npz.files if not name.endswith(".json")}, metadata
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        content = file.read()
    metadata = {name: json.loads(text) for name, text in header.pop("__metadata__").items()}
    types = {"F32": np.float32, "U64": np.uint64, "I64": np.int64}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(content[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def normal_quantile(p):
    """Wichura 1988, AS 241, PPND7."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return (
            q
            * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179)
            / (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0)
        )
    r = math.sqrt(-math.log(p if q < 0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        r = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) / (
            (0.12021132975 * r + 0.73700164250) * r + 1.0
        )
    else:
        r -= 5.0
        r = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) / (
            (0.012258202635 * r + 0.24197894225) * r + 1.0
        )
    return -r if q < 0 else r


class Rows:
    """An embedding table: the file's rows, and what a row is that the file does not hold."""

    def __init__(self, name, tensors, cluster):
        keys = tensors[name + ".keys"].astype(np.uint64)
        self.index = {int(key): i for i, key in enumerate(keys)}
        self.values = tensors[name + ".values"]
        spec = next(table for table in cluster["tables"] if table["name"] == name)
        self.initializer = spec.get("initializer", {})
        self.seed = mix64(mix64(int(cluster["seed"])) ^ stable_hash(name.encode(), 0))

    def row(self, key):
        if key in self.index:
            return self.values[self.index[key]]
        zeros = self.initializer.get("zero_columns", 0)
        return np.concatenate([np.zeros(zeros, np.float32), self.drawn(key, self.values.shape[1] - zeros)])

    def drawn(self, key, dim):
        if "normal" not in self.initializer:
            return np.full(dim, self.initializer.get("constant", {}).get("value", 0.0), np.float32)
        normal = self.initializer["normal"]
        stream = mix64(mix64(self.seed) ^ key)
        row = []
        for i in range(dim):
            bits = mix64((stream + mix64(i)) & MASK) >> 12
            row.append(normal.get("mean", 0.0) + normal["stddev"] * normal_quantile((bits + 0.5) * 2.0**-52))
        return np.array(row, np.float32)


def seconds(text, time):
    """Seconds since 1970 of a date or time."""
    iso = time["format"] == "iso8601" or (time["format"] == "auto" and ("-" in text[1:] or "T" in text[1:]))
    if not iso:
        return float(text)
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp()


def part(text, time):
    """What a time's feature is."""
    t = seconds(text, time)
    if time["part"] == "age_days":
        return (time["age_at"] - t) / 86400
    days = math.floor(t / 86400)
    return (days + 3) % 7 if time["part"] == "weekday" else math.floor((t - 86400 * days) / 3600)


def number(text, column):
    if column.get("indicates_missing"):
        return 1.0 if text is None else 0.0
    transform = column["transform"]
    if text is None:
        return 0.0
    x = part(text, column["time"]) if column.get("time") else float(text)
    if transform.startswith("log"):
        x = math.copysign(math.log1p(abs(x)), x)
    if transform == "unit":
        x /= 255
    if transform.endswith("standardize"):
        x = (x - column["mean"]) / column["deviation"]
    return x


def category(text, column):
    """What the key of a category is the hash of; None: it is missing."""
    if text is not None and column.get("time"):
        return str(math.floor(part(text, column["time"])))
    if text is None or not column["bucket"]:
        return text or ""
    x = float(text)
    if column["bucket"] == "log2":
        return str(int(math.copysign(math.frexp(abs(x))[1], x)) if abs(x) >= 1 else 0)
    return str(bisect.bisect_right(column["bounds"], x))


def categories(text, column, missing):
    """The same of each category of a field that has any number of them."""
    pieces = [piece.strip(" \t") for piece in (text or "").split(column["separator"])]
    return [piece for piece in pieces if piece not in missing][: column["values_max"]] or [""]


POOLING = {"mean": np.mean, "sum": np.sum, "max": np.max}


def pooled(table, keys, column):
    """A field's row in a table: of several keys it is made of theirs."""
    rows = np.array([table.row(key) for key in keys], np.float64)
    return POOLING[column["pooling"]](rows, axis=0) if column.get("pooling") else rows[0]


def samples(path, data):
    """The texts of each sample's numeric and categorical columns; None: missing."""
    with open(path, newline="") as file:
        if data["format"] == "criteo":
            for line in file:
                fields = [field or None for field in line.rstrip("\r\n").split("\t")]
                yield fields[1:14], fields[14:]
            return
        reader = csv.reader(file, delimiter=data["delimiter"])
        places = {name: i for i, name in enumerate(next(reader))}
        missing = set(data["missing"]) | {""}
        for fields in reader:
            columns = {name: None if fields[i] in missing else fields[i] for name, i in places.items()}
            yield (
                [columns[column["name"]] for column in data["numeric"]],
                [columns[column["name"]] for column in data["categorical"]],
            )


def cross(network, tensors, x0):
    x = x0
    for layer in range(network["layers"]):
        if network["rank"] > 0:
            product = x @ tensors[f"cross/{layer}/down"] @ tensors[f"cross/{layer}/up"]
        else:
            product = x @ tensors[f"cross/{layer}/weight"]
        x = x0 * (product + tensors[f"cross/{layer}/bias"]) + x
    return x


def field_rows(name, model, rows, fields):
    """Each field's row of its table NAME or NAME/WIDTH; none if there are no such tables."""
    widths = model.get("field_dims") or [model["embedding_dim"]] * len(fields)
    tables = [name if width == model["embedding_dim"] else f"{name}/{width}" for width in widths]
    return [pooled(rows[table], *field) for table, field in zip(tables, fields) if table in rows]


def in_order(vectors, model):
    """The fields' vectors as the vector of all features has them: those of another width than embedding_dim last."""
    return sorted(vectors, key=lambda v: (len(v) != model["embedding_dim"], len(v)))


def tower(name, model, tensors, x):
    """The vector of one tower."""
    for layer in range(len(model["hidden"])):
        x = np.maximum(x @ tensors[f"{name}/{layer}/weight"] + tensors[f"{name}/{layer}/bias"], 0)
    x = x @ tensors[f"{name}/{len(model['hidden'])}/weight"]
    if model["two_tower"]["normalize"]:
        x = (x - x.mean()) / np.sqrt(len(x) * (x.var() + 1e-5))
    return x


def score_of(model, tensors, rows, numbers, fields):
    vectors = []
    embeddings = field_rows("embedding", model, rows, fields)
    for name in ("user", "item"):
        own = model["two_tower"][name]
        parts = [row for row, field in zip(embeddings, fields) if field[1]["name"] in own]
        parts += [[x] for x, column in zip(numbers, model["data"]["numeric"]) if column["name"] in own]
        vectors.append(tower(name, model, tensors, np.concatenate(parts)))
    return vectors[0] @ vectors[1] / model["two_tower"]["temperature"]


def hidden_layers(name, count, model, tensors, x):
    for layer in range(count):
        x = x @ tensors[f"{name}/{layer}/weight"]
        if model.get("layer_norm"):
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        x = np.maximum(x + tensors[f"{name}/{layer}/bias"], 0)
    return x


def multitask(model, tensors, x):
    """The towers' outputs, one for each label."""
    settings, layers = model["multitask"], len(model["hidden"])
    towers = len(settings["tower_hidden"])
    experts = [hidden_layers(f"expert/{e}", layers, model, tensors, x) for e in range(settings["experts"])]
    outputs = []
    for k in range(model["outputs"]):
        if experts:
            gate = np.exp(x @ tensors[f"gate/{k}/weight"])
            h = (gate / gate.sum()) @ np.array(experts)
        else:
            h = hidden_layers("bottom", layers, model, tensors, x)
        h = hidden_layers(f"tower/{k}", towers, model, tensors, h)
        outputs.append((h @ tensors[f"tower/{k}/{towers}/weight"])[0])
    return np.array(outputs)


def logits_of(model, tensors, rows, numbers, fields):
    """`fields`: of each its keys and its column."""
    logits = tensors["bias"].astype(np.float64)
    if model["prior"]:
        logits = logits + np.array(model["prior"])
    if "numeric" in tensors:
        logits = logits + numbers @ tensors["numeric"]
    logits = logits + sum(field_rows("linear", model, rows, fields))
    vectors = field_rows("embedding", model, rows, fields)
    if model.get("linear_columns"):
        logits = logits + sum(row[: model["linear_columns"]] for row in vectors)
        vectors = [row[model["linear_columns"] :] for row in vectors]
    x = np.concatenate([*in_order(vectors, model), numbers])
    if model["type"] in ("fm", "mf", "deepfm"):
        factors = np.array(vectors)
        if model.get("numeric_pairs"):
            factors = np.concatenate([factors, numbers[:, None] * tensors["numeric_embedding"]])
        logits = logits + 0.5 * (factors.sum(0) ** 2 - (factors**2).sum(0)).sum()
    if model["type"] == "multitask":
        logits = logits + multitask(model, tensors, x)
    if model["type"] in ("deepfm", "mlp", "widedeep", "dcn"):
        if model["type"] == "dcn":
            crossed = cross(model["cross"], tensors, x)
            if model["cross"]["structure"] == "parallel":
                logits = logits + crossed @ tensors["cross/out/weight"]
            else:
                x = crossed
        layers = len(model["hidden"])
        x = hidden_layers("mlp", layers, model, tensors, x)
        logits = logits + x @ tensors[f"mlp/{layers}/weight"]
    return logits


def main():
    tensors, metadata = read_file(sys.argv[1])
    model, cluster = metadata["lodestone_model"], metadata["lodestone"]
    assert model["format"] in (1, 2, 3, 4, 5, 6, 7, 8) and model["activation"] == "relu"
    data = model["data"]
    missing = set(data["missing"]) | {""}
    rows = {table["name"]: Rows(table["name"], tensors, cluster) for table in model["tables"] if not table["dims"]}
    for numeric, categorical in samples(sys.argv[2], data):
        numbers = np.array([number(text, column) for text, column in zip(numeric, data["numeric"])])
        fields = []
        for text, column in zip(categorical, data["categorical"]):
            several = column.get("pooling")
            texts = categories(text, column, missing) if several else [category(text, column)]
            fields.append(([stable_hash(text.encode(), int(column["salt"])) for text in texts], column))
        if model["type"] == "twotower":
            print(repr(float(score_of(model, tensors, rows, numbers, fields))))
            continue
        logits = logits_of(model, tensors, rows, numbers, fields)
        if model["type"] == "multitask":
            print(*(repr(1 / (1 + math.exp(-float(logit)))) for logit in logits))
        elif model["loss"] == "squared":
            output = float(logits[0])
            print(repr(output * data["label_deviation"] + data["label_mean"] if data["label_deviation"] > 0 else output))
        elif model["loss"] == "logistic":
            print(repr(1 / (1 + math.exp(-float(logits[0])))))
        else:
            shares = np.exp(logits - logits.max())
            best = int(shares.argmax())
            print(data["classes"][best]["name"], repr(float(shares[best] / shares.sum())))


if __name__ == "__main__":
    main()
