"""A small language model, trained by a plain loop. One of its lines costs more than it looks."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, x):
        results = []
        for one in self.inputs(x).chunk(self.heads, dim=-1):
            query, key, value = one.chunk(3, dim=-1)
            weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1)
            results.append(weights @ value)
        return self.outputs(torch.cat(results, dim=-1))


class Model(nn.Module):
    def __init__(self, words=500, width=128, heads=16, layers=1):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.attention = nn.ModuleList(Attention(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.attention:
            x = x + layer(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(14):
    tokens = torch.randint(0, 500, (4, 256))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
