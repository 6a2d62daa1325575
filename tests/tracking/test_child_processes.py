"""Script mode: data loaders, forked and spawned processes, and process groups."""

import pytest

from tests.processes import python
from tests.tracking.workloads import FORKS_TRAIN, LOOP, NET, Workload, in_backward, names


@pytest.mark.slow
def test_loader_workers_untracked(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = workload.track(
        NET
        + """
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        assert torch._C._len_torch_function_stack() == 0
        return torch.ones(8) * index
if __name__ == "__main__":
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for batch in DataLoader(Rows(), batch_size=4, num_workers=2,
                                multiprocessing_context="fork"):
            net(batch).sum().backward()
            optimizer.step()
    print("done")
"""
    )
    assert names(tracked) == ["linear", "relu"]
    assert capsys.readouterr().out == "done\n"


@pytest.mark.slow
@FORKS_TRAIN
def test_forked_child_untracked(workload: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = workload.track(
        NET
        + """
import os
from torch.optim import optimizer as o
def train(net, optimizer):
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(9):
    child = os.fork()
    if child == 0:
        try:  # The child must never continue the test program.
            train(net, optimizer)
            clean = not o._global_optimizer_post_hooks and not torch._C._len_torch_function_stack()
            os._exit(0 if clean else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0, number
    train(net, optimizer)
print("done")
"""
    )
    assert names(tracked) == ["linear", "relu"]
    assert tracked.complete
    assert capsys.readouterr().out == "done\n"


@pytest.mark.slow
def test_spawned_processes_find_the_script(workload: Workload) -> None:
    workload.write(
        "main.py",
        NET
        + """
import multiprocessing
def double(x):
    return 2 * x
if __name__ == "__main__":
    Net()(torch.ones(1, 8))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
""",
    )
    runner = (
        "from pathlib import Path\n"
        "from unified_prof.base.run_spec import RunSpec\n"
        "from unified_prof.tracking.workload import run_workload\n"
        "if __name__ == '__main__':\n"
        "    here = Path('.')\n"
        "    print(run_workload('cpu', RunSpec(target='main.py', reports=('run-time',),\n"
        "          output_dir=here, project_root=here, warmup=0, iterations=1)))\n"
    )
    (workload.folder / "runner.py").write_text(runner, encoding="utf-8")
    result = python("runner.py", check=True)
    assert "[2, 4]" in result.stdout


@pytest.mark.slow
def test_ddp_is_tracked_in_one_process(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", **ranks}.items():
        monkeypatch.setenv(name, value)
    tracked = workload.track(NET + LOOP.replace("net = Net()", """
    import tempfile, torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + tempfile.mktemp(),
                            rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(Net())
""".strip()).replace('print("the end")', "torch.distributed.destroy_process_group()"))  # fmt: skip
    assert names(tracked) == ["linear", "relu"]
    assert in_backward(tracked) == ["linear", "relu"]
    assert tracked.operations[0].module_path == "module.lin"
    assert tracked.anomalies == {}
