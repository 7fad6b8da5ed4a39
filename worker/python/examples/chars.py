#!/usr/bin/env python3
"""A character transformer whose parameters live on the cluster; each process trains on excerpts of its own.

    python3 -m lodestone launch --servers 2 --workers 2 chars.py input.txt          on this machine
    LODESTONE_ADDRESS=ps-0:7000 python3 chars.py input.txt                           one more worker of a cluster that runs

Worker 0 evaluates at the end, once all have taken their steps.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

import lodestone
import lodestone.torch

CONTEXT, DIM, HEADS, LAYERS = 32, 64, 4, 2


class Transformer(nn.Module):
    """Vaswani et al. 2017, the decoder alone, with normalization first."""

    def __init__(self, characters):
        super().__init__()
        self.characters = nn.Embedding(characters, DIM)
        nn.init.normal_(self.characters.weight, 0, 0.02)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, DIM))
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(DIM))
        for parameter in self.layers.parameters():  # Copies of one layer, of which each gets its own values.
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.out = nn.Linear(DIM, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text):
        return self.out(self.layers(self.characters(text) + self.places, self.mask))


def loss_of(model, text, begins):
    """The mean loss, in nats a character, of excerpts."""
    excerpts = text[begins.unsqueeze(1) + torch.arange(CONTEXT + 1)]
    return functional.cross_entropy(model(excerpts[:, :-1]).flatten(0, 1), excerpts[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="a file of text, whose last tenth is for evaluation")
    parser.add_argument("--steps", type=int, default=300, help="of each worker")
    parser.add_argument("--batch", type=int, default=32, help="excerpts in a step")
    of = parser.parse_args()
    torch.set_num_threads(1)
    with open(of.text, encoding="utf-8") as file:
        content = file.read()
    places = {character: i for i, character in enumerate(sorted(set(content)))}
    text = torch.tensor([places[character] for character in content])
    train, test = text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]
    with lodestone.connect() as cluster:
        torch.manual_seed(cluster.index)
        model = Transformer(len(places))
        optimizer = lodestone.torch.AsyncOptimizer(model, cluster, lodestone.Adam(2e-3, schedule={"warmup_steps": 50}),
                                                   prefix="chars/")
        for step in range(1, of.steps + 1):
            optimizer.zero_grad()
            loss = loss_of(model, train, torch.randint(len(train) - CONTEXT, (of.batch,)))
            loss.backward()
            optimizer.step(loss=loss.item())
            if step % 100 == 0:
                print(f"worker {cluster.index}: step {step}, loss {loss.item():.3f}", flush=True)
        cluster.flush()
        if cluster.index == 0:
            cluster.await_clock(of.steps)
            optimizer.refresh()
            model.eval()
            with torch.no_grad():
                found = loss_of(model, test, torch.arange(0, len(test) - CONTEXT, CONTEXT))
            print(f"test loss {found.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
