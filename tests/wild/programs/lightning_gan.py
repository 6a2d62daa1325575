"""Two optimizers that a LightningModule steps by hand, one of them every other batch."""

import lightning
import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn

begin()


class Gan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
        self.losses = []

    def training_step(self, batch, index):
        (real,) = batch
        for_generator, for_critic = self.optimizers()
        false = self.generator(torch.randn(len(real), 4))
        loss = (
            F.softplus(self.critic(false.detach())).mean() + F.softplus(-self.critic(real)).mean()
        )
        for_critic.zero_grad()
        self.manual_backward(loss)
        for_critic.step()
        if index % 2:
            loss = F.softplus(-self.critic(false)).mean()
            for_generator.zero_grad()
            self.manual_backward(loss)
            for_generator.step()
        self.losses.append(loss.item())

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=1e-3),
            torch.optim.Adam(self.critic.parameters(), lr=1e-3),
        )


model = Gan()
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(160, 8)), batch_size=4
)
lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(model, loader)
finish(model, losses=model.losses)
