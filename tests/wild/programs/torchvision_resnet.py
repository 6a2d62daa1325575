"""ResNet-18 of torchvision on random images, with a learning rate schedule."""

import torch
from ending import begin, finish
from torchvision.models import resnet18

begin()
model = resnet18(num_classes=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
criterion = torch.nn.CrossEntropyLoss()
losses = []
for _ in range(16):
    loss = criterion(model(torch.randn(2, 3, 32, 32)), torch.randint(0, 4, (2,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
finish(model, losses=losses)
