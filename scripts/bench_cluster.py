"""Measure `uprof cluster build`, and the reduce of simulated runs of thousands of ranks.

    python scripts/bench_cluster.py [RECORDINGS] [--ranks 64,256,1024] [--operations 200] [--json]

With RECORDINGS, a directory of all ranks of a run, measures `uprof cluster build` with one process,
two processes, two Dask workers, and a second time without new recordings. CPU time includes child
processes; memory is the largest resident size of a single process.

The rest is a simulation: generates partials of --ranks ranks with --operations collectives each and
reduces them like the command does: bytes of partials, CPU time and memory of the reduce. Growth
between the last two numbers of ranks is printed as an exponent (1: proportional).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from unified_prof.cluster import rank_partial as partials
from unified_prof.cluster.rank_partial import (
    MARK_END,
    MARK_START,
    MARK_STEP,
    NO_VALUE,
    Partial,
    RankFacts,
    RankGroup,
)
from unified_prof.pipeline import cluster
from unified_prof.pipeline.cluster_map import RankFile, name_of
from unified_prof.pipeline.executors import open_executor
from unified_prof.pipeline.remote import StorageDirectory

ROOT = Path(__file__).resolve().parent.parent
WAYS = {
    "in this process": ["--jobs", "1"],
    "two processes": ["--jobs", "2"],
    "Dask, two processes": ["--dask", "local:2"],
}
STEPS = 4
TENSOR = 8
GAP_NS, BUSY_NS, TRANSFER_NS = 20_000, 400_000, 300_000
BEGIN_NS = 1_763_600_000_000_000_000


def simulated(rank: int, ranks: int, operations: int) -> Partial:
    """Return the partial of a rank: all-reduces in its tensor group, 1 of 8 in its data group."""
    rng = np.random.default_rng(rank)
    first = rank // TENSOR * TENSOR
    groups = (
        _group("tp", range(first, min(first + TENSOR, ranks))),
        _group("dp", range(rank % TENSOR, ranks, TENSOR)),
    )
    number = np.arange(operations)
    group = (number % 8 == 7).astype(np.int64)
    step = number * STEPS // operations
    period = GAP_NS + BUSY_NS + TRANSFER_NS
    end = BEGIN_NS + (number + 1) * period
    late = rng.integers(0, GAP_NS, operations)
    start = end - TRANSFER_NS - GAP_NS + late
    nothing = np.full(operations, NO_VALUE)
    communication = {
        "group": group,
        "kind": np.zeros(operations, np.int64),
        "seq": np.where(group == 0, np.cumsum(group == 0), np.cumsum(group)) - 1,
        "start": start,
        "end": end,
        "bytes": np.where(group == 0, 8 << 20, 64 << 20),
        "peer": nothing,
        "move": nothing,
        "step": step,
        "covered": np.zeros(operations, np.int64),
    }
    heads = np.searchsorted(step, np.arange(STEPS))
    begins = BEGIN_NS + heads * period
    ends = np.r_[begins[1:], BEGIN_NS + operations * period]
    count = np.bincount(step, minlength=STEPS)
    table = {
        "step": np.arange(STEPS),
        "start": begins,
        "end": ends,
        "compute": count * BUSY_NS,
        "communication": count * (TRANSFER_NS + GAP_NS),
        "exposed": count * (TRANSFER_NS + GAP_NS),
        "idle": np.zeros(STEPS, np.int64),
        "input": np.full(STEPS, NO_VALUE),
    }
    kernels = {
        "step": np.arange(STEPS),
        "name": np.zeros(STEPS, np.int64),
        "module": np.zeros(STEPS, np.int64),
        "n": count,
        "total": count * BUSY_NS,
        "min": np.full(STEPS, BUSY_NS),
        "max": np.full(STEPS, BUSY_NS),
    }
    return Partial(
        RankFacts(rank, ranks, f"host{rank // 8}", rank % 8, "simulated", "nvidia"),
        groups,
        ("all_reduce",),
        ("matmul",),
        ("",),
        communication,
        _marks(communication, begins),
        table,
        kernels,
        partials.empty_columns("links"),
    )


def _group(kind: str, ranks: range) -> RankGroup:
    return RankGroup(f"{kind}{ranks[0]}", kind, "", tuple(ranks), len(ranks))


def _marks(table: dict[str, Any], steps: Any) -> dict[str, Any]:
    operations = len(table["start"])
    time_ns = np.r_[steps, table["start"], table["end"]]
    what = np.repeat([MARK_STEP, MARK_START, MARK_END], [len(steps), operations, operations])
    op = np.r_[np.arange(len(steps)), np.arange(operations), np.arange(operations)]
    order = np.lexsort((what != MARK_END, time_ns))
    time_ns, what, op = time_ns[order], what[order], op[order]
    until = np.r_[time_ns[1:], time_ns[-1]]
    works = (what != MARK_START) & (until - time_ns > GAP_NS)
    zeros = np.zeros(len(time_ns), np.int64)
    return {
        "time": time_ns,
        "op": op,
        "what": what,
        "lead": np.where(works, 0, until - time_ns) * (what != MARK_START),
        "busy": np.where(works, until - time_ns, 0),
        "tail": zeros,
        "kernels": works.astype(np.int64),
    }


def reduce(folder: str, ranks: int) -> None:
    """Reduce simulated partials and print the cost; runs in a separate process."""
    import resource

    found = [
        RankFile(rank, f"rank{rank}", name_of(rank, f"{rank:020x}", 1)) for rank in range(ranks)
    ]
    place = StorageDirectory(folder)
    before = time.process_time()
    with open_executor(jobs=1) as crew:
        _, summary = cluster.combine([], found, place, crew)
    cpu = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cpu_s": cpu, "memory_mb": memory, "findings": len(summary.findings)}))


def simulate(ranks: int, operations: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        size = 0
        for rank in range(ranks):
            data = partials.partial_to_parquet(simulated(rank, ranks, operations))
            size += len(data)
            (Path(folder) / name_of(rank, f"{rank:020x}", 1)).write_bytes(data)
        done = subprocess.run(
            [sys.executable, __file__, "--reduce", folder, "--ranks", str(ranks)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return {"ranks": ranks, "moved_mb": size / 1e6, **json.loads(done.stdout)}


def measured(words: list[str]) -> dict[str, float]:
    """Run the command and return its cost, children included."""
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "unified_prof", *words], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"bench_cluster: {' '.join(words)} ended with {process.returncode}")
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.monotonic() - begun,
        "memory_mb": usage.ru_maxrss / 1024,
    }


def builds(recordings: Path) -> dict[str, dict[str, float]]:
    result = {}
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        for number, (name, options) in enumerate(WAYS.items()):
            target = str(Path(folder) / f"{number}.cluster")
            words = ["cluster", "build", str(recordings.resolve()), "-o", target, "-q"]
            result[name] = measured([*words, *options])
            if "nothing new" not in result:
                result["nothing new"] = measured([*words, *options])
    return result


def growth(rows: list[dict[str, Any]], figure: str) -> float:
    """Return the growth exponent of a figure between the last two numbers of ranks."""
    before, after = rows[-2:]
    return math.log(after[figure] / before[figure]) / math.log(after["ranks"] / before["ranks"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", nargs="?", type=Path, help="directory of all ranks of a run")
    parser.add_argument("--ranks", default="64,256,1024", help="ranks to simulate (%(default)s)")
    parser.add_argument("--operations", type=int, default=200, help="collectives per rank (200)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--reduce", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reduce:
        reduce(given.reduce, int(given.ranks))
        return
    built = builds(given.recordings) if given.recordings else {}
    rows = [simulate(int(ranks), given.operations) for ranks in given.ranks.split(",")]
    figures = ("moved_mb", "cpu_s", "memory_mb")
    exponents = {name: growth(rows, name) for name in figures} if len(rows) > 1 else {}
    if given.json:
        print(json.dumps({"builds": built, "simulated": rows, "growth": exponents}))
        return
    for name, cost in built.items():
        print(f"{name:20}  {cost['cpu_s']:7.2f} CPU s  {cost['memory_mb']:6.0f} MB")
    print(f"\nsimulated, {given.operations} collectives per rank\n"
          "   ranks  partials MB  reduce CPU s  memory MB")  # fmt: skip
    for row in rows:
        moved, cpu, memory = row["moved_mb"], row["cpu_s"], row["memory_mb"]
        print(f"{row['ranks']:8,}  {moved:11.1f}  {cpu:12.2f}  {memory:9.0f}")
    if exponents:
        words = ", ".join(f"{name} ^{value:.2f}" for name, value in exponents.items())
        print(f"growth: {words}")


if __name__ == "__main__":
    main()
