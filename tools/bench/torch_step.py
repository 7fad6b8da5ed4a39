#!/usr/bin/env python3
"""Training steps of PyTorch, the peer of local_step.cc: same models, shapes, optimizers, data.

Reads requests from standard input or the file named, one a line, and answers each with a line, as local_step does:

    deepfm/256-128 1024 adagrad step 2.0      ->  ok STEPS SECONDS CPU_SECONDS

MODEL/HIDDEN (deepfm, dlrm or mlp), the batch, the optimizer (adagrad or sgd), what to repeat (step, or products: the
step's matrix products alone), and for how many seconds, after a quarter of that as warm-up. What it cannot do it
answers with "error: ", and goes on. By hand:

    echo deepfm/256-128 1024 adagrad step 2 | OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 /usr/bin/python3 torch_step.py
    echo deepfm/256-128 16384 adagrad step 2 | python3 torch_step.py --device cuda --precision bf16 --compile

On the CPU it is one thread, eager. On a device all of the step is there: parameters, embeddings, forward, backward,
optimizer. The batches lie in pinned memory and are copied in each step; nothing waits for the device but the end of
what is timed. --precision bf16 is autocast; --compile is torch.compile of the model and its loss, whose compilation is
not timed. (The optimizer is not compiled.)

Debian has it as python3-torch: apt-get install --no-install-recommends python3-torch
"""
import argparse
import contextlib
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Before the libraries load.

try:
    import torch
except ImportError as missing:
    print(f"error: no torch for this Python ({missing}); "
          "Debian: apt-get install --no-install-recommends python3-torch", flush=True)
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


def embedding(dim, sparse):
    """Sparse gradients on the CPU, where with dense ones every step would go through all rows; dense ones on a device,
    where that is one pass over 18 MB, and where torch.compile takes no others."""
    return torch.nn.Embedding(FIELDS * VALUES, dim, sparse=sparse)


class DeepFM(torch.nn.Module):
    def __init__(self, hidden, sparse):
        super().__init__()
        self.linear = embedding(1, sparse)
        self.embedding = embedding(DIM, sparse)
        self.numeric = torch.nn.Linear(NUMERIC, 1)
        self.mlp = mlp([FIELDS * DIM + NUMERIC] + hidden + [1])
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.normal_(self.embedding.weight, std=0.01)
        self.loss = torch.nn.BCEWithLogitsLoss()

    def forward(self, keys, numeric, labels):
        v = self.embedding(keys)
        total = v.sum(1)
        pairs = 0.5 * (total * total - (v * v).sum(1)).sum(1)
        x = torch.cat([v.flatten(1), numeric], 1)
        logits = (self.mlp(x) + self.numeric(numeric)).squeeze(1) + self.linear(keys).sum((1, 2)) + pairs
        return self.loss(logits, labels)


class Dlrm(torch.nn.Module):
    def __init__(self, hidden, sparse):
        super().__init__()
        self.embedding = embedding(DIM, sparse)
        self.bottom = torch.nn.Sequential(mlp([NUMERIC] + BOTTOM + [DIM]), torch.nn.ReLU())
        vectors = FIELDS + 1
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))
        self.mlp = mlp([DIM + vectors * (vectors - 1) // 2] + hidden + [1])
        torch.nn.init.normal_(self.embedding.weight, std=0.01)
        self.loss = torch.nn.BCEWithLogitsLoss()

    def forward(self, keys, numeric, labels):
        bottom = self.bottom(numeric)
        v = torch.cat([bottom.unsqueeze(1), self.embedding(keys)], 1)
        products = torch.bmm(v, v.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.loss(self.mlp(torch.cat([bottom, products], 1)).squeeze(1), labels)


class Mlp(torch.nn.Module):
    def __init__(self, hidden, sparse):
        super().__init__()
        self.mlp = mlp([PIXELS] + hidden + [CLASSES])
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, labels):
        return self.loss(self.mlp(x), labels)


class Device:
    """Where steps run, and how."""

    def __init__(self, name, precision, compiled):
        self.cuda = name != "cpu"
        if self.cuda and not torch.cuda.is_available():
            raise RuntimeError(f"torch {torch.__version__} sees no CUDA device")
        if compiled and not hasattr(torch, "compile"):
            raise RuntimeError(f"torch {torch.__version__} has no torch.compile")
        self.device = torch.device(name)
        self.bf16 = precision == "bf16"
        self.compiled = compiled
        if self.cuda:
            torch.cuda.set_device(self.device if self.device.index is not None else 0)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"

    def pin(self, batch):
        return [x.pin_memory() for x in batch] if self.cuda else batch

    def take(self, batch):
        return [x.to(self.device, non_blocking=True) for x in batch] if self.cuda else batch

    def precision(self):
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def finish(self):
        if self.cuda:
            torch.cuda.synchronize()


class Training:
    def __init__(self, device, name, batch, optimizer):
        torch.manual_seed(SEED)
        kind, hidden = name.split("/")
        hidden = [int(width) for width in hidden.split("-")]
        self.device, self.batch = device, batch
        make = {"deepfm": DeepFM, "dlrm": Dlrm, "mlp": Mlp}[kind]
        self.model = make(hidden, sparse=not device.cuda and not device.compiled).to(device.device)
        make = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}[optimizer]
        self.optimizer = make(self.model.parameters(), lr=0.05 if optimizer == "adagrad" else 0.01)
        self.loss = torch.compile(self.model, dynamic=False) if device.compiled else self.model
        self.batches = [device.pin(self.draw(kind, batch)) for _ in range(min(16, max(2, SAMPLES // batch)))]
        self.count = 0
        self.products_of = None

    @staticmethod
    def draw(kind, batch):
        if kind == "mlp":
            return [torch.rand(batch, PIXELS), torch.randint(CLASSES, (batch,))]
        ranks = torch.arange(1, VALUES + 1, dtype=torch.float64) ** -ZIPF
        keys = torch.multinomial(ranks, batch * FIELDS, replacement=True).view(batch, FIELDS)
        keys += torch.arange(FIELDS) * VALUES
        return [keys, torch.randn(batch, NUMERIC), (torch.rand(batch) < 0.25).float()]

    def step(self):
        batch = self.device.take(self.batches[self.count % len(self.batches)])
        self.count += 1
        self.optimizer.zero_grad(set_to_none=True)
        with self.device.precision():
            loss = self.loss(*batch)
        loss.backward()
        self.optimizer.step()

    def shapes(self):
        """x, weight, dy of each layer, and whether the gradient of x is wanted."""
        layers = []
        to = {"device": self.device.device, "dtype": torch.bfloat16 if self.device.bf16 else torch.float32}
        for part in ("bottom", "mlp"):
            linears = [m for m in getattr(self.model, part, torch.nn.Identity()).modules()
                       if isinstance(m, torch.nn.Linear)]
            for i, layer in enumerate(linears):
                wanted = i > 0 or (part == "mlp" and not isinstance(self.model, Mlp))
                layers.append((torch.rand(self.batch, layer.in_features, **to),
                               torch.rand(layer.out_features, layer.in_features, **to),
                               torch.rand(self.batch, layer.out_features, **to), wanted))
        return layers

    def products(self):
        if self.products_of is None:
            self.products_of = self.shapes()
        with torch.no_grad():
            for x, weight, dy, wanted in self.products_of:
                torch.mm(x, weight.t())
                torch.mm(dy.t(), x)
                if wanted:
                    torch.mm(dy, weight)


def repeat(work, finish, seconds):
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:
        work()
    finish()
    steps, begin, cpu = 0, time.perf_counter(), time.process_time()
    while True:
        work()
        steps += 1
        if time.perf_counter() - begin >= seconds:
            finish()
            return steps, time.perf_counter() - begin, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser(description="Training steps of PyTorch; see the beginning of this file.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--precision", default="f32", choices=["f32", "tf32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("file", nargs="?", help="the requests (default: standard input)")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    try:
        device = Device(flags.device, flags.precision, flags.compile)
    except RuntimeError as error:
        print(f"error: {error}", flush=True)
        sys.exit(1)
    training, made = None, None
    for line in open(flags.file) if flags.file else sys.stdin:
        try:
            name, batch, optimizer, what, seconds = line.split()
            if made != (name, batch, optimizer):
                training = made = None  # First, so that its memory is free.
                training, made = Training(device, name, int(batch), optimizer), (name, batch, optimizer)
            steps, taken, cpu = repeat({"step": training.step, "products": training.products}[what], device.finish,
                                       float(seconds))
            print(f"ok {steps} {taken:.6f} {cpu:.6f}", flush=True)
        except Exception as error:  # Of any kind: no memory, nothing that compiles for this device.
            training = made = None
            print("error: " + (" ".join(str(error).split())[:300] or type(error).__name__), flush=True)


if __name__ == "__main__":
    main()
