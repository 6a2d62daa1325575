"""Results that tests compute are equal, as a whole, to those of the last reviewed run.

A test asserts what it is about, usually one figure of a result with many. All others are compared
here: every record of `RESULTS` and every sink of decoders that a test builds, field by field, with
the lines of the test in `tests/data/stored`. Wording is not compared, so that a better message
changes nothing there. Tests without lines there are not compared.

After an intended change of figures, `UPROF_STORE=1 python -m pytest -n 0 tests/...` rewrites the
lines of these tests; the diff shows which fields of which results change. The failure of a test
shows the values.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from hashlib import sha1
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import is_hypothesis_test

ROOT = Path(__file__).resolve().parent
FOLDER = ROOT / "data" / "stored"
WRITES = "UPROF_STORE" in os.environ
COMPARED = ("analysis", "cluster", "decoders", "export", "report")
# Tests whose results contain the times of files or of real runs.
VOLATILE = ("cluster/test_mistakes.py", "analysis/views/test_regions.py")
RESULTS = {
    "tests.stored": "Values",
    "unified_prof.recording.model": "Breakdown Distribution Advice Summary Samples Series",
    "unified_prof.explain.critical_path": "CriticalPath",
    "unified_prof.explain.other_device": "DeviceEstimate",
    "unified_prof.explain.report_questions": "WhatIfResult",
    "unified_prof.explain.roofline.breakdown": "Roofline",
    "unified_prof.explain.skyline": "Tree",
    "unified_prof.explain.schedule.graph": "Schedule",
    "unified_prof.compare.confidence": "Estimate",
    "unified_prof.compare.device_diff": "DeviceDifference",
    "unified_prof.compare.diff": "Difference",
    "unified_prof.compare.gate": "Verdict",
    "unified_prof.compare.history": "History",
    "unified_prof.compare.statistics": "Comparison",
    "unified_prof.cluster.clocks": "AlignedClocks",
    "unified_prof.cluster.overview": "Overview",
    "unified_prof.cluster.run_comparison": "ClusterDifference",
    "unified_prof.cluster.slow_links": "SlowLink",
    "unified_prof.cluster.step_lanes": "StepLanes",
    "unified_prof.cluster.summary": "RunSummary",
    "unified_prof.pipeline.convert": "Conversion",
    "tests.decoders.prof.memory_sink": "MemorySink",
    "tests.decoders.kineto.builders": "RowSink",
    "tests.decoders.ascend_pt.rows": "RowSink",
}
# Longest text of a field that is stored itself, not as a digest.
SHORT = 24

# Longest text of the results of a test that are compared, so that comparing costs little.
LIMIT = 30_000
MAX_DATABASE_BYTES = 1 << 19
# Lists of rules: a new rule would change all advice.
LEFT_OUT = ("judged", "not_judged")

_results: list[Any] = []
_collects = False


def _watch(kind: type[Any]) -> None:
    """Collect the instances of a class that a test builds."""
    original = kind.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _collects:
            _results.append(self)

    kind.__init__ = init


class Values:
    """Values by name, for tests that compare nothing else."""

    def __init__(self, **values: object) -> None:
        vars(self).update(values)


def compare_files(folder: Path) -> None:
    """Compare the cells and values of files, whose names end with a time."""
    files = sorted(one for one in folder.iterdir() if one.is_file())
    texts = {file.stem.rpartition("_")[0]: file.read_text(encoding="utf-8") for file in files}
    Values(**{name: re.split(r"[,\s]+", text) for name, text in texts.items()})


def pytest_configure() -> None:
    """Watch all result classes."""
    for module, names in RESULTS.items():
        for name in names.split():
            _watch(getattr(importlib.import_module(module), name))


def plain(value: object, depth: int = 0) -> Any:
    """Return a value as JSON has it: rounded, without wording and places of files."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.9g}") if value == value else "nan"
    if isinstance(value, str):
        return "..." if " " in value or "/" in value else value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Path):
        return value.suffix
    if depth > 9:
        return "..."
    if isinstance(value, np.ma.MaskedArray | np.ndarray):
        return [str(value.dtype), *(plain(one, depth + 1) for one in value.ravel().tolist())]
    if isinstance(value, Mapping):
        return [[plain(one, depth), plain(value[one], depth + 1)] for one in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(one, depth + 1) for one in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(one, depth + 1) for one in value]
    if is_dataclass(value):
        return [plain(getattr(value, name, None), depth + 1) for name in _names(value)]
    return type(value).__name__


def _tables(database: Path) -> dict[str, object]:
    """Return the rows of a small database, without the tables that say where it is from."""
    if not database.is_file() or database.stat().st_size > MAX_DATABASE_BYTES:
        return {}
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as db:
        names = [
            name
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not name.startswith(("ENUM_", "META_DATA", "UPROF_RUN"))
        ]
        found = {name: db.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
    return {name: rows for name, rows in found.items() if rows}


def _parts(result: object) -> dict[str, object]:
    """Return the values of a result by name."""
    if type(result).__name__ == "Conversion":
        return _tables(result.database)  # type: ignore[attr-defined]
    if type(result).__name__.endswith("Sink"):
        tables: Any = result.tables if hasattr(result, "tables") else result.rows  # type: ignore[attr-defined]
        tables = tables() if callable(tables) else tables
        return {**tables, "anomalies": result.anomalies}  # type: ignore[attr-defined]
    names = [name for name in _names(result) if name not in LEFT_OUT]
    return {name: getattr(result, name, None) for name in names}


def _names(value: object) -> list[str]:
    if is_dataclass(value):
        return [one.name for one in fields(value)]
    return [name for name in vars(value) if not name.startswith("_")]


def _texts(result: object) -> dict[str, str]:
    return {
        name: json.dumps(plain(value), separators=(",", ":"))
        for name, value in _parts(result).items()
    }


def line(result: object) -> str:
    """Return a result in one line: the text or the digest of each field."""
    texts = _texts(result)
    return " ".join(
        (
            type(result).__name__,
            *(
                f"{name}={text if len(text) <= SHORT else sha1(text.encode()).hexdigest()[:8]}"
                for name, text in texts.items()
            ),
        )
    )


@cache
def _stored(file: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        if text.startswith("  "):
            lines.append(text[2:])
        else:
            lines = found[text] = []
    return found


def _compare(item: pytest.Item) -> None:
    module, _, test = item.nodeid.partition("::")
    name = module.removeprefix("tests/").removesuffix(".py").replace("/test_", "/")
    file = FOLDER / f"{name.replace('/', '.')}.txt"
    stored = _stored(file)
    if WRITES:
        stored.pop(test, None)
        if _results and sum(len("".join(_texts(one).values())) for one in _results) < LIMIT:
            stored[test] = [line(one) for one in _results]
        FOLDER.mkdir(exist_ok=True)
        texts = ["\n  ".join((one, *stored[one])) for one in sorted(stored)]
        file.write_text("\n".join([*texts, ""]), encoding="utf-8")
    elif test in stored:
        found = [line(one) for one in _results]
        if found != stored[test]:
            changed = [
                one for one, text in zip(_results, found, strict=True) if text not in stored[test]
            ]
            values = [{name: plain(part) for name, part in _parts(one).items()} for one in changed]
            pytest.fail(
                f"results differ from {file.name}; see tests/stored.py\n"
                + "\n".join([*stored[test], "now", *found, json.dumps(values)[:20_000]])
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Begin to collect results."""
    global _collects
    place = item.path.relative_to(ROOT) if item.path.is_relative_to(ROOT) else item.path
    _results.clear()
    _collects = place.parts[0] in COMPARED and place.as_posix() not in VOLATILE
    _collects = _collects and not is_hypothesis_test(getattr(item, "obj", None))
    _collects = _collects and item.get_closest_marker("slow") is None
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object],
) -> Generator[None, object, object]:
    """Leave out results of fixtures that several tests share: only the first test builds them."""
    global _collects
    before, _collects = _collects, _collects and fixturedef.scope == "function"
    try:
        return (yield)
    finally:
        _collects = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Compare the results of a test that passes."""
    global _collects
    was_collecting = _collects
    try:
        yield
    finally:
        _collects = False
    if was_collecting:
        _compare(item)
    _results.clear()
