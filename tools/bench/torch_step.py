#!/usr/bin/env python3
"""Training steps of PyTorch (eager, one thread, CPU), the peer of local_step.cc: same models, shapes, optimizers, data.

Reads requests from standard input or the file named, one a line, and answers each with a line, as local_step does:

    deepfm/256-128 1024 adagrad step 2.0      ->  ok STEPS SECONDS CPU_SECONDS

MODEL/HIDDEN (deepfm, dlrm or mlp), the batch, the optimizer (adagrad or sgd), what to repeat (step, or products: the
step's matrix products alone), and for how many seconds, after a quarter of that as warm-up. By hand:

    echo deepfm/256-128 1024 adagrad step 2 | OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 /usr/bin/python3 torch_step.py

Debian has it as python3-torch: apt-get install --no-install-recommends python3-torch
"""
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Before the libraries load.

try:
    import torch
except ImportError:
    print("error: this Python has no torch; Debian: apt-get install --no-install-recommends python3-torch", flush=True)
    sys.exit(1)

# The sizes of step_sizes.h.
FIELDS, NUMERIC, DIM, VALUES, ZIPF = 26, 13, 16, 10000, 1.05
PIXELS, CLASSES = 784, 10
BOTTOM = [64]
SAMPLES = 1 << 17  # Drawn, but at least two batches and at most 16.
SEED = 1


def mlp(widths):
    layers = []
    for i in range(len(widths) - 1):
        layers.append(torch.nn.Linear(widths[i], widths[i + 1]))
        if i + 2 < len(widths):
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


class DeepFM(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        # Sparse gradients: with dense ones, every step would update all rows.
        self.linear = torch.nn.Embedding(FIELDS * VALUES, 1, sparse=True)
        self.embedding = torch.nn.Embedding(FIELDS * VALUES, DIM, sparse=True)
        self.numeric = torch.nn.Linear(NUMERIC, 1)
        self.mlp = mlp([FIELDS * DIM + NUMERIC] + hidden + [1])
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.normal_(self.embedding.weight, std=0.01)
        self.loss = torch.nn.BCEWithLogitsLoss()

    def forward(self, keys, numeric):
        v = self.embedding(keys)
        total = v.sum(1)
        pairs = 0.5 * (total * total - (v * v).sum(1)).sum(1)
        x = torch.cat([v.flatten(1), numeric], 1)
        return (self.mlp(x) + self.numeric(numeric)).squeeze(1) + self.linear(keys).sum((1, 2)) + pairs


class Dlrm(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = torch.nn.Embedding(FIELDS * VALUES, DIM, sparse=True)
        self.bottom = torch.nn.Sequential(mlp([NUMERIC] + BOTTOM + [DIM]), torch.nn.ReLU())
        vectors = FIELDS + 1
        self.pairs = torch.tril_indices(vectors, vectors, -1)
        self.mlp = mlp([DIM + vectors * (vectors - 1) // 2] + hidden + [1])
        torch.nn.init.normal_(self.embedding.weight, std=0.01)
        self.loss = torch.nn.BCEWithLogitsLoss()

    def forward(self, keys, numeric):
        bottom = self.bottom(numeric)
        v = torch.cat([bottom.unsqueeze(1), self.embedding(keys)], 1)
        products = torch.bmm(v, v.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.mlp(torch.cat([bottom, products], 1)).squeeze(1)


class Mlp(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.mlp = mlp([PIXELS] + hidden + [CLASSES])
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x):
        return self.mlp(x)


class Training:
    def __init__(self, name, batch, optimizer):
        torch.manual_seed(SEED)
        kind, hidden = name.split("/")
        hidden = [int(width) for width in hidden.split("-")]
        self.model = {"deepfm": DeepFM, "dlrm": Dlrm, "mlp": Mlp}[kind](hidden)
        make = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}[optimizer]
        self.optimizer = make(self.model.parameters(), lr=0.05 if optimizer == "adagrad" else 0.01)
        self.batches = [self.draw(kind, batch) for _ in range(min(16, max(2, SAMPLES // batch)))]
        self.count = 0
        self.products_of = self.shapes(batch)

    @staticmethod
    def draw(kind, batch):
        if kind == "mlp":
            return (torch.rand(batch, PIXELS),), torch.randint(CLASSES, (batch,))
        ranks = torch.arange(1, VALUES + 1, dtype=torch.float64) ** -ZIPF
        keys = torch.multinomial(ranks, batch * FIELDS, replacement=True).view(batch, FIELDS)
        keys += torch.arange(FIELDS) * VALUES
        return (keys, torch.randn(batch, NUMERIC)), (torch.rand(batch) < 0.25).float()

    def step(self):
        inputs, labels = self.batches[self.count % len(self.batches)]
        self.count += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(self.model(*inputs), labels)
        loss.backward()
        self.optimizer.step()

    def shapes(self, batch):
        """x, weight, dy of each layer, and whether the gradient of x is wanted."""
        layers = []
        for part in ("bottom", "mlp"):
            linears = [m for m in getattr(self.model, part, torch.nn.Identity()).modules()
                       if isinstance(m, torch.nn.Linear)]
            for i, layer in enumerate(linears):
                wanted = i > 0 or (part == "mlp" and not isinstance(self.model, Mlp))
                layers.append((torch.rand(batch, layer.in_features), torch.rand(layer.out_features, layer.in_features),
                               torch.rand(batch, layer.out_features), wanted))
        return layers

    def products(self):
        with torch.no_grad():
            for x, weight, dy, wanted in self.products_of:
                torch.mm(x, weight.t())
                torch.mm(dy.t(), x)
                if wanted:
                    torch.mm(dy, weight)


def repeat(work, seconds):
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:
        work()
    steps, begin, cpu = 0, time.perf_counter(), time.process_time()
    while True:
        work()
        steps += 1
        taken = time.perf_counter() - begin
        if taken >= seconds:
            return steps, taken, time.process_time() - cpu


def main():
    torch.set_num_threads(1)
    training, made = None, None
    for line in open(sys.argv[1]) if len(sys.argv) > 1 else sys.stdin:
        name, batch, optimizer, what, seconds = line.split()
        if made != (name, batch, optimizer):
            training, made = Training(name, int(batch), optimizer), (name, batch, optimizer)
        steps, taken, cpu = repeat(getattr(training, what), float(seconds))
        print(f"ok {steps} {taken:.6f} {cpu:.6f}", flush=True)


if __name__ == "__main__":
    main()
