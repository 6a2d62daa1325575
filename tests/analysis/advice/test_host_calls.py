"""Calls in which time without device work passes, and shares of host-bound idle time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import MS, US, FaultyRun, advice, findings_by_kind
from unified_prof.report.names import excluded_part

START = 500 * MS


def run_with_a_gap(path: Path, *, call: str = "", early: int = 0) -> Path:
    """Write 80 kernels with a gap of 50 ms, most of it in a call; another one is at the start."""
    with FaultyRun(path) as run:
        run.api(START - early - US, START - US, "cudaFree")
        for at in range(80):
            begin = START + at * 100 * US + (at // 40) * 50 * MS
            run.kernel(begin + US, begin + 99 * US, launched=begin)
            if at == 39 and call:
                gap = begin + 100 * US
                run.call(gap, gap + 49 * MS, "aten::conv2d")
                for part in (0, 20):  # neither takes half of the gap
                    run.api(gap + part * MS, gap + (part + 19) * MS, call)
    return path


@pytest.mark.parametrize("call", ["cudaMalloc", ""])
def test_call_that_takes_most_of_a_pause_is_named(tmp_path: Path, call: str) -> None:
    (part,) = excluded_part(advice(run_with_a_gap(tmp_path / "run.db", call=call)))
    assert part.startswith("not analyzed: a gap of 50.")
    assert part.endswith("; the host is mostly in cudaMalloc of aten::conv2d") == bool(call)


@pytest.mark.parametrize(("early", "named"), [(60 * MS, True), (2 * MS, False)])
def test_long_time_before_the_first_task_is_named(tmp_path: Path, early: int, named: bool) -> None:
    """The analyzed time is 8 ms."""
    parts = excluded_part(advice(run_with_a_gap(tmp_path / "run.db", early=early)))
    text = "not analyzed: 60.0 ms before the first device task, mostly in cudaFree"
    assert parts[:-1] == ([text] if named else [])


@pytest.mark.parametrize("waits", [True, False])
def test_parts_of_host_bound_time_add_up_to_its_share(tmp_path: Path, waits: bool) -> None:
    """The host waits for the device twice per step: a faster host does so sooner, too."""
    with FaultyRun(tmp_path / "run.db") as run:
        for begin in run.steps(6, 2000 * US):
            for at in range(20):
                start = begin + at * 100 * US
                run.kernel(start + 40 * US, start + 50 * US, launched=start + 20 * US)
                if waits and at % 10 == 9:
                    run.api(start + 30 * US, start + 90 * US, "cudaStreamSynchronize")
    text = findings_by_kind(tmp_path / "run.db")["host_bound"].text
    assert ("in other waits" in text) == waits
    total, *parts = (float(one) for one in re.findall(r"([\d.]+) %", text))
    assert sum(parts) == pytest.approx(total, abs=1.0)  # rounded
