"""A small UNet of diffusers that learns to take noise away."""

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from ending import begin, finish

begin()
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for _ in range(16):
    clean, noise = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
    steps = torch.randint(0, 50, (2,))
    predicted = model(scheduler.add_noise(clean, noise, steps), steps).sample
    loss = F.mse_loss(predicted, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
finish(model, losses=losses)
