"""A detector of torchvision: images of different sizes, other operations in every iteration."""

import torch
from ending import begin, finish
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

begin()
model = ssdlite320_mobilenet_v3_large(
    weights=None, weights_backbone=None, num_classes=3, trainable_backbone_layers=6
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
losses = []
for step in range(15):
    side = 64 + 8 * (step % 3)
    images = [torch.rand(3, side, side), torch.rand(3, 64, side)]
    targets = [
        {"boxes": torch.tensor([[4.0, 4.0, 40.0, 50.0]]), "labels": torch.tensor([1])},
        {
            "boxes": torch.tensor([[8.0, 8.0, 30.0, 30.0], [2.0, 2.0, 20.0, 50.0]]),
            "labels": torch.tensor([2, 1]),
        },
    ]
    loss = sum(model(images, targets).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
finish(model, losses=losses)
