"""Replayed graphs count for their captured operations in comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest

import unified_prof
from tests.analysis.builders import Device, run_time_report
from tests.analysis.explain.test_replayed import ADD, MM, write_capture, write_replay
from tests.cli.test_report import refused, uprof
from unified_prof.compare.device_tables import DeviceDifference
from unified_prof.errors import UsageError

Kernels = list[tuple[int, int | None]]
BEFORE: Kernels = [(30, None), (5, None), (40, None)]
AFTER: Kernels = [(60, None), (5, None), (40, None)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_replay(tmp_path / "base.db", BEFORE, BEFORE)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_replay(tmp_path / "new.db", AFTER, AFTER)


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "capture.db", [MM, ADD, MM])


def calls_and_times(found: object) -> dict[str, list[tuple[int, int]]]:
    """Return calls and time of each operation on both sides."""
    assert isinstance(found, DeviceDifference)
    return {
        one.name: [(side.calls, side.total_ns) for side in (one.base, one.new) if side is not None]
        for one in found.operations
    }


def test_replayed_kernels_count_for_their_captures(base: Path, new: Path, captured: Path) -> None:
    found = calls_and_times(unified_prof.diff(base, new, captures=captured))
    expected = {"mm": [(4, 140), (4, 200)], "add": [(2, 10), (2, 10)], "relu": [(1, 7), (1, 7)]}
    assert found == expected


def test_replayed_kernels_without_capture_are_not_attributed(base: Path, new: Path) -> None:
    assert "mm" not in calls_and_times(unified_prof.diff(base, new))


def test_eager_side_is_compared_with_a_replay(new: Path, captured: Path, tmp_path: Path) -> None:
    eager = tmp_path / "eager.db"
    with Device(eager) as device:
        for number, (name, lasted) in enumerate((("mm", 30), ("add", 5), ("mm", 40), ("relu", 7))):
            at = 1000 * (number + 1)
            device.call(at, at + 90, f"aten::{name}", launches=number + 1)
            device.runtime(at + 10, at + 20, "cudaLaunchKernel", number + 1)
            device.task(
                at + 50, at + 50 + lasted, connection=number + 1, kernel=(f"k{number}", "K")
            )
    found = calls_and_times(unified_prof.diff(eager, new, captures=(None, captured)))
    assert found == {"mm": [(2, 70), (4, 200)], "add": [(1, 5), (2, 10)], "relu": [(1, 7), (1, 7)]}


def test_launches_that_match_no_capture_warn(base: Path, new: Path, tmp_path: Path) -> None:
    other = write_capture(tmp_path / "other.db", [MM, ADD])
    found = unified_prof.diff(base, new, captures=(None, other))
    assert isinstance(found, DeviceDifference)
    assert any("new.db" in one and "3 launches" in one for one in found.warnings), found.warnings


@pytest.mark.slow
def test_diff_command_attributes_replays_to_lines(base: Path, new: Path, captured: Path) -> None:
    with_both = uprof("diff", base, new, "--with", captured, "--by", "line").stdout
    assert "net.py:9" in with_both
    each = ("--base-with", captured, "--new-with", captured)
    assert uprof("diff", base, new, *each, "--by", "line").stdout == with_both
    assert "net.py:9" not in uprof("diff", base, new, "--by", "line").stdout


def test_invalid_captures_refused(base: Path, new: Path, captured: Path, tmp_path: Path) -> None:
    refused(uprof("diff", base, new, "--with", captured, "--new-with", captured), 2, "--base-with")
    refused(uprof("diff", base, new, "--with", new), 2, "cannot be its own capture")
    refused(
        uprof("diff", base, new, "--base", new, "--with", captured), 2, "applies to one timeline"
    )
    tracked = run_time_report(tmp_path / "run_time.sqlite")
    refused(uprof("diff", tracked, tracked, "--with", captured), 2, "not a timeline")
    refused(uprof("diff", "--workload", f"a={base}:{new}", "--with", captured), 2, "each workload")
    with pytest.raises(UsageError, match="no operations"):
        unified_prof.diff(base, new, captures=run_time_report(tmp_path / "r.sqlite"))
