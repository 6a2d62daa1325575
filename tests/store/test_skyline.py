"""Run-time and memory reports in the tables of Skyline."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.records import run_with_regions, tracked_run
from tests.sql import execute
from unified_prof.base.run_spec import ActivationRecord, Frame, TrackedRun
from unified_prof.errors import OutputError
from unified_prof.schema.catalogue import SKYLINE_MEMORY, SKYLINE_RUN_TIME, load
from unified_prof.sqlite import skyline_writer
from unified_prof.sqlite.statements import open_unfinished

FACTS = {"uprof": "0.1.0", "command": '["uprof"]'}
WRITERS = [skyline_writer.write_run_time, skyline_writer.write_memory]
each_report = pytest.mark.parametrize("write", WRITERS)
Writer = Callable[..., None]


@pytest.mark.parametrize(
    ("write", "family"),
    [
        (skyline_writer.write_run_time, SKYLINE_RUN_TIME),
        (skyline_writer.write_memory, SKYLINE_MEMORY),
    ],
)
def test_tables_have_the_documented_declarations(
    write: Writer, family: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.sqlite"
    write(path, tracked_run(), FACTS)
    declared = load(family, "1")
    found = dict(execute(path, "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'UPROF%'"))
    for table in declared.tables.values():
        assert found[table.name] == table.create_sql
        for name, sql in table.indexes:
            assert found[name] == sql
    assert execute(path, "PRAGMA user_version") == [(1,)]


def test_entries_hold_medians_and_samples_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run_time.sqlite"
    skyline_writer.write_run_time(path, tracked_run(), FACTS)
    assert execute(path, "SELECT * FROM run_time_entries") == [
        (1, "linear", 2.0, 3.0),
        (2, "relu", 0.6, None),
        (3, "linear", 5.0, 1.0),
    ]
    # The second iteration did not match, so samples are from the first and the third.
    assert execute(path, "SELECT * FROM UPROF_RUN_TIME_SAMPLES WHERE entry_id < 3") == [
        (1, 0, 1.0, 2.0),
        (1, 2, 3.0, 4.0),
        (2, 0, 0.5, None),
        (2, 2, 0.7, None),
    ]
    assert execute(path, "SELECT iteration, total_ms, matched FROM UPROF_ITERATIONS") == [
        (0, 20.0, 1),
        (1, 90.0, 0),
        (2, 24.0, 1),
    ]


def test_gap_is_stored_with_the_operation_that_follows(tmp_path: Path) -> None:
    path = tmp_path / "run_time.sqlite"
    skyline_writer.write_run_time(path, tracked_run(), FACTS)
    assert execute(path, "SELECT * FROM UPROF_GAPS") == [(2, "net.py", 11, 12)]
    assert execute(path, "SELECT * FROM UPROF_GAP_SAMPLES") == [(2, 0, 0.1), (2, 2, 0.3)]


def test_frames_are_ordered_innermost_first(tmp_path: Path) -> None:
    path = tmp_path / "run_time.sqlite"
    skyline_writer.write_run_time(path, tracked_run(), FACTS)
    query = "SELECT entry_id, ordering, file_path, line_number FROM stack_frames"
    assert execute(path, query) == [
        *((1, 0, "net.py", 11), (1, 1, "net.py", 20), (2, 0, "net.py", 12)),
        *((3, 0, "net.py", 11), (3, 1, "net.py", 21)),
    ]
    memory = tmp_path / "memory.sqlite"
    frames = (Frame("net.py", 12), Frame("net.py", 30), Frame("train.py", 4))
    activation = ActivationRecord("relu", "", "Net", 128, frames)
    run = tracked_run(weights=(), activations=(activation,))
    skyline_writer.write_memory(memory, run, FACTS)
    query = "SELECT ordering, file_path, line_number FROM stack_frames"
    assert execute(memory, query) == [(0, "net.py", 12), (1, "net.py", 30), (2, "train.py", 4)]


def test_memory_entries_are_joined_with_their_frames(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    skyline_writer.write_memory(path, tracked_run(), FACTS)
    weights = [(1, "weight", 400, 400), (2, "bias", 40, 0)]
    assert execute(path, "SELECT * FROM weight_entries") == weights
    assert execute(path, "SELECT * FROM activation_entries") == [(1, "relu", 128)]
    assert execute(path, "SELECT * FROM entry_types") == [(1, "Weight"), (2, "Activation")]
    query = (
        "SELECT c.entry_type, c.entry_id, f.file_path, f.line_number FROM stack_correlation c"
        " LEFT JOIN stack_frames f USING (correlation_id) ORDER BY 1, 2"
    )
    assert execute(path, query) == [(1, 1, "net.py", 5), (1, 2, None, None), (2, 1, "net.py", 12)]
    assert execute(path, "SELECT * FROM misc_sizes") == [("peak_usage_bytes", 3000)]
    skyline_writer.write_memory(path, tracked_run(peak_usage_bytes=None), FACTS, overwrite=True)
    assert execute(path, "SELECT * FROM misc_sizes") == [], "the peak was not measured"


def test_module_paths_are_stored_per_entry(tmp_path: Path) -> None:
    run_time, memory = tmp_path / "run_time.sqlite", tmp_path / "memory.sqlite"
    skyline_writer.write_run_time(run_time, tracked_run(), FACTS)
    skyline_writer.write_memory(memory, tracked_run(), FACTS)
    assert execute(run_time, "SELECT * FROM UPROF_MODULES") == [
        ("operation", 1, "blocks.0", "Linear"),
        ("operation", 2, "", "Net"),
        ("operation", 3, "blocks.1", "Linear"),
    ]
    assert ("weight", 2, "blocks.0", "Linear") in execute(memory, "SELECT * FROM UPROF_MODULES")


@each_report
def test_provenance_and_anomalies_are_in_every_report(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    write(path, tracked_run(), FACTS)
    assert execute(path, "SELECT * FROM UPROF_RUN") == [
        ("command", '["uprof"]'),
        ("uprof", "0.1.0"),
    ]
    assert execute(path, "SELECT name, count FROM UPROF_ANOMALIES") == [("iterations_unmatched", 1)]


@each_report
def test_uprof_tables_exist_only_with_rows(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    no_records = dict.fromkeys(("operations", "weights", "activations", "iterations"), ())
    write(path, tracked_run(**no_records, anomalies={}), {})
    assert execute(path, "SELECT name FROM sqlite_master WHERE name LIKE 'UPROF%'") == []


@each_report
def test_equal_runs_give_equal_bytes(write: Writer, tmp_path: Path) -> None:
    first, second = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    write(first, tracked_run(), FACTS)
    write(second, tracked_run(), dict(reversed(FACTS.items())))
    assert first.read_bytes() == second.read_bytes()


@each_report
def test_existing_file_is_kept_without_overwrite(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_text("existing")
    with pytest.raises(OutputError, match="already exists"):
        write(path, tracked_run(), FACTS)
    assert path.read_text() == "existing"
    write(path, tracked_run(), FACTS, overwrite=True)
    assert execute(path, "SELECT count(*) FROM UPROF_RUN") == [(2,)]


@each_report
def test_failed_write_leaves_no_file(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_text("existing")
    broken = {"fact": object()}  # SQLite cannot bind it.
    with pytest.raises(OutputError, match=r"report\.sqlite"):
        write(path, tracked_run(), broken, overwrite=True)
    assert path.read_text() == "existing"
    assert [p.name for p in tmp_path.iterdir()] == ["report.sqlite"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to every directory")
@each_report
def test_read_only_directory_is_named(write: Writer, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="read-only"):
            write(tmp_path / "report.sqlite", tracked_run(), FACTS)
    finally:
        tmp_path.chmod(0o755)


def many_operations(count: int) -> TrackedRun:
    run = tracked_run()
    return tracked_run(operations=run.operations * count)


@each_report
def test_full_disk_is_an_error_and_leaves_no_file(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiny(path: Path) -> sqlite3.Connection:
        db = open_unfinished(path)
        db.execute("PRAGMA max_page_count = 12")
        return db

    monkeypatch.setattr(skyline_writer, "open_unfinished", tiny)
    facts = {f"fact {i}": "x" * 1000 for i in range(100)}
    with pytest.raises(OutputError, match="no space left"):
        write(tmp_path / "report.sqlite", many_operations(100), facts)
    assert list(tmp_path.iterdir()) == []


def test_regions_are_stored_in_separate_tables(tmp_path: Path) -> None:
    path = tmp_path / "run_time.sqlite"
    skyline_writer.write_run_time(path, run_with_regions(), FACTS)
    assert execute(path, "SELECT * FROM UPROF_REGIONS") == [
        *((1, "step", None, 3000), (2, "model", 1, 3000), (3, "first", 2, 2000)),
        *((4, "first", 3, 2500), (5, "data", None, None)),
    ]
    counts = execute(path, "SELECT iteration, count FROM UPROF_REGION_COUNTS WHERE region_id = 5")
    assert counts == [(0, 2), (1, 2), (2, 4)]
    entries = [("operation", 1, 3), ("operation", 2, 4), ("operation", 3, 2)]
    assert execute(path, "SELECT * FROM UPROF_REGION_ENTRIES") == entries
    memory = tmp_path / "memory.sqlite"
    skyline_writer.write_memory(memory, run_with_regions(), FACTS)
    assert execute(memory, "SELECT * FROM UPROF_REGION_ENTRIES") == [("activation", 1, 4)]
    assert execute(memory, "SELECT count(*) FROM UPROF_REGIONS") == [(5,)]


@each_report
def test_report_without_regions_has_no_region_tables(write: Writer, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    write(path, tracked_run(), FACTS)
    assert execute(path, "SELECT name FROM sqlite_master WHERE name LIKE 'UPROF_REGION%'") == []
