"""A graph network of torch_geometric on a random graph, with a validation in every epoch."""

import torch
import torch.nn.functional as F
from ending import begin, finish
from torch import nn
from torch_geometric.nn import GATConv, GCNConv

begin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GCNConv(8, 16)
        self.second = GATConv(16, 3, heads=2, concat=False)

    def forward(self, x, edges):
        x = F.dropout(self.first(x, edges).relu(), training=self.training)
        return self.second(x, edges)


x, edges = torch.randn(40, 8), torch.randint(0, 40, (2, 160))
labels, train = torch.randint(0, 3, (40,)), torch.arange(40) % 2 == 0
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(16):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, edges)[train], labels[train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        losses.append(F.cross_entropy(model(x, edges)[~train], labels[~train]).item())
finish(model, losses=losses)
