"""A variational autoencoder of diffusers with its own posterior, and a weight average."""

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from diffusers.training_utils import EMAModel
from ending import begin, finish

begin()
model = AutoencoderKL(
    in_channels=1,
    out_channels=1,
    block_out_channels=(8,),
    layers_per_block=1,
    latent_channels=2,
    norm_num_groups=4,
    sample_size=8,
)
average = EMAModel(model.parameters(), decay=0.9)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for _ in range(16):
    images = torch.randn(2, 1, 8, 8)
    posterior = model.encode(images).latent_dist
    restored = model.decode(posterior.sample()).sample
    loss = F.mse_loss(restored, images) + 1e-3 * posterior.kl().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.step(model.parameters())
    losses.append(loss.item())
average.copy_to(model.parameters())
finish(model, losses=losses)
