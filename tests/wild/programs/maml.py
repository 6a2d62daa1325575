"""MAML: a gradient step within the loss, differentiated twice."""

import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn
from torch.func import functional_call

begin()
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for _ in range(24):
    optimizer.zero_grad()
    total = 0.0
    for _ in range(2):
        phase = torch.rand(1) * 3
        support, query = torch.randn(8, 1), torch.randn(8, 1)
        weights = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, weights, support), torch.sin(support + phase))
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        adapted = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), gradients, strict=True)}
        outer = F.mse_loss(functional_call(model, adapted, query), torch.sin(query + phase))
        outer.backward()
        total += outer.item()
    optimizer.step()
    losses.append(total)
finish(model, losses=losses)
