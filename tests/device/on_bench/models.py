"""Three models to train, the same on every device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class GptBlock(nn.Module):  # type: ignore[misc]
    """An embedding, attention and a feed-forward layer each after a norm, a head."""

    def __init__(self, width: int = 32, words: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 2, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        result: torch.Tensor = self.head(x).flatten(0, 1)
        return result


@dataclass(frozen=True)
class TrainingCase:
    """A model and its training loop."""

    model: Callable[[], nn.Module]
    data: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]

    def losses(self, device: str, steps: int = 3) -> list[float]:
        """Train from the same start on `device`; return the loss of every step."""
        torch.manual_seed(0)
        model = self.model().to(device)
        optimizer = self.optimizer(model.parameters())
        inputs, targets = (one.to(device) for one in self.data())
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = self.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found


CASES = {
    "mlp": TrainingCase(
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        lambda: (torch.randn(4, 8), torch.randn(4, 4)),
        F.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    ),
    "cnn": TrainingCase(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(72, 5),
        ),
        lambda: (torch.randn(4, 3, 8, 8), torch.randint(5, (4,))),
        F.cross_entropy,
        lambda parameters: torch.optim.Adam(parameters, 0.01),
    ),
    "gpt": TrainingCase(
        GptBlock,
        lambda: (torch.randint(50, (2, 16)), torch.randint(50, (32,))),
        F.cross_entropy,
        lambda parameters: torch.optim.AdamW(parameters, 0.01),
    ),
}
