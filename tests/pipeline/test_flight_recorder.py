"""`uprof report` of Flight Recorder dumps: which rank did not enter which collective."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python
from unified_prof.errors import RawFormatError
from unified_prof.pipeline.flight_recorder import Hang, compare_dumps
from unified_prof.pipeline.report_input import dump_files

Group = tuple[str, str, list[int]]
WORLD: Group = ("0", "default_pg", [0, 1, 2, 3])


def call(number: int, name: str = "all_reduce", **other: Any) -> dict[str, Any]:
    """Return an entry of a dump, in the layout of version 2.10."""
    return {
        "record_id": number,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[64, 8]],
        "output_sizes": [[64, 8]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
        "time_created_ns": 1_000 * number,
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/a.py", "line": 1},
            {"name": "step", "filename": "/home/me/train.py", "line": 10 + number},
        ],
    } | other


def waits(number: int, name: str = "all_reduce", **other: Any) -> dict[str, Any]:
    """Return the entry of a call that is not complete."""
    return call(number, name, **({"state": "started", "retired": False} | other))


def dump(entries: list[dict[str, Any]], *groups: Group) -> dict[str, Any]:
    """Return the content of a dump."""
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": label, "ranks": str(ranks)}
            for name, label, ranks in groups or (WORLD,)
        },
        "entries": entries,
    }


def write(folder: Path, dumps: dict[int, dict[str, Any]]) -> Path:
    """Write the dumps of ranks as pickles."""
    for rank, content in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    return folder


def compared(folder: Path, dumps: dict[int, dict[str, Any]]) -> Hang:
    """Write and compare dumps."""
    write(folder, dumps)
    return compare_dumps(folder, dump_files(folder))


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"process_group": 3, "input_sizes": 4, "frames": [1], "collective_seq_id": "x"},
        {"process_group": [], "input_sizes": [3, None, [{}]], "profiling_name": None},
        {"process_group": [None, {}], "time_created_ns": 10**30, "state": [], "frames": [{}]},
    ],
)
def test_accepts_values_of_other_types(tmp_path: Path, entry: dict[str, Any]) -> None:
    """Damaged dumps give a comparison, never a traceback."""
    dumps = {0: dump([entry]), 1: dump([call(1)]) | {"pg_config": [3]}}
    compared(tmp_path, dumps).document(None)


def test_runs_no_code_of_a_pickle(tmp_path: Path) -> None:
    """Calls in a pickle are refused."""

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("executed",)

    write(tmp_path, {0: dump([]) | {"code": Code()}})
    with pytest.raises(RawFormatError):
        compare_dumps(tmp_path, dump_files(tmp_path))


PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank = int(os.environ["RANK"])
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
dist.init_process_group("gloo")
values = torch.ones(4, 3)
for _ in range(3):
    dist.all_reduce(values)
if rank != 1:
    dist.broadcast(values, 0, async_op=rank == 0)
    work = dist.all_gather([torch.ones(2) for _ in range(3)], torch.ones(2), async_op=True)
else:
    dist.broadcast(values, 0)
time.sleep(1)
for ending, make in (("", c10d._dump_fr_trace), (".json", c10d._dump_fr_trace_json)):
    with open(f"{sys.argv[1]}/{ending[1:] or 'pickle'}/rank_{rank}{ending}", "wb") as file:
        file.write(make())
time.sleep(1)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.forks_of_commands
def test_finds_the_absent_rank_in_dumps_of_torch(tmp_path: Path) -> None:
    """Pickles and JSON files of torch itself, with gloo."""
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this release of torch records NCCL only")
    script = tmp_path / "hang.py"
    script.write_text(PROGRAM)
    for name in ("pickle", "json"):
        (tmp_path / name).mkdir()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
    python(*launcher, script, tmp_path, check=True)
    for name in ("pickle", "json"):
        folder = tmp_path / name
        (found,) = compare_dumps(folder, dump_files(folder)).findings
        assert (found.kind, found.ranks) == ("collective_not_entered", (1,))
        assert "did not enter all_gather #5" in found.text
        line = " (hang.py:" if name == "pickle" else ""  # JSON has no stacks
        assert f"last call of rank 1: broadcast #4{line}" in found.text
