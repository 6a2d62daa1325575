"""Three training scripts for scripts/bench_gate.py: a GPT, a CNN with a DataLoader, and an RNN.

    python scripts/gate_workloads.py gpt 25     # 25 % more CPU time per iteration

The additional time is spent on matrix products, for a share of the CPU time of each iteration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 64
STEPS = 100_000


class Block(nn.Module):
    """Transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Any) -> Any:
        """Return the output."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).split(WIDTH, 2)
        q, k, v = (one.view(batch, length, 4, WIDTH // 4).transpose(1, 2) for one in parts)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """Language model of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(256, WIDTH), nn.Linear(WIDTH, 256)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return self.head(self.blocks(self.embedding(x))).flatten(0, 1)


class Rnn(nn.Module):
    """Classifier of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, WIDTH, batch_first=True), nn.Linear(WIDTH, 10)

    def forward(self, x: Any) -> Any:
        """Return the output."""
        return self.head(self.lstm(x)[0][:, -1])


def gpt() -> tuple[nn.Module, Iterator[Any]]:
    tokens = torch.randint(0, 256, (8, 65))
    batch = tokens[:, :-1], tokens[:, 1:].flatten()
    return Gpt(), (batch for _ in range(STEPS))


def cnn() -> tuple[nn.Module, Iterator[Any]]:
    layers: list[nn.Module] = []
    for given, made in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(given, made, 3, 2, 1), nn.BatchNorm2d(made), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 10))
    images = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(0, 10, (4096,)))
    loader = DataLoader(images, 64, shuffle=True, drop_last=True, num_workers=1)
    return model, (batch for _ in range(STEPS) for batch in loader)


def rnn() -> tuple[nn.Module, Iterator[Any]]:
    batch = torch.randn(32, 40, 32), torch.randint(0, 10, (32,))
    return Rnn(), (batch for _ in range(STEPS))


WORKLOADS: dict[str, Callable[[], tuple[nn.Module, Iterator[Any]]]] = {
    "gpt": gpt,
    "cnn": cnn,
    "rnn": rnn,
}


def main(name: str, percent: float) -> None:
    torch.manual_seed(0)
    model, batches = WORKLOADS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    matrix = torch.randn(32, 32)
    began = time.process_time()
    for inputs, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        end = time.process_time() + percent / 100 * (time.process_time() - began)
        while percent and time.process_time() < end:
            matrix @ matrix
        optimizer.step()
        began = time.process_time()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
