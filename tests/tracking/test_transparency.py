"""A tracked program computes bit-identical results."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.tracking.workloads import Workload

MODEL = """
from torch.utils.checkpoint import checkpoint

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.2, batch_first=True)

    def block(self, x):
        return self.drop(self.bn(self.conv(x)).relu())

    def forward(self, x):
        x = Double.apply(checkpoint(self.block, x, use_reentrant=False))
        x = x + self.attention(x, x, x)[0]
        x += self.lstm(x)[0]
        x[0] = x[1]
        return F.dropout(x, 0.3)

def state(model, optimizer):
    return [
        *(value.clone() for value in model.state_dict().values()),
        *(parameter.grad.clone() for parameter in model.parameters()),
        *(v for s in optimizer.state.values() for v in s.values()),
        torch.get_rng_state(),
        torch.rand(3),
    ]
"""

LOOP = """
import sys
torch.set_num_threads(1)
torch.manual_seed(3)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(12):
    optimizer.zero_grad()
    x = torch.randn(2, 4, 8)
    net(x).square().mean().backward()
    net(x.double().float()).abs().mean().backward()
    optimizer.step()
torch.save(state(net, optimizer), sys.argv[1])
"""

PROVIDERS = """
def uprof_model_provider():
    torch.manual_seed(3)
    return Net()

def uprof_input_provider(batch_size=2):
    return (torch.randn(batch_size, 4, 8),)

def uprof_iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())
    count = 0
    def iteration(*inputs):
        nonlocal count
        optimizer.zero_grad()
        loss = model(*inputs).square().mean()
        loss.backward()
        optimizer.step()
        count += 1
        torch.save(state(model, optimizer) + [loss.detach()], f"{NAME}-{count}.pt")
    return iteration
"""


def run_untracked(script: Path, *arguments: str) -> None:
    """Run a script as Python does, without tracking."""
    with mock.patch.object(sys, "argv", [str(script), *arguments]):
        runpy.run_path(str(script), run_name="__main__")


def equal_tensors(one: Path, other: Path) -> bool:
    import torch

    pairs = list(zip(torch.load(one), torch.load(other), strict=True))
    assert len(pairs) > 40
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
def test_training_script_computes_the_same_bits(workload: Workload) -> None:
    script = workload.write("main.py", MODEL + LOOP)
    run_untracked(script, "alone.pt")
    tracked = workload.tracked("main.py", "tracked.pt", iterations=3)
    assert tracked.complete
    assert equal_tensors(workload.folder / "alone.pt", workload.folder / "tracked.pt")


@pytest.mark.slow
def test_every_iteration_of_providers_computes_the_same_bits(workload: Workload) -> None:
    workload.write("main.py", MODEL + PROVIDERS.replace("{NAME}", "tracked"))
    workload.tracked(iterations=2)
    count = len(list(workload.folder.glob("tracked-*.pt")))
    assert count == 8, "warm-up, run time (2), memory, peak with its lead-in, run time (2)"
    untracked = workload.write("alone.py", MODEL + PROVIDERS.replace("{NAME}", "alone") + f"""
torch.set_num_threads(1)
model = uprof_model_provider()
inputs = uprof_input_provider()
iteration = uprof_iteration_provider(model)
for _ in range({count}):
    iteration(*inputs)
""")  # fmt: skip
    run_untracked(untracked)
    for number in range(1, count + 1):
        one, other = (workload.folder / f"{name}-{number}.pt" for name in ("alone", "tracked"))
        assert equal_tensors(one, other), f"after iteration {number}"


def test_inference_stays_fast(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    script = workload.write(
        "main.py",
        """
        import hashlib
        torch.set_num_threads(1)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
                self.encoder = nn.TransformerEncoder(layer, 2)
            def forward(self, x):
                return self.encoder(x)
        torch.manual_seed(0)
        net = Net().eval()
        with torch.no_grad():
            y = net(torch.randn(2, 16, 32))
        print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
        """,
    )
    tracked = workload.tracked()
    assert [one.name for one in tracked.operations] == ["_transformer_encoder_layer_fwd"] * 2
    found = capsys.readouterr().out
    run_untracked(script)
    assert found == capsys.readouterr().out
