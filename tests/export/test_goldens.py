"""Exported text files equal those of the vendor's exporter for the same recordings.

The comparison excludes data missing from the database (`docs/export.md`), connection ids, which are
free, and the order of simultaneous tasks, which the vendor does not define.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from unified_prof.pipeline.export import export

GOLDENS = Path(__file__).resolve().parents[2].parent / "shared" / "goldens" / "text"
CASES = sorted(path.name for path in GOLDENS.glob("*/")) if GOLDENS.is_dir() else []
QUICK = "07_copies_marks_misc"

_UNKNOWN_MEMBERS = ("Batch Id", "Mode", "id", "item_id", "duration estimated(us)", "connection_id")
_UNKNOWN_MARK = ("Payload_type", "Payload_value", "Message_type")
_UNKNOWN_CELLS = {
    "op_summary": ("cube_utilization(%)",),
    "task_time": ("kernel_name",),
    "msprof_tx": ("payload_type", "payload_value", "message_type"),
}
_ROUGH_TIMES = ("msprof_tx", "memory_record", "operator_memory")
"""Files whose times the vendor converts through binary floating point."""


@pytest.fixture
def exported_files(
    request: pytest.FixtureRequest, shared: Path, tmp_path: Path
) -> Callable[[str], Any]:
    """Return a function that returns the vendor's and our files of a case by kind."""

    def make(case: str) -> tuple[dict[str, Path], dict[str, Path]]:
        goldens = shared / "goldens"
        _unpack(goldens / "prof" / case, tmp_path)
        _unpack(goldens / "text" / case, tmp_path / "theirs")
        export(next(tmp_path.glob("PROF_*")), tmp_path / "ours", raw=True)
        return _kinds(tmp_path / "theirs"), _kinds(tmp_path / "ours")

    return make


def _unpack(case: Path, folder: Path) -> None:
    with tarfile.open(next(case.glob("*.tar.xz"))) as archive:
        archive.extractall(folder, filter="data")


def _kinds(folder: Path) -> dict[str, Path]:
    """Return files by their name without the time."""
    return {
        path.stem.rpartition("_")[0] + path.suffix: path
        for path in folder.iterdir()
        if path.suffix in (".csv", ".json")
    }


def assert_files_equal(theirs: dict[str, Path], ours: dict[str, Path]) -> None:
    assert {kind for kind in theirs if not kind.startswith("step_trace")} == set(ours)
    for kind, path in ours.items():
        stem, _, suffix = kind.rpartition(".")
        if suffix == "csv":
            _compare_tables(stem, _rows(theirs[kind]), _rows(path))
        else:
            _compare_events(theirs[kind], path)


@pytest.mark.usefixtures("shared")
def test_exported_files_equal_the_vendors(exported_files: Callable[[str], Any]) -> None:
    assert_files_equal(*exported_files(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("case", [name for name in CASES if name != QUICK])
def test_exported_files_of_every_recording_equal_the_vendors(
    case: str, exported_files: Callable[[str], Any]
) -> None:
    assert_files_equal(*exported_files(case))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_killed_export_leaves_nothing(number: signal.Signals, shared: Path, tmp_path: Path) -> None:
    _unpack(shared / "goldens" / "prof" / "16_everything", tmp_path)
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "unified_prof", "export", next(tmp_path.glob("PROF_*")), "-o", out],
        env={**os.environ, "TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 400
    while not any(scratch.rglob("*.db*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(number)
    process.communicate(timeout=400)
    assert process.returncode in (-number, 128 + number)
    assert not list(scratch.iterdir())
    assert not out.exists()


def _rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _compare_tables(stem: str, theirs: list[list[str]], ours: list[list[str]]) -> None:
    header = theirs[0]
    assert ours[0] == header
    assert len(ours) == len(theirs)
    hidden = [header.index(name) for name in _UNKNOWN_CELLS.get(stem, ()) if name in header]
    for rows in (theirs, ours):
        for row in rows[1:]:
            for index in hidden:
                row[index] = ""
        if stem == "task_time":
            start = header.index("task_start(us)")
            rows[1:] = sorted(rows[1:], key=lambda row: (row[start], row))
    for mine, golden in zip(ours, theirs, strict=True):
        if stem in _ROUGH_TIMES:
            assert all(map(_is_close, mine, golden)), (stem, mine, golden)
        else:
            assert mine == golden, stem


def _is_close(mine: str, golden: str) -> bool:
    if mine == golden:
        return True
    if "." not in mine or "." not in golden:
        return False
    # Times are text with three decimals, which are whole ns.
    ns = [int(text.strip().replace(".", "")) for text in (mine, golden)]
    return (abs(ns[0] - ns[1]) <= 250 and mine[-1:] == golden[-1:]) or _is_duration(mine, golden)


def _is_duration(mine: str, golden: str) -> bool:
    """Return whether two memory durations of operators agree; the vendor cuts trailing zeros."""
    try:
        return abs(float(mine) - float(golden)) <= 0.5
    except ValueError:
        return False


def _compare_events(theirs: Path, ours: Path) -> None:
    golden, mine = (json.loads(path.read_text(encoding="utf-8")) for path in (theirs, ours))
    copies = {
        (event["pid"], event["tid"], event["ts"])
        for event in golden
        if "operation" in event.get("args", {})
    }
    normal = partial(_normal, copies=copies)
    expected, found = Counter(map(normal, golden)), Counter(map(normal, mine))
    expected.pop("", None)
    for event in list(expected):
        if event and json.loads(event)["ph"] in "CM":
            # The vendor writes frequencies again for the clock of each device.
            expected[event] = min(expected[event], found[event])
    found.pop("", None)
    missing = expected - found
    added = found - expected
    if missing or added:
        pytest.fail(f"missing: {next(iter(missing), None)}\nadded: {next(iter(added), None)}")


def _normal(event: dict[str, Any], copies: set[tuple[Any, ...]]) -> str:
    """Return an event without its free or unknown members, or "" for one that is not exported."""
    args = event.get("args", {})
    if event.get("cat") == "Iteration Time" or "Step Trace" in str(args.get("name")):
        return ""
    if event.get("cat") == "HostToDevice":
        event = {**event, "name": "", "id": ""}
    hidden = set(_UNKNOWN_MEMBERS) | set(_UNKNOWN_MARK)
    if (event.get("pid"), event.get("tid"), event.get("ts")) in copies:
        hidden.add("Task Type")
    args = {name: value for name, value in args.items() if name not in hidden}
    if event.get("name") == "process_name" and args.get("name") not in _KNOWN_PROCESSES:
        args = {"name": "the program"}
    return json.dumps({**event, "args": args}, sort_keys=True)


_KNOWN_PROCESSES = (
    *("CANN", "Ascend Hardware", "AI Core Freq", "Communication", "Overlap Analysis"),
)
