"""A small convolutional network with batch normalization, with providers.

Try it: uprof run examples/cnn.py
"""

import os

import torch
from torch import nn

DEVICE = os.environ.get("UPROF_DEVICE", "cpu")  # set by uprof to the device it profiles


class Stage(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stages = nn.Sequential(Stage(3, 32, 1), Stage(32, 64, 2), Stage(64, 128, 2))
        self.head = nn.Linear(128, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images, labels):
        features = self.stages(images).mean(dim=(2, 3))
        return self.loss(self.head(features), labels)


def uprof_model_provider():
    return Net().to(DEVICE)


def uprof_input_provider(batch_size=16):
    return (
        torch.randn(batch_size, 3, 32, 32, device=DEVICE),
        torch.randint(10, (batch_size,), device=DEVICE),
    )


def uprof_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def iteration(*inputs):
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()

    return iteration
