"""Summaries of invented runs for tests of their output; figures are functions of the rank."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unified_prof.schema import catalogue

MS = 1_000_000
START_NS = 1_700_000_000_000_000_000
COMPUTE_NS = 60 * MS
STEP_NS = 100 * MS
RANKS_OF_A_HOST = 8


@dataclass(frozen=True)
class Contents:
    """Contents of an invented run."""

    tp: int = 2
    dp: int = 2
    pp: int = 2
    steps: int = 3
    slow: dict[int, float] = field(default_factory=dict)
    """Rank -> factor of its kernel durations."""
    slow_links: Sequence[tuple[int, int]] = ()
    absent: Sequence[int] = ()
    failed: Sequence[int] = ()
    step_factor: float = 1.0
    """Factor of all durations."""

    @property
    def size(self) -> int:
        return self.tp * self.dp * self.pp


def write_summary(folder: Path, contents: Contents | None = None) -> Path:
    """Write the summary of a run into a directory and return the directory."""
    contents = contents or Contents()
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "cluster.sqlite")) as db:
        db.executescript(catalogue.frozen_text("cluster", catalogue.resolve("cluster", "latest")))
        for table, rows in _tables(contents):
            for row in rows:
                names, marks = ", ".join(row), ", ".join("?" * len(row))
                db.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', [*row.values()])
        db.commit()
    return folder


def slow_text(rank: int, factor: float) -> str:
    """Return the text of the finding of a slow rank."""
    return f"rank {rank}, host node{rank // RANKS_OF_A_HOST}: computes {factor:.2f} times its stage"


Rows = Iterable[dict[str, Any]]


def _tables(contents: Contents) -> Iterable[tuple[str, Rows]]:
    gone = {*contents.absent, *contents.failed}
    read = [rank for rank in range(contents.size) if rank not in gone]
    facts = {"world_size": str(contents.size), "steps": json.dumps(list(range(contents.steps)))}
    yield "META_DATA", [{"name": name, "value": value} for name, value in facts.items()]
    yield "RANK", [_rank(contents, rank) for rank in range(contents.size)]
    yield "GROUP", _groups(contents)
    yield (
        "STEP_RANK",
        [_step(contents, step, rank) for step in range(contents.steps) for rank in read],
    )
    yield "COLLECTIVE", _collectives(contents)
    yield "BLAME", [_blame(contents, rank) for rank in read]
    yield (
        "LINK",
        [
            _link(contents, rank)
            for rank in read
            if rank + contents.tp * contents.dp < contents.size
        ],
    )
    yield "OPERATION_RANK", [row for rank in read for row in _operations(contents, rank)]
    yield "FINDING", _findings(contents)


def _factor(contents: Contents, rank: int) -> float:
    return contents.slow.get(rank, 1.0) * contents.step_factor


def _rank(contents: Contents, rank: int) -> dict[str, Any]:
    status, why = "read", None
    if rank in contents.absent:
        status, why = "absent", "others name it, and it left no file"
    elif rank in contents.failed:
        status, why = "failed", "rank.db is cut off"
    return {
        "rank": rank,
        "host": f"node{rank // RANKS_OF_A_HOST}",
        "device_id": rank % RANKS_OF_A_HOST,
        "device_name": "Ascend910B3",
        "vendor": "huawei",
        "file": f"rank{rank}.db",
        "status": status,
        "why": why,
        "tp": rank % contents.tp,
        "dp": rank // contents.tp % contents.dp,
        "pp": rank // (contents.tp * contents.dp),
        "clock_offset_ns": 1000 * rank,
        "clock_error_ns": 500,
        "clock_island": 0,
    }


def _groups_of(contents: Contents) -> int:
    return contents.dp * contents.pp


def _groups(contents: Contents) -> Rows:
    for number in range(_groups_of(contents)):
        ranks = range(number * contents.tp, (number + 1) * contents.tp)
        yield {
            "id": number,
            "kind": "tp",
            "names": json.dumps([f"tp{number}"]),
            "ranks": json.dumps([*ranks]),
            "size": contents.tp,
            "hosts": 1,
        }


def _collectives(contents: Contents) -> Rows:
    for step in range(contents.steps):
        for group in range(_groups_of(contents)):
            yield {
                "id": step * _groups_of(contents) + group,
                "group_id": group,
                "kind": "all_reduce",
                "step": step,
                "bytes": 4 << 20,
                "n": 4,
                "complete_n": 4,
                "transfer_ns": int(2 * MS * contents.step_factor),
                "wait_ns": 3 * MS,
                "setup_ns": 0,
                "transfer_p50_ns": MS // 2,
                "transfer_p99_ns": MS,
                "bus_gb_per_s": 40.0 - 0.001 * group,
            }


def _step(contents: Contents, step: int, rank: int) -> dict[str, Any]:
    start = START_NS + int(step * STEP_NS * contents.step_factor) - 1000 * rank
    compute = int(COMPUTE_NS * _factor(contents, rank))
    most = max(contents.slow.values(), default=1.0)
    length = int((STEP_NS + COMPUTE_NS * (most - 1)) * contents.step_factor) + step
    exposed = length - compute - 10 * MS
    wait = max(0, exposed - 20 * MS)
    return {
        "step": step,
        "rank": rank,
        "start_ns": start,
        "end_ns": start + length,
        "compute_ns": compute,
        "communication_ns": exposed + 5 * MS,
        "exposed_communication_ns": exposed,
        "wait_ns": wait,
        "exposed_wait_ns": wait,
        "setup_ns": 0,
        "bubble_ns": wait // 2,
        "input_late_ns": None,
        "idle_ns": 10 * MS,
    }


def _blame(contents: Contents, rank: int) -> dict[str, Any]:
    factor = contents.slow.get(rank, 1.0)
    saved = COMPUTE_NS * (factor - 1)
    return {
        "rank": rank,
        "caused_wait_ns": int(saved) * contents.steps,
        "times": contents.steps if factor > 1 else 0,
        "work_ns": int(COMPUTE_NS * _factor(contents, rank)) * contents.steps,
        "stage_work_ns": int(COMPUTE_NS * contents.step_factor) * contents.steps,
        "work_ratio": factor,
        "host_gap_ns": 0,
        "stage_host_gap_ns": 0,
        "input_late_ns": None,
        "saved_ns_per_step": saved,
        "cause": "slow_rank" if factor > 1 else None,
    }


def _link(contents: Contents, rank: int) -> dict[str, Any]:
    other = rank + contents.tp * contents.dp
    rate = 20.0 / (3 if (rank, other) in contents.slow_links else 1)
    return {
        "src_rank": rank,
        "dst_rank": other,
        "kind": "p2p",
        "across_hosts": int(contents.tp * contents.dp >= RANKS_OF_A_HOST),
        "n": 4,
        "bytes": 4 << 20,
        "transfer_ns": 4 * MS,
        "wait_ns": MS,
        "gb_per_s_p50": rate,
        "gb_per_s_p99": rate / 2,
        "like_gb_per_s": 20.0,
    }


def _operations(contents: Contents, rank: int) -> Rows:
    for name, module, total in (("MatMul", "layer.0", 40 * MS), ("Add", "", 20 * MS)):
        yield {
            "rank": rank,
            "name": name,
            "module": module,
            "n": 10,
            "total_ns": int(total * _factor(contents, rank)) * contents.steps,
            "min_ns": MS,
            "max_ns": 5 * MS,
        }


def _findings(contents: Contents) -> Rows:
    ordered = sorted(contents.slow.items(), key=lambda item: -item[1])
    for place, (rank, factor) in enumerate(ordered, start=1):
        yield {
            "place": place,
            "kind": "slow_rank",
            "ranks": f"[{rank}]",
            "hosts": json.dumps([f"node{rank // RANKS_OF_A_HOST}"]),
            "links": "[]",
            "steps": json.dumps(list(range(contents.steps))),
            "cost_ms_per_step": (factor - 1) * COMPUTE_NS / MS,
            "figures": json.dumps({"work_ratio": factor}),
            "text": slow_text(rank, factor),
        }
