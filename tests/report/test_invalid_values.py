"""Databases with invalid values: every format is still produced, or fails with a usage error."""

import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.report import (
    document,
    formats,
    report_document,
    report_formats,
    terminal,
    viewer_traces,
)
from unified_prof.report.figures import collect_figures, figures_document

INVALID = [
    None,
    -1,
    0,
    2**63 - 1,
    -(2**63),
    1e308,
    float("inf"),
    "",
    "soon",
    b"\xff\x00",
    "<b>\x1b[",
]


def produce_everything(path: Path) -> None:
    """Produce a report in every format."""
    with open_analyses(path) as analyses:
        figures = [collect_figures(one) for one in analyses]
        json.dumps(figures_document(figures), allow_nan=False)
        terminal.render_text(report_document.report_document(figures), width=80, color=False)
        document.render_markdown(report_document.report_document(figures))
        report_formats.breakdowns_csv(figures)
        for one in formats.FORMATS:
            with open_reports(path) as opened:
                one.produce(opened, formats.ReportRequest())
        for sort in ("time", "size", "name"):
            with suppress(UsageError):  # no row has the figure
                collect_figures(analyses[0], sort=sort)
        viewer_traces.write_chrome_trace(path.with_suffix(".json"), [("", one) for one in analyses])
    json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def full_database(path: Path) -> None:
    """Write an msprof database with a row in every table that reports read."""
    training_step(path)
    with Device(path.with_name("more.db")) as device:
        row: dict[str, Any] = {"timestampNs": [device.T0, device.T0 + 5], "deviceId": 0}
        name = device.text("a name")
        device.writer.write("NPU_MEM", row | {"type": name, "hbm": [5, 7], "ddr": 1})
        device.writer.write("HBM", row | {"type": name, "hbmId": 0, "bandwidth": [1, 2]})
        device.writer.write("AICORE_FREQ", row | {"freq": [1000, 1800]})
        record = {"component": name, "totalAllocated": [3, 4], "timestamp": row["timestampNs"]}
        device.writer.write("MEMORY_RECORD", record | {"totalReserved": 9, "deviceId": 0})
        memory = {"name": name, "size": [512, 1024], "allocationTime": row["timestampNs"]}
        device.writer.write("OP_MEMORY", memory)
        times: dict[str, Any] = {"startNs": row["timestampNs"], "endNs": [device.T0 + 9] * 2}
        device.writer.write("CANN_API", times | {"connectionId": [1, 2], "name": name})
        device.writer.write("MSTX_EVENTS", times | {"message": name, "globalTid": 1})
        task = device.task(0, 10, kernel=("k", "K"), connection=1)
        device.writer.write("TASK_PMU_INFO", {"globalTaskId": [task], "name": name, "value": 0.5})
        device.writer.write("HOST_INFO", {"hostUid": ["1"], "hostName": "h"})
        device.writer.write("RANK_DEVICE_MAP", {"rankId": [0], "deviceId": 0})
        device.writer.anomaly("skipped", 2, "the first")
        device.writer.fact("torch", "2.13")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ATTACH ? AS more", (str(path.with_name("more.db")),))
        existing = {name for (name,) in db.execute("SELECT name FROM main.sqlite_master")}
        for (name,) in db.execute("SELECT name FROM more.sqlite_master WHERE type = 'table'"):
            if name not in existing:
                db.execute(f'CREATE TABLE main."{name}" AS SELECT * FROM more."{name}"')


def columns_with_rows(build: Callable[[Path], None]) -> list[tuple[str, str]]:
    """Return the (table, column) pairs with rows, except those of enumerations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.db"
        build(path)
        with closing(sqlite3.connect(path)) as db:
            tables = [
                name
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                if not name.startswith("ENUM_")
            ]
            return [
                (table, column[1])
                for table in tables
                for column in db.execute(f'PRAGMA table_info("{table}")').fetchall()
                if db.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone()
            ]


def skyline(path: Path) -> None:
    run_time_report(
        path,
        modules=[("a.b", "C")] * 3,
        iterations=[(0, 5.0, 2.0, 3.0, 700, 1)],
        facts={"device": "cpu"},
        anomalies=[("odd", 1, "detail")],
    )


def memory(path: Path) -> None:
    memory_report(path, modules={"weight": [("a", "B"), None], "activation": [("", "C")]})


BUILDERS = {"msprof": full_database, "run_time": skyline, "memory": memory}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["memory", *(pytest.param(one, marks=pytest.mark.slow) for one in ("msprof", "run_time"))],
)
def test_every_format_accepts_invalid_values_in_any_column(kind: str, tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    BUILDERS[kind](original)
    produce_everything(original)
    columns = columns_with_rows(BUILDERS[kind])
    assert len(columns) > 10
    # Three columns at a time, of different tables, so that one value rarely hides another.
    number = Counter[str]()
    columns.sort(key=lambda one: (number.update([one[0]]), number[one[0]])[1])
    for first in range(0, len(columns), 3):
        check(original, tmp_path / "invalid.db", columns[first : first + 3], first // 3)


def check(original: Path, path: Path, columns: list[tuple[str, str]], first: int) -> None:
    path.write_bytes(original.read_bytes())
    changed = []
    with closing(sqlite3.connect(path)) as db:
        for number, (table, column) in enumerate(columns, first):
            value = INVALID[number % len(INVALID)]
            with suppress(sqlite3.Error), db:  # the table may refuse the value
                db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = 1', (value,))
                changed.append(f"{table}.{column} = {value!r}")
    try:
        produce_everything(path)
    except Exception as err:
        raise AssertionError(", ".join(changed)) from err
