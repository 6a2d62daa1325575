"""A classifier of pictures, trained by Lightning."""

import lightning
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 7, padding=3), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
        )
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, pictures):
        return self.head(self.pool(self.features(pictures)).flatten(1))

    def training_step(self, batch, _):
        pictures, labels = batch
        return nn.functional.cross_entropy(self(pictures), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


pictures = torch.utils.data.TensorDataset(torch.randn(128, 3, 48, 48), torch.randint(0, 10, (128,)))
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(), torch.utils.data.DataLoader(pictures, batch_size=8))
