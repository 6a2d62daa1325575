"""Runs without devices: operations and gloo collectives of the processes are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import Event, complete, write
from tests.processes import python
from unified_prof.cluster.rank_map import read_partials
from unified_prof.cluster.summary import RunSummary
from unified_prof.pipeline.cluster import summary_of
from unified_prof.pipeline.convert import convert

WORLD, STEPS = 4, 5
WORK_US, TRANSFER_US = 5_000.0, 1_000.0


def write_rank(folder: Path, rank: int, late: dict[int, float], slow: dict[int, float]) -> Path:
    """Write five steps: late input, four operations, and an all-reduce that all ranks leave."""
    events: list[Event] = []
    last = max(late.get(one, 0.0) + WORK_US * slow.get(one, 1.0) for one in range(WORLD))
    length = last + TRANSFER_US + 20
    for step in range(STEPS):
        begin = 1_000_000.0 + (length + 10) * step
        at = begin + late.get(rank, 0.0)
        for number in range(4):
            work = WORK_US * slow.get(rank, 1.0) / 4
            name = "aten::linear" if number < 2 else "aten::relu"
            events.append(complete("cpu_op", name, at, work - 10, tid=1))
            events.append(complete("cpu_op", "aten::addmm", at + 5, work - 20, tid=1))
            at += work
        events.append(complete("cpu_op", "c10d::allreduce_", at, 50, tid=1))
        until_end = begin + last + TRANSFER_US - at
        events.append(complete("user_annotation", "gloo:all_reduce", at, until_end, tid=2))
        events.append(complete("user_annotation", f"ProfilerStep#{step}", begin, length, tid=1))
    ranks = [*range(WORLD)]
    about = {
        "backend": "gloo",
        "rank": rank,
        "world_size": WORLD,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": ranks}],
    }
    return write(folder / f"rank{rank}.json", events, distributedInfo=about)


def summary(
    folder: Path, late: dict[int, float] | None = None, slow: dict[int, float] | None = None
) -> RunSummary:
    for rank in range(WORLD):
        write_rank(folder, rank, late or {}, slow or {})
    return summary_of([str(folder)])


def test_partial_has_outermost_operations_and_gloo_collectives(tmp_path: Path) -> None:
    database = convert(write_rank(tmp_path, 1, {}, {}), tmp_path / "rank1.db").database
    (partial,) = read_partials(database)
    assert sorted(partial.names) == ["aten::linear", "aten::relu"]
    assert int(partial.kernels["n"].sum()) == 4 * STEPS
    assert partial.kinds == ("all_reduce",)
    assert [group.ranks for group in partial.groups] == [tuple(range(WORLD))]
    assert partial.facts.vendor is None
    duration = partial.communication["end"] - partial.communication["start"]
    assert duration.tolist() == [TRANSFER_US * 1e3] * STEPS


def test_equal_processes_have_no_finding(tmp_path: Path) -> None:
    found = summary(tmp_path)
    assert found.findings == []
    assert "no_device_recorded" in dict(found.left_out.items())


def test_process_that_starts_late_is_a_straggler_with_its_cost(tmp_path: Path) -> None:
    (finding,) = summary(tmp_path, late={2: 8_000.0}).findings
    assert (finding.kind, finding.ranks) == ("late_rank", (2,))
    assert "its process is idle 8.00 ms longer than others in every step" in finding.text
    assert finding.cost_ms_per_step == pytest.approx(8, rel=0.02)


def test_process_with_slow_operations_is_found_with_its_cost(tmp_path: Path) -> None:
    (finding,) = summary(tmp_path, slow={1: 1.5}).findings
    assert (finding.kind, finding.ranks) == ("slow_rank", (1,))
    assert "slow operations: rank 1: its operations take 1.5" in finding.text
    assert finding.cost_ms_per_step == pytest.approx(2.5, rel=0.02)


PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule


def work(rank, folder):
    dist.init_process_group("gloo", f"file://{sys.argv[2]}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    write = lambda found: found.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
    steps = schedule(wait=1, warmup=1, active=5)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=write) as found:
        for _ in range(7):
            time.sleep(0.1 * rank)
            model(torch.randn(8, 64)).sum().backward()
            found.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
def test_sleeping_process_of_a_real_gloo_run_is_the_first_finding(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    folder = tmp_path / "traces"
    folder.mkdir()
    python(program, folder, tmp_path / "store", check=True)
    found = summary_of([str(folder)])
    assert (found.findings[0].kind, found.findings[0].ranks) == ("late_rank", (1,))
    assert found.findings[0].figures["late_ms"] == pytest.approx(100, rel=0.2)
