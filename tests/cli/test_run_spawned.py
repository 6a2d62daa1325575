"""Classes of the program are passed between its processes."""

from pathlib import Path

import pytest

from tests.processes import python

PROGRAM = """\
import multiprocessing, torch

class Item:
    def __init__(self, value):
        self.value = value

def doubled(item):
    return Item(2 * item.value)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print([item.value for item in pool.map(doubled, [Item(1), Item(2)])])
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_data_sent_by_a_spawned_child_arrives(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = ["-m", "unified_prof", "run", "--backend", "cpu", "--iterations", "2", "train.py"]
    done = python(*run, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[2, 4]\n"), done.stderr
