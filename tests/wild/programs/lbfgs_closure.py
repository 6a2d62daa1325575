"""A regression by L-BFGS, whose closure runs several times in each step."""

import torch
from ending import begin, finish
from torch import nn

begin()
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
x = torch.randn(64, 5)
y = torch.sin(x.sum(1, keepdim=True))
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    return loss


finish(model, losses=[optimizer.step(closure).item() for _ in range(24)])
