"""The summary of a watched run: parts add up to the step, for each clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from unified_prof.report.document import Document
from unified_prof.report.terminal import render_text
from unified_prof.report.watch_document import watch_document
from unified_prof.sqlite.watch_file import StepRow, WatchFile, read_folder


def summary_of(folder: Path, device: str, rows: list[StepRow]) -> Document:
    """Write steps of one rank and return their summary."""
    file = WatchFile(folder, 0, {"rank": "0", "began_ns": "1", "device": device})
    file.append(rows)
    return watch_document(read_folder(folder), folder)


def row(step: int, passes_ns: tuple[int | None, int | None, int | None]) -> StepRow:
    """A step of 10 ms."""
    start_ns = 10**18 + step * 10**7
    return StepRow(
        step, start_ns, 10**7, 100_000, *passes_ns, 300_000, 0, None, None, None, None, None
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_parts_of_each_clock_add_up_to_the_step(tmp_path: Path, device: str) -> None:
    known = [row(step, (2_000_000, 4_000_000, 1_000_000)) for step in range(5, 50)]
    unknown = [row(step, (None, None, None)) for step in range(5)] if device == "cuda" else []
    text = render_text(summary_of(tmp_path, device, [*unknown, *known]))
    shares: dict[str, float] = {}
    for line in text.splitlines():
        if line.endswith(" %") and "tenth" not in line:
            words = line.split()
            clock = next((word for word in words if word in ("host", "device")), "host")
            if words[0] == "host" and words[1] == "wait":
                clock = "host"
            shares[clock] = shares.get(clock, 0.0) + float(words[-2])
    assert set(shares) == ({"host", "device"} if device == "cuda" else {"host"})
    assert all(total == pytest.approx(100, abs=0.3) for total in shares.values()), text


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    assert "no complete step" in render_text(summary_of(tmp_path, "cpu", []))


def test_steps_without_device_times_have_parts_of_the_host_only(tmp_path: Path) -> None:
    text = render_text(summary_of(tmp_path, "cuda", [row(0, (None, None, None))]))
    assert "data loading" in text
    assert "forward" not in text
