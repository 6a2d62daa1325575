"""A small GPT-like language model, with providers; `make demo` profiles it.

Try it: uprof run examples/transformer.py
"""

import os

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = os.environ.get("UPROF_DEVICE", "cpu")  # set by uprof to the device it profiles
VOCABULARY = 1000
CONTEXT = 128


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.shrink(F.gelu(self.expand(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, width=128, heads=4, depth=4):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # tied: one row in the memory report

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def uprof_model_provider():
    return LanguageModel().to(DEVICE)


def uprof_input_provider(batch_size=4):
    tokens = torch.randint(VOCABULARY, (batch_size, CONTEXT + 1), device=DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def uprof_iteration_provider(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def iteration(*inputs):
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()

    return iteration
