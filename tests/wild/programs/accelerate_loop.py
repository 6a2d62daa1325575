"""A loop of accelerate with gradient accumulation and a prepared loader."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from ending import begin, finish
from torch import nn

begin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 24)
        self.norm = nn.LayerNorm(24)
        self.last = nn.Linear(24, 2)

    def forward(self, x):
        return self.last(self.norm(F.gelu(self.first(x))))


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
pairs = torch.utils.data.TensorDataset(torch.randn(160, 6), torch.randint(0, 2, (160,)))
loader = torch.utils.data.DataLoader(pairs, batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for x, y in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
finish(accelerator.unwrap_model(model), losses=losses)
