"""A residual multilayer perceptron, with providers.

Try it: uprof run examples/mlp.py
"""

import os

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = os.environ.get("UPROF_DEVICE", "cpu")  # set by uprof to the device it profiles


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.shrink(F.relu(self.expand(x)))


class Classifier(nn.Module):
    """A model that returns its loss, so that the loss is one of its operations."""

    def __init__(self, width=256, depth=4, classes=10):
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x, labels):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), labels)


def uprof_model_provider():
    return Classifier().to(DEVICE)


def uprof_input_provider(batch_size=128):
    return (
        torch.randn(batch_size, 64, device=DEVICE),
        torch.randint(10, (batch_size,), device=DEVICE),
    )


def uprof_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def iteration(*inputs):
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()

    return iteration
