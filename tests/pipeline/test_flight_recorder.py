"""`uprof report` of Flight Recorder dumps: which rank did not enter which collective."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import uprof
from tests.processes import python
from unified_prof.errors import RawFormatError
from unified_prof.pipeline.flight_recorder import Hang, compare_dumps, dump_files

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


def test_names_the_rank_that_did_not_enter(tmp_path: Path) -> None:
    """The other ranks wait; the last call of the absent rank has its line."""
    entered = dump([call(1), waits(2)])
    hang = compared(tmp_path, {0: entered, 1: entered, 2: dump([call(1)]), 3: entered})
    (found,) = hang.findings
    assert (found.kind, found.ranks, found.sure) == ("collective_not_entered", (2,), "certain")
    assert found.text == (
        "rank 2 did not enter all_reduce #2 of group 0 (default_pg); ranks 0, 1, 3 wait in it"
        " (train.py:12); last call of rank 2: all_reduce #1 (train.py:11), completed"
    )


def test_names_ranks_with_another_collective(tmp_path: Path) -> None:
    """The minority comes first."""
    usual = dump([call(1), waits(2), waits(3, "broadcast")])
    other = dump([call(1), waits(2, "broadcast")])
    (found,) = compared(tmp_path, {0: usual, 1: usual, 2: other, 3: usual}).findings
    assert (found.kind, found.ranks) == ("different_collectives", (2,))
    assert (
        "rank 2: broadcast Float[64,8] -> Float[64,8] (train.py:12); ranks 0, 1, 3: all_"
        in found.text
    )


@pytest.mark.parametrize("name", ["all_reduce", "_allgather_base", "broadcast"])
def test_names_ranks_with_other_sizes(tmp_path: Path, name: str) -> None:
    """Sizes and types are shown as in reports."""
    usual = dump([waits(1, name)])
    other = dump([waits(1, name, input_sizes=[[64, 9]], output_sizes=[[64, 9]])])
    (found,) = compared(tmp_path, {0: other, 1: usual, 2: usual, 3: usual}).findings
    assert (found.kind, found.ranks) == ("different_sizes", (0,))
    assert f"rank 0: {name} Float[64,9] -> Float[64,9] (train.py:11)" in found.text


def test_accepts_unequal_sizes_of_all_to_all(tmp_path: Path) -> None:
    """Ranks of an all-to-all send different amounts."""
    dumps = {rank: dump([call(1, "all_to_all", input_sizes=[[rank]])]) for rank in range(4)}
    hang = compared(tmp_path, dumps)
    assert not hang.findings
    assert not hang.missing


def test_does_not_compare_overwritten_calls(tmp_path: Path) -> None:
    """The buffer has the last calls only, of another number on each rank."""
    dumps = {rank: dump([call(number) for number in range(rank + 1, 9)]) for rank in range(4)}
    assert not compared(tmp_path, dumps).findings


def test_puts_the_cause_before_its_consequences(tmp_path: Path) -> None:
    """Rank 1 is absent from one group because it waits in another for rank 3."""
    groups: tuple[Group, ...] = (("a", "tp", [0, 1]), ("b", "dp", [1, 3]))
    first = waits(1, process_group=("a", "tp"), time_created_ns=1)
    second = waits(1, process_group=("b", "dp"), time_created_ns=2)
    dumps = {0: dump([first], *groups), 1: dump([second], *groups), 3: dump([], *groups)}
    hang = compared(tmp_path, dumps)
    assert [(one.ranks, one.figures["group"]) for one in hang.findings] == [
        ((3,), "b (dp)"),
        ((1,), "a (tp)"),
    ]


def test_matches_sends_with_receives(tmp_path: Path) -> None:
    """Numbers in names are ranks within the group."""
    group: Group = ("p", "pp", [4, 6])
    own = {"process_group": ("p", "pp"), "is_p2p": True}
    dumps = {
        4: dump([waits(1, "send 0->1", **own), waits(2, "send 0->1", **own)], group),
        6: dump([waits(1, "recv 1<-0", **own)], group),
    }
    (found,) = compared(tmp_path, dumps).findings
    assert (found.kind, found.ranks, found.links) == ("transfer_not_matched", (6,), ((4, 6),))
    assert "rank 4 waits in send to rank 6 (train.py:12); rank 6 did not call" in found.text


def test_names_ranks_without_a_dump(tmp_path: Path) -> None:
    """A killed process writes none, and an empty file is unreadable."""
    entered = dump([waits(1)])
    write(tmp_path, {0: entered, 1: entered})
    (tmp_path / "nccl_trace_rank_3").write_bytes(b"")
    hang = compare_dumps(tmp_path, dump_files(tmp_path))
    assert hang.absent == (2,)
    assert "no dump of rank 2; " in hang.missing
    assert "nccl_trace_rank_3" in hang.missing
    (found,) = hang.findings
    assert (found.kind, found.ranks) == ("rank_without_dump", (2, 3))


def test_names_a_collective_that_all_ranks_entered(tmp_path: Path) -> None:
    """The cause is not in the program."""
    (found,) = compared(tmp_path, dict.fromkeys(range(4), dump([waits(1)]))).findings
    assert (found.kind, found.sure) == ("collective_not_complete", "possible")


def test_report_accepts_json_and_compressed_dumps(tmp_path: Path) -> None:
    """The command prints text and JSON; missing ranks give exit code 7."""
    for rank in (0, 1):
        text = json.dumps(dump([waits(5)] if rank else [call(4)])).encode()
        (tmp_path / f"fr_{rank}.json.gz").write_bytes(gzip.compress(text))
    done = uprof("report", tmp_path)
    assert done.returncode == 7
    assert "rank 0 did not enter all_reduce #5" in " ".join(done.stdout.split())
    assert "no dump of ranks 2, 3" in done.stderr
    fields = json.loads(uprof("report", tmp_path, "--json").stdout)
    assert fields["findings"][0]["ranks"] == [0]
    assert fields["last_calls"][1]["last call"] == "all_reduce #5"
    assert uprof("report", tmp_path, "--by", "kernel").returncode == 2


def test_convert_names_the_command(tmp_path: Path) -> None:
    """A dump has no times, so there is no database."""
    write(tmp_path, {0: dump([call(1)])})
    done = uprof("convert", tmp_path / "nccl_trace_rank_0")
    assert done.returncode == 6
    assert "is a Flight Recorder dump" in done.stderr
    assert "uprof report DIR" in done.stderr


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
