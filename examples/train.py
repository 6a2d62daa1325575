"""A plain training script without any reference to uprof.

Try it: uprof run examples/train.py --epochs 2
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(nn.Module):
    def __init__(self, width=64, code=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(
        TensorDataset(torch.randn(1024, 64)), batch_size=options.batch_size, shuffle=True
    )
    model = Autoencoder().to(options.device)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(options.epochs):
        total = 0.0
        for (batch,) in loader:
            batch = batch.to(options.device)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), batch)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
