"""Time between operations is assigned to source lines."""

from statistics import median

import pytest

from tests.tracking.workloads import Workload
from unified_prof.base.run_spec import OperationRecord, TrackedRun

SLEEP_MS = 5.0

BLOCKS = """
import time

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        {head}
        y = self.lin(x)
        {tail}
        return y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = Block()
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x):
        {start}
        x = self.first(x)
        {between}
        x = self.block(x)
        x = x * self.w
        return x + 1
"""
SLEEP = f"time.sleep({SLEEP_MS / 1000})"
PLACES = ("head", "tail", "start", "between")


def model(**where: str) -> str:
    return BLOCKS.format(**{name: where.get(name, "# nothing") for name in PLACES})


def operations_after_a_sleep(run: TrackedRun) -> list[OperationRecord]:
    return [
        operation
        for operation in run.operations
        if operation.gap is not None and median(operation.gap.ms) > SLEEP_MS * 0.9
    ]


@pytest.mark.parametrize(
    ("place", "follows", "after"),
    [
        ("start", "linear", 0),
        ("between", "linear", 0),
        ("head", "linear", 0),
        ("tail", "mul", 1),  # The return of the block may have taken the time as well.
    ],
)
def test_sleep_is_found_at_its_line(
    workload: Workload, place: str, follows: str, after: int
) -> None:
    run = workload.model(model(**{place: SLEEP}), iterations=3)
    source = (workload.folder / "main.py").read_text().splitlines()
    (operation,) = operations_after_a_sleep(run)
    gap = operation.gap
    assert gap is not None
    assert SLEEP in source[gap.first_line - 1]
    assert gap.last_line - gap.first_line == after
    assert gap.file_path == "main.py"
    assert operation.name == follows
    assert len(gap.ms) == len(operation.forward_ms)


def test_operations_without_a_pause_have_short_gaps(workload: Workload) -> None:
    run = workload.model(model(), iterations=5)
    gaps = [operation.gap for operation in run.operations if operation.gap is not None]
    assert len(gaps) >= 3
    assert all(min(gap.ms) < SLEEP_MS / 2 for gap in gaps)


def test_data_loading_before_the_model_is_no_gap(workload: Workload) -> None:
    workload.write(
        "main.py",
        model(start="name = 'nothing'")
        + f"""
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    {SLEEP}
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    )
    assert operations_after_a_sleep(workload.tracked(iterations=2)) == []


AFTER_THE_STEP = """
import time

def log(probabilities):
    time.sleep(0.005)

def train(net, optimizer):
    for step in range(12):
        loss = net(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(loss.detach().exp())

net = nn.Linear(8, 8)
train(net, torch.optim.SGD(net.parameters(), lr=0.1))
"""


def test_pause_at_the_end_of_a_loop_is_found_at_its_line(workload: Workload) -> None:
    workload.write("main.py", AFTER_THE_STEP)
    paused = operations_after_a_sleep(workload.tracked("main.py", scope="project"))
    assert [one.gap and (one.gap.first_line, one.gap.last_line) for one in paused] == [(16, 16)]
