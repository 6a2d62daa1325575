"""Detection of family, revision and producer of a report."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from tests.sql import execute
from unified_prof.errors import SchemaVersionError, StoreError
from unified_prof.schema import catalogue
from unified_prof.sqlite.opening import Detection, detect

MSPROF = catalogue.REVISIONS["msprof"]
LATEST = catalogue.resolve("msprof", "latest")


def create_report(path: Path, revision: str, *edits: str, drop: Iterable[str] = ()) -> Path:
    """Create a database at `revision`, drop tables, then run further statements."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN;\n{catalogue.frozen_text('msprof', revision)}COMMIT;")
        for table in drop:
            db.execute(f'DROP TABLE "{table}"')
        for statement in edits:
            db.execute(statement)
        db.commit()
    return path


def optional(revision: str) -> list[str]:
    spec = catalogue.load("msprof", revision)
    return [t for t in spec.tables if t not in catalogue.ALWAYS_PRESENT and t not in spec.rows]


def set_version(value: str) -> str:
    return f"UPDATE META_DATA SET value = '{value}' WHERE name = 'SCHEMA_VERSION'"


@pytest.mark.parametrize("revision", MSPROF)
def test_every_revision_is_recognized_by_its_contents(tmp_path: Path, revision: str) -> None:
    found = detect(create_report(tmp_path / "a.db", revision))
    assert (found.family, found.revision, found.equivalent) == ("msprof", revision, ())
    assert found.recognised_by
    assert found.notes == ()
    assert found.producer == "msprof"


@pytest.mark.parametrize("revision", MSPROF)
def test_file_without_optional_tables_fits_many_revisions(tmp_path: Path, revision: str) -> None:
    found = detect(create_report(tmp_path / "a.db", revision, drop=optional(revision)))
    assert found.revision is not None
    assert revision in (found.revision, *found.equivalent)


def test_equivalent_revisions_are_listed(tmp_path: Path) -> None:
    late = detect(
        create_report(tmp_path / "a.db", "1.1.1_20250820", drop=optional("1.1.1_20250820"))
    )
    assert late.revision == "1.1.1_20250327"
    assert late.equivalent == ("1.1.1_20250620", "1.1.1_20250820")
    renamed = detect(create_report(tmp_path / "b.db", "1.2.0_20260128", drop=["COMPUTE_TASK_INFO"]))
    assert renamed.revision == "1.2.0_20251226"
    assert renamed.equivalent == ("1.2.0_20260128",)


def test_recorded_revision_is_exact(tmp_path: Path) -> None:
    row = "INSERT INTO META_DATA VALUES ('UPROF_SCHEMA_REVISION', '1.1.1_20250820')"
    found = detect(
        create_report(tmp_path / "a.db", "1.1.1_20250820", row, drop=optional("1.1.1_20250820"))
    )
    assert (found.revision, found.equivalent) == ("1.1.1_20250820", ())
    assert found.producer == "uprof"


def test_recorded_revision_that_the_tables_contradict_is_ignored(tmp_path: Path) -> None:
    row = f"INSERT INTO META_DATA VALUES ('UPROF_SCHEMA_REVISION', '{LATEST}')"
    found = detect(create_report(tmp_path / "a.db", "1.2.0_20250922", row))
    assert found.revision == "1.2.0_20250922"
    assert any(LATEST in note for note in found.notes)


def test_revision_of_a_newer_uprof_is_refused_by_name(tmp_path: Path) -> None:
    row = "INSERT INTO META_DATA VALUES ('UPROF_SCHEMA_REVISION', '99.0.0_20990101')"
    found = detect(create_report(tmp_path / "a.db", LATEST, row))
    with pytest.raises(SchemaVersionError, match=r"99\.0\.0_20990101.*newer uprof"):
        found.require()


def test_unknown_version_is_refused(tmp_path: Path) -> None:
    found = detect(create_report(tmp_path / "a.db", "1.2.0_20251226", set_version("9.9.9")))
    assert found.revision is None
    with pytest.raises(SchemaVersionError, match=r"a\.db.*'9\.9\.9'"):
        found.require()


@pytest.mark.parametrize(
    ("edit", "note"),
    [
        ("DELETE FROM META_DATA WHERE name = 'SCHEMA_VERSION'", "has no row SCHEMA_VERSION"),
        ("DELETE FROM META_DATA", "has no row SCHEMA_VERSION"),
        ("DELETE FROM META_DATA WHERE name = 'SCHEMA_VERSION_MICRO'", "no row SCHEMA_VERSION_M"),
        ("INSERT INTO META_DATA SELECT * FROM META_DATA", "2 rows SCHEMA_VERSION"),
        ("INSERT INTO META_DATA VALUES ('SCHEMA_VERSION', '1.0.0')", "2 rows SCHEMA_VERSION"),
        ("UPDATE META_DATA SET value = '0' WHERE name = 'SCHEMA_VERSION_MAJOR'", "parts are 0.2"),
        (set_version("1.0.0"), "its tables are of 1.2.0"),
    ],
)
def test_contradictory_meta_data_is_noted_and_ignored(tmp_path: Path, edit: str, note: str) -> None:
    found = detect(create_report(tmp_path / "a.db", "1.2.0_20251226", edit))
    assert found.revision == "1.2.0_20251226"
    assert any(note in n for n in found.notes), found.notes


def test_newer_version_than_the_tables_counts_as_the_older_revision(tmp_path: Path) -> None:
    found = detect(create_report(tmp_path / "a.db", "1.0.0_20241112", set_version("1.2.0")))
    assert found.revision == "1.0.0_20241112"
    assert any("META_DATA has version 1.2.0" in note for note in found.notes)


def test_build_between_two_revisions_counts_as_the_older(tmp_path: Path) -> None:
    edit = "INSERT INTO ENUM_HCCL_TRANSPORT_TYPE VALUES (4, 'ROCE')"
    found = detect(create_report(tmp_path / "a.db", "1.2.0_20260330", edit))
    assert found.revision == "1.2.0_20260330"
    assert any("ENUM_HCCL_TRANSPORT_TYPE has 4 ROCE" in note for note in found.notes)


def test_additions_of_viewers_do_not_change_the_revision(tmp_path: Path) -> None:
    found = detect(
        create_report(
            tmp_path / "a.db",
            "1.0.0_20240711",
            "ALTER TABLE TASK ADD COLUMN depth integer",
            "ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN gridDim INTEGER",
            "CREATE TABLE OVERLAP_ANALYSIS (id INTEGER PRIMARY KEY AUTOINCREMENT, type integer)",
            "CREATE TABLE status_info (id INTEGER PRIMARY KEY, key TEXT, value TEXT)",
            "CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER)",
            "CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER)",
            "PRAGMA user_version = 2026051916",
        )
    )
    assert found.revision == "1.0.0_20240711"
    assert found.viewer == "MindStudio Insight"
    assert found.producer == "msprof + torch_npu"


def test_file_of_msmonitor_is_recognized_despite_its_contradictory_version(tmp_path: Path) -> None:
    path = create_report(
        tmp_path / "a.db",
        "1.2.0_20260128",
        "DROP TABLE STRING_IDS",
        "CREATE TABLE STRING_IDS (id INTEGER, value TEXT)",
        "UPDATE META_DATA SET value = '0' WHERE name = 'SCHEMA_VERSION_MAJOR'",
        drop=["COMMUNICATION_TASK_INFO", "ENUM_MODULE", "ENUM_HCCL_LINK_TYPE"],
    )
    found = detect(path)
    assert (found.revision, found.producer) == ("1.2.0_20260128", "msMonitor")
    assert any("parts are 0.2.0" in note for note in found.notes)


def test_file_without_strings_is_incomplete(tmp_path: Path) -> None:
    assert not detect(
        create_report(tmp_path / "a.db", "1.2.0_20251226", drop=["STRING_IDS"])
    ).complete


@pytest.mark.parametrize(
    ("family", "maker"),
    [("skyline-run-time", "Skyline"), ("skyline-memory", "Skyline"), ("cluster", "uprof")],
)
def test_reports_of_other_families_are_recognized(tmp_path: Path, family: str, maker: str) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(catalogue.frozen_text(family, "1"))
    found = detect(path)
    assert (found.family, found.revision, found.producer) == (family, "1", maker)
    execute(path, "PRAGMA user_version = 7")
    with pytest.raises(SchemaVersionError, match="user_version is 7, expected 1"):
        detect(path).require()


def test_database_of_another_program_is_described(tmp_path: Path) -> None:
    execute(tmp_path / "a.db", "CREATE TABLE TASK (id INTEGER PRIMARY KEY, title TEXT)")
    found = detect(tmp_path / "a.db")
    assert found.family is None
    with pytest.raises(StoreError, match=r"a\.db is not a report.*program \(tables: TASK\)"):
        found.require()


def test_databases_of_real_devices_are_recognized(shared: Path) -> None:
    folder = shared / "samples" / "ascend"

    def detect_sample(name: str) -> Detection:
        return detect(folder / name)

    rank0 = detect_sample(
        "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db"
    )
    rank1 = detect_sample(
        "level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_1.db"
    )
    old = detect_sample("910A_2024-09_level1.db")
    assert (rank0.revision, rank0.viewer) == ("1.0.0_20241112", "MindStudio Insight")
    assert (rank1.revision, rank1.viewer) == ("1.0.0_20241112", None)
    assert old.revision == "1.0.0_20240711"
    assert {d.producer for d in (rank0, rank1, old)} == {"msprof + torch_npu"}
    edited = detect_sample("msprof_0_edited_by_viewer.db")
    assert (edited.family, edited.revision) == ("msprof", None)
    assert "changed by MindStudio Insight" in edited.description
    prehistory = detect_sample("report_0_prehistory.db")
    assert (prehistory.family, prehistory.revision) == ("msprof", None)
    assert "older than pre_20240328" in prehistory.description
    other = detect_sample("level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/analysis.db")
    assert other.family is None
    assert "analysis.db" in other.description


def test_file_of_torch_npu_alone_has_the_earliest_revision(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ascend_pytorch_profiler.db")) as db:
        db.executescript(
            "CREATE TABLE STRING_IDS (id INTEGER, value TEXT);"
            "CREATE TABLE ENUM_API_TYPE (id INTEGER, name TEXT);"
            "INSERT INTO ENUM_API_TYPE VALUES (50001, 'op');"
            "CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT);"
            "CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER);"
        )
    found = detect(tmp_path / "ascend_pytorch_profiler.db")
    assert found.producer == "msprof + torch_npu"
    assert found.revision == "pre_20240328"


def test_tables_of_missing_modules_are_ignored(tmp_path: Path) -> None:
    path = create_report(
        tmp_path / "a.db",
        "1.2.0_20251226",
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_master VALUES ('table', 'odd', 'odd', 0,"
        " 'CREATE VIRTUAL TABLE odd USING nowhere(a)')",
    )
    assert detect(path).revision == "1.2.0_20251226"
