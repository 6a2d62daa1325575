"""Mixed precision with a gradient scaler that skips steps, and a moving average of the weights."""

import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn
from torch.optim.swa_utils import AveragedModel

begin()
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
)
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=4)
losses = []
for _ in range(24):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.randint(4, (8,)))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    averaged.update_parameters(model)
    losses.append(loss.item())
finish(model, averaged, losses=losses)
