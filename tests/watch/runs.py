"""Watch files of invented runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.sqlite.watch_file import StepRow, WatchEvent, WatchFile

MS = 1_000_000
MIB = 1 << 20


def step(number: int, **values: Any) -> StepRow:
    """A step of 10 ms: data loading 1 ms, forward 2 ms, backward 4 ms, optimizer and wait 1 ms."""
    begin = 10**18 + number * 10 * MS
    row = StepRow(
        *(number, begin, 10 * MS, MS, 2 * MS, 4 * MS, MS, MS, 0, None, 100 * MIB, None, 8, None)
    )
    return row._replace(**values)


def write_run(
    folder: Path,
    count: int = 1_000,
    change: Callable[[int], Mapping[str, int | None]] = lambda number: {},
    *,
    rank: int = 0,
    events: tuple[WatchEvent, ...] = (),
    device: str = "cpu",
    is_over: bool = True,
    **facts: str,
) -> WatchFile:
    """Write the file of one rank; `change` returns what differs in a step."""
    facts |= {"rank": str(rank), "began_ns": "1", "device": device}
    file = WatchFile(folder, rank, facts)
    file.append([step(number, **change(number)) for number in range(count)], events)
    if is_over:
        file.close({"exit_code": "0", "ended_ns": str(2 * 10**18)})
    return file


def eventful(number: int) -> dict[str, int | None]:
    """A run that leaks 50 KiB per step, drifts by 20 % at the end, and has two slow steps."""
    length = 12 if number >= 800 else 10
    data = {500: 61, 700: 31}.get(number, 1)
    wave = round(3 * MIB * np.sin(number))
    return {
        "length_ns": (length + data - 1) * MS,
        "data_ns": data * MS,
        "allocated_bytes": 100 * MIB + number * 50 * 1024 + wave,
    }


CAPTURED = (
    WatchEvent(0, 1, 50, "healthy", "usual steps", "captures/h", "ready", "healthy finding"),
    WatchEvent(1, 5, 500, "slow_step", "step 500 took", "captures/slow", "ready", "load ahead"),
    WatchEvent(2, 7, 700, "slow_step", "step 700 took"),
    WatchEvent(3, 9, 900, "drift", "steps take longer", "captures/d", "ready", "no findings"),
)
