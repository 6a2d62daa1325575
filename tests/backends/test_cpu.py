"""The CPU backend."""

from pathlib import Path

import pytest

from tests.backends.contract import BackendContract
from unified_prof.backends.torch_device import CpuBackend

# A minimal training script for any torch device.
TRAINING = """\
import sys
from pathlib import Path

import torch

Path(sys.argv[1]).write_text("\\n".join(sys.argv[1:]), encoding="utf-8")
DEVICE = "{device}"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).relu()


model = Net().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(3, 4, device=DEVICE)).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[2]))
"""


class TestCpuBackend(BackendContract):
    @pytest.fixture
    def backend(self) -> CpuBackend:
        return CpuBackend()

    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "train.py"
        path.write_text(TRAINING.format(device="cpu"))
        return path
