"""Workloads on the test device."""

PROVIDERS = """
DEVICE = "bench"

def uprof_model_provider():
    torch.manual_seed(0)
    return Net().to(DEVICE)

def uprof_input_provider(batch_size=4):
    return (torch.randn(batch_size, 8).to(DEVICE),)

def uprof_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def iteration(*inputs):
        optimizer.zero_grad()
        model(*inputs).sum().backward()
        optimizer.step()
    return iteration
"""

LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(5)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
"""
