"""Per-sample gradients by torch.func, clipped and averaged, without an optimizer."""

import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

begin()
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def loss_of(parameters, x, y):
    return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])


per_sample = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))
losses = []
for _ in range(24):
    parameters = {name: one.detach() for name, one in model.named_parameters()}
    gradients, values = per_sample(parameters, torch.randn(16, 8), torch.randint(4, (16,)))
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients.values()]).norm(dim=0)
    scale = (1 / (norms + 1e-6)).clamp(max=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= 0.1 * torch.einsum("n...,n->n...", gradients[name], scale).mean(0)
    losses.append(values.mean().item())
finish(model, losses=losses)
