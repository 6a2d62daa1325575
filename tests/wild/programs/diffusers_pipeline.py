"""A DDPM pipeline of diffusers with random weights that makes two images."""

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from ending import begin, finish

begin()
unet = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipeline = DDPMPipeline(unet=unet, scheduler=DDPMScheduler(num_train_timesteps=100))
pipeline.set_progress_bar_config(disable=True)
images = pipeline(batch_size=2, num_inference_steps=24, output_type="np").images
finish(unet, losses=[float(images.sum()), float(torch.rand(()))])
