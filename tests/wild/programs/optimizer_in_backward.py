"""One optimizer per parameter that steps within the backward pass, as torchtune does it."""

import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn

begin()
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}


def step_and_free(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_and_free)
losses = []
for _ in range(24):
    loss = F.cross_entropy(model(torch.randn(32, 16)), torch.randint(8, (32,)))
    loss.backward()
    losses.append(loss.item())
finish(model, losses=losses)
