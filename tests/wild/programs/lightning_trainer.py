"""A LightningModule under the Trainer, with validation and gradient clipping."""

import lightning
import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn

begin()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
        self.losses = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def data(count):
    pairs = torch.utils.data.TensorDataset(torch.randn(count, 8), torch.randint(0, 3, (count,)))
    return torch.utils.data.DataLoader(pairs, batch_size=4)


model = Classifier()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=1,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data(40), data(8))
finish(model, losses=model.losses)
