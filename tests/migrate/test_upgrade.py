"""Upgrades in place by copy and rename, or into another file; never half done."""

import os
import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.migrate.databases import LATEST, make, make_msmonitor, opened, rows_of, tables_of
from tests.sql import execute
from unified_prof.errors import OutputError, SchemaVersionError, StoreError, UsageError
from unified_prof.migrate.check import check
from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue
from unified_prof.sqlite.opening import detect

OLD = "1.1.1_20250620"


@pytest.fixture
def old_database(tmp_path: Path) -> Path:
    return make(
        tmp_path / "msprof_20250901120000.db",
        OLD,
        {
            "STRING_IDS": [(number, f"text {number}") for number in range(2000)],
            "COMPUTE_TASK_INFO": [(1, number, 24, *range(12)) for number in range(500)],
        },
    )


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_original_is_kept_as_a_backup(old_database: Path) -> None:
    before = old_database.read_bytes()
    old_database.chmod(0o640)
    result = upgrade(old_database)
    assert (result.before, result.after) == (OLD, LATEST)
    assert detect(old_database).revision == LATEST
    assert detect(old_database).migrated_from == OLD
    assert old_database.stat().st_mode & 0o777 == 0o640
    assert result.backup == old_database.with_name(f"{old_database.name}.bak")
    assert result.backup.read_bytes() == before
    assert file_names(old_database.parent) == [old_database.name, f"{old_database.name}.bak"]


def test_existing_backup_is_kept(old_database: Path) -> None:
    first = old_database.with_name(f"{old_database.name}.bak")
    first.write_text("original")
    assert upgrade(old_database).backup == old_database.with_name(f"{old_database.name}.bak2")
    assert first.read_text() == "original"


def test_upgrade_without_backup(old_database: Path) -> None:
    assert upgrade(old_database, backup=False).backup is None
    assert file_names(old_database.parent) == [old_database.name]


def test_upgrade_into_another_file_keeps_the_original(old_database: Path, tmp_path: Path) -> None:
    before = (old_database.read_bytes(), old_database.stat().st_mtime_ns)
    result = upgrade(old_database, "documented", output=tmp_path / "new.db")
    assert (old_database.read_bytes(), old_database.stat().st_mtime_ns) == before
    assert detect(result.output).revision == "1.2.0_20251226"
    assert file_names(tmp_path) == sorted(["new.db", old_database.name])


def test_existing_output_is_overwritten_only_on_request(old_database: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    target.write_text("original")
    with pytest.raises(OutputError, match="already exists"):
        upgrade(old_database, output=target)
    assert target.read_text() == "original"
    upgrade(old_database, output=target, overwrite=True)
    assert detect(target).revision == LATEST
    with pytest.raises(OutputError, match="is the file to upgrade"):
        upgrade(old_database, output=old_database, overwrite=True)


def test_upgrade_in_two_stages_equals_one_stage(old_database: Path, tmp_path: Path) -> None:
    once = upgrade(old_database, output=tmp_path / "once.db").output
    stage = upgrade(old_database, "documented", output=tmp_path / "stage.db").output
    twice = upgrade(stage, output=tmp_path / "twice.db").output
    assert tables_of(once) == tables_of(twice)
    for table in tables_of(once):
        assert rows_of(once, f"SELECT * FROM {table}") == rows_of(twice, f"SELECT * FROM {table}")


def test_upgrade_is_reproducible(old_database: Path, tmp_path: Path) -> None:
    first = upgrade(old_database, output=tmp_path / "1.db").output.read_bytes()
    assert upgrade(old_database, output=tmp_path / "2.db").output.read_bytes() == first


def test_file_of_the_requested_revision_is_unchanged(old_database: Path) -> None:
    upgrade(old_database, backup=False)
    before = (old_database.read_bytes(), old_database.stat().st_mtime_ns)
    result = upgrade(old_database)
    assert result.before == result.after == LATEST
    assert (old_database.read_bytes(), old_database.stat().st_mtime_ns) == before


def test_target_of_a_link_is_upgraded(old_database: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(old_database)
    upgrade(link)
    assert link.is_symlink()
    assert detect(old_database).revision == LATEST


def test_upgrade_goes_forward_to_known_revisions_only(old_database: Path) -> None:
    with pytest.raises(SchemaVersionError, match=r"newer than 1\.0\.0_20240521"):
        upgrade(old_database, "1.0.0_20240521")
    with pytest.raises(UsageError, match=r"no revision '9\.9\.9'"):
        upgrade(old_database, "9.9.9")
    assert detect(old_database).revision == OLD


def test_requested_equivalent_revision_is_recorded(tmp_path: Path) -> None:
    path = make(tmp_path / "a.db", "1.1.1_20250327")
    assert detect(path).equivalent == ("1.1.1_20250620", "1.1.1_20250820")
    upgrade(path, "1.1.1_20250820")
    found = detect(path)
    assert (found.revision, found.equivalent) == ("1.1.1_20250820", ())


def test_incomplete_file_is_upgraded_and_stays_incomplete(old_database: Path) -> None:
    execute(old_database, "DROP TABLE STRING_IDS")
    upgrade(old_database)
    assert not detect(old_database).complete


def test_msmonitor_file_is_upgraded_without_keys(tmp_path: Path) -> None:
    path = make_msmonitor(tmp_path / "msmonitor_4242_20260301120000000_0.db")
    before = {t: rows_of(path, f"SELECT * FROM {t}") for t in tables_of(path) if t != "META_DATA"}
    found = detect(path)
    assert (found.revision, found.producer) == ("1.2.0_20260128", "msMonitor")
    assert any("version parts are 0.2.1, but SCHEMA_VERSION is 1.2.0" in n for n in found.notes)
    assert check(path).sound
    upgrade(path)
    assert check(path).sound
    for table, rows in before.items():
        old_columns = len(rows[0]) if rows else 0
        now = [row[:old_columns] for row in rows_of(path, f"SELECT * FROM {table}")]
        assert set(rows) <= set(now) if table.startswith("ENUM_") else rows == now, table
    query = "SELECT name, value FROM META_DATA WHERE name LIKE 'SCHEMA_VERSION_M%' ORDER BY name"
    major, minor, micro = str(catalogue.version_of(LATEST)).split(".")
    assert [value for _, value in rows_of(path, query)] == [major, micro, minor]
    assert detect(path).notes == ()


def test_duplicate_key_in_a_file_without_keys_is_a_problem(tmp_path: Path) -> None:
    path = make_msmonitor(tmp_path / "msmonitor_1_2_0.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO CANN_API SELECT * FROM CANN_API")
        db.commit()
    problems = [finding for finding in check(path).findings if finding.is_problem]
    assert [(p.kind, p.count) for p in problems] == [("duplicate", 1)]


def test_documentation_shows_an_upgrade_to_the_newest_revision() -> None:
    assert f" -> {LATEST}, " in (ROOT / "docs/databases.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["skyline-run-time", "skyline-memory", "cluster", "watch"])
def test_new_files_of_other_families_are_at_the_newest_revision(
    tmp_path: Path, family: str
) -> None:
    from unified_prof.migrate.upgrade import create

    path, newest = tmp_path / "a.sqlite", catalogue.REVISIONS[family][-1]
    assert create(path, family, "latest") == newest
    assert upgrade(path).after == newest
    assert check(path).sound


def test_unsupported_files_are_refused_and_kept(tmp_path: Path) -> None:
    older = tmp_path / "older.db"
    execute(older, "CREATE TABLE TARGET_INFO_SESSION_TIME (startTimeNs INTEGER, endTimeNs INTEGER)")
    other = tmp_path / "other.db"
    execute(other, "CREATE TABLE films (title TEXT)")
    with pytest.raises(SchemaVersionError, match=r"older\.db.*older than pre_20240328"):
        upgrade(older)
    with pytest.raises(StoreError, match=r"other\.db is not a report.*films"):
        upgrade(other)
    with pytest.raises(StoreError, match=r"gone\.db"):
        upgrade(tmp_path / "gone.db")
    assert file_names(tmp_path) == ["older.db", "other.db"]


def test_damage_found_during_the_upgrade_keeps_only_the_original(old_database: Path) -> None:
    content = bytearray(old_database.read_bytes())
    with opened(old_database) as db:
        (page,) = db.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'COMPUTE_TASK_INFO'"
        ).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    content[(page - 1) * size : page * size] = b"\xff" * size
    old_database.write_bytes(content)
    with pytest.raises(StoreError, match=f"{old_database.name}.*malformed"):
        upgrade(old_database)
    assert old_database.read_bytes() == content
    assert file_names(old_database.parent) == [old_database.name]


def test_failing_step_keeps_only_the_original(old_database: Path) -> None:
    execute(old_database, "CREATE INDEX ENUM_OVERLAP_ANALYSIS_TYPE ON META_DATA (name)")
    before = old_database.read_bytes()
    with pytest.raises(StoreError, match=f"{old_database.name} could not be upgraded from"):
        upgrade(old_database)
    assert old_database.read_bytes() == before
    assert file_names(old_database.parent) == [old_database.name]


def test_full_disk_keeps_only_the_original(old_database: Path) -> None:
    before = old_database.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (len(before) // 2, len(before)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(OutputError, match=f"cannot write .*{old_database.name}"):
                upgrade(old_database)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert old_database.read_bytes() == before
        assert file_names(old_database.parent) == [old_database.name]


def interrupted_write(old_database: Path, mode: str) -> Path:
    path = old_database.with_name(f"left_{mode}.db")
    with closing(sqlite3.connect(old_database, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {mode}")
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        rows = ((f"late text {number}" * 20,) for number in range(500))
        db.executemany("INSERT INTO STRING_IDS (value) VALUES (?)", rows)
        if mode == "WAL":
            db.execute("COMMIT")
        suffix = "-wal" if mode == "WAL" else "-journal"
        shutil.copy(old_database, path)
        shutil.copy(f"{old_database}{suffix}", f"{path}{suffix}")
    return path


@pytest.mark.parametrize(("mode", "texts"), [("WAL", 2500), ("DELETE", 2000)])
@pytest.mark.parametrize("in_place", [True, False])
def test_data_of_a_killed_writer_is_kept(
    old_database: Path, mode: str, texts: int, in_place: bool
) -> None:
    path = interrupted_write(old_database, mode)
    before = path.read_bytes()
    output = None if in_place else path.with_name("new.db")
    result = upgrade(path, output=output)
    count = "SELECT count(*) FROM STRING_IDS WHERE value <> 'N/A'"
    assert execute(result.output, count)[0] == (texts,)
    assert execute(result.output, "PRAGMA integrity_check")[0] == ("ok",)
    assert execute(result.output, "PRAGMA journal_mode")[0] == ("delete",)
    if in_place:
        assert result.backup is not None
        assert execute(result.backup, count)[0] == (texts,)
    else:
        assert path.read_bytes() == before


def test_unfinished_file_is_kept(old_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_prof.migrate.upgrade._LOCK_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(old_database, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="written by another process"):
            upgrade(old_database)
    assert file_names(old_database.parent) == [old_database.name]


def test_other_processes_may_read_during_the_upgrade(old_database: Path) -> None:
    with closing(sqlite3.connect(old_database, isolation_level=None)) as db:
        db.execute("BEGIN")
        assert db.execute("SELECT count(*) FROM STRING_IDS").fetchone() == (2000,)
        upgrade(old_database)
        assert db.execute("SELECT count(*) FROM COMPUTE_TASK_INFO").fetchone() == (500,)


RENAMED = {
    ("COMPUTE_TASK_INFO", "blockDim"): "blockNum",
    ("COMPUTE_TASK_INFO", "mixBlockDim"): "mixBlockNum",
}
CONVERTED = {
    ("TASK", "connectionId"): {4294967295: -1},
    ("COMMUNICATION_TASK_INFO", "notifyId"): {9223372036854775807: -1},
}
SAMPLES = {
    "910A_2024-09_level1.db": "1.0.0_20240711",
    "level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_0.db": "1.0.0_20241112",
    "level1/rank1_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_1.db": "1.0.0_20241112",
}


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("target", ["documented", "latest"])
@pytest.mark.parametrize("sample", SAMPLES)
def test_real_recordings_keep_rows(shared: Path, tmp_path: Path, sample: str, target: str) -> None:
    source = shared / "samples" / "ascend" / sample
    path = tmp_path / source.name
    upgrade(source, target, output=path)
    tables = tables_of(path)
    for table, columns in tables_of(source).items():
        renames = RENAMED if target == "latest" else {}
        kept = [renames.get((table, column), column) for column in columns]
        assert set(kept) <= set(tables[table]), table
        old_rows = rows_of(source, f"SELECT {', '.join(columns)} FROM {table}")
        if table == "STRING_IDS":
            assert any(text == "N/A" for _, text in old_rows), "it must not need to be added"
        new = rows_of(path, f"SELECT {', '.join(kept)} FROM {table}")
        conversions = [CONVERTED.get((table, column), {}) for column in columns]
        expected = [
            tuple(c.get(value, value) for value, c in zip(row, conversions, strict=True))
            for row in old_rows
        ]
        if table == "HOST_INFO":
            expected = [(str(uid), name) for uid, name in expected]
        if table == "META_DATA":
            expected = [row for row in expected if not row[0].startswith("SCHEMA_VERSION")]
        if table == "META_DATA" or table.startswith("ENUM_"):
            assert set(expected) <= set(new), table
        else:
            assert new == expected, table
    assert check(path).sound
    found = detect(path)
    assert found.migrated_from == SAMPLES[sample]
    devices = "SELECT count(*) FROM COMMUNICATION_OP WHERE deviceId = -1"
    assert rows_of(path, devices) == [(0,)]


def test_prehistoric_and_edited_recordings_are_refused(shared: Path, tmp_path: Path) -> None:
    for name in ("msprof_0_edited_by_viewer.db", "report_0_prehistory.db"):
        path = tmp_path / name
        shutil.copyfile(shared / "samples" / "ascend" / name, path)
        with pytest.raises(SchemaVersionError, match=name):
            upgrade(path)
        assert not check(path).sound
    assert len(os.listdir(tmp_path)) == 2  # noqa: PTH208
