"""A vision transformer of timm with mixup, an average of weights and bfloat16."""

import timm
import torch
from ending import begin, finish
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

begin()
model = timm.create_model(
    "vit_tiny_patch16_224",
    img_size=32,
    patch_size=8,
    embed_dim=24,
    depth=2,
    num_heads=2,
    num_classes=5,
    drop_path_rate=0.1,
)
average = ModelEmaV3(model, decay=0.9)
mixup = Mixup(mixup_alpha=0.2, num_classes=5)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
criterion = SoftTargetCrossEntropy()
losses = []
for step in range(16):
    images, labels = mixup(torch.randn(4, 3, 32, 32), torch.randint(0, 5, (4,)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model, step=step)
    losses.append(loss.item())
finish(model, average, losses=losses)
