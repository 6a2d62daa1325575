"""Small recordings of the ranks of a run, as traces and as databases."""

from pathlib import Path
from typing import Any

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.decoders.kineto.builders import Event, call, complete, kernel, write
from unified_prof.pipeline.convert import convert
from unified_prof.sqlite import run_folder
from unified_prof.sqlite.run_folder import STARTED, RankEntry

STEPS = 3


def trace(path: Path, rank: int, world: int = 4, slow: float = 1.0) -> Path:
    """Write the trace of a data-parallel rank: four kernels and an all-reduce per step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events: list[Event] = []
    for step in range(STEPS):
        begin = 1_000_000.0 + 20_000 * step
        events.append(complete("user_annotation", f"ProfilerStep#{step}", begin, 18_000))
        at = begin + 100
        for number in range(4):
            correlation = 100 * step + number + 1
            events += [call(at, 10, correlation), kernel(at + 20, 1000 * slow, correlation)]
            at += 1000 * slow + 100
        events.append(all_reduce(at + 50, begin + 10_000 - at, 100 * step + 50, range(world)))
    about: dict[str, Any] = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [*range(world)]}],
        },
        "hostname": f"host{rank // 2}",
    }
    return write(path, events, **about)


def all_reduce(ts: float, dur: float, correlation: int, ranks: range) -> Event:
    return kernel(
        ts,
        dur,
        correlation,
        name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        args={
            "Collective name": "allreduce",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": len(ranks),
            "dtype": "BFloat16",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str([*ranks]),
        },
    )


def traces(folder: Path, world: int = 4, **slow: float) -> Path:
    """Write the traces of all ranks; `slow_2=1.3` makes rank 2 slow."""
    for rank in range(world):
        trace(folder / f"rank{rank}.json", rank, world, slow.get(f"slow_{rank}", 1.0))
    return folder


def databases(folder: Path, world: int = 4, **slow: float) -> Path:
    """Write the databases of all ranks."""
    raw = folder.with_name(f"{folder.name}-traces")
    traces(raw, world, **slow)
    folder.mkdir(parents=True)
    for rank in range(world):
        convert(raw / f"rank{rank}.json", folder / f"rank{rank}.db")
    return folder


def incomplete_runs() -> None:
    """Write directories of ranks of which some are missing, damaged or of another run."""
    events = [call(1000.0, 10, 1), kernel(1020.0, 50, 1)]
    for name, known in (
        ("damaged", '{"world_size": 16, "expected_ranks": [0, 1, 2, 3]}'),
        ("reasons", '{"world_size": 5}'),
        ("many", '{"world_size": 1024}'),
        ("lost", "[]"),
    ):
        Path(name).mkdir()
        for rank in (0, 1):
            run_time_report(Path(name, f"run_time_rank{rank}.sqlite"))
        Path(name, "run.json").write_text(known, encoding="utf-8")
    Path("two").mkdir()
    cut = [Path("lost/run_time_rank0.sqlite"), Path("lost/run_time_rank1.sqlite")]
    cut += [memory_report(Path("damaged/memory_rank1.sqlite")), training_step(Path("two/b.db"))]
    training_step(Path("two/a.db"))
    for rank, failure in ((0, None), (2, "no operation ran"), (3, None)):
        entry = RankEntry(rank, 5, tuple(range(5)), "node1", STARTED, failure=failure)
        run_folder.note(Path("reasons"), entry)
    for folder in ("no_rank", "traces"):
        Path(folder).mkdir()
        write(Path(folder, "trace.json"), events)
        write(Path(folder, "other.json"), events)
    for folder in ("whole", "copied", "monday", "tuesday", "cut"):
        databases(Path(folder), world=3)
    Path("runs").mkdir()
    for folder in ("monday", "tuesday"):
        Path(folder).rename(Path("runs", folder))
    Path("copied/copy.db").write_bytes(Path("copied/rank0.db").read_bytes())
    for file in (*cut, Path("cut/rank1.db")):
        file.write_bytes(file.read_bytes()[:5000])
    Path("unreadable").mkdir()
    Path("unreadable/a.db").write_text("hello")
    Path("unreadable/b.db").touch()
