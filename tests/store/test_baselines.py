"""The baseline store: the same specification for SQLite and, where its server is, PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unified_prof.errors import SchemaVersionError, StoreError, UprofError, UsageError
from unified_prof.migrate.baselines import open_store
from unified_prof.store.baselines import BaselineStore, NewBaseline

PROCESSES, EACH = 4, 5


def baseline(name: str = "main", document: bytes = b"\x00run") -> NewBaseline:
    return NewBaseline(name, "run.sqlite", document, "cpu", "abc123", 10)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server of our own, listening on a socket in a folder of its own."""
    tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not tools:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    # The server refuses to run as root, and a socket's path must be short.
    folder = Path("/tmp") / f"uprof-pg-{os.getpid()}"
    folder.mkdir(mode=0o700)
    as_user: list[str] = []
    user = pwd.getpwuid(os.getuid()).pw_name
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        as_user, user = ["runuser", "-u", "postgres", "--"], "postgres"

    def tool(name: str, *arguments: str) -> None:
        command = [*as_user, str(tools[-1] / name), "-D", str(folder / "data"), *arguments]
        subprocess.run(command, check=True, cwd="/", timeout=60, stdout=subprocess.DEVNULL)

    try:
        tool("initdb", "-A", "trust", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        tool("pg_ctl", "-w", "-o", options, "-l", str(folder / "log"), "start")
        folder.chmod(0o755)
        try:
            yield f"postgresql+psycopg://{user}@/postgres?host={folder}"
        finally:
            tool("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "below" / "baselines.sqlite")
        return
    url: str = request.getfixturevalue("postgres")
    yield url
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def store(place: str) -> Iterator[BaselineStore]:
    opened = open_store(place, create=True)
    yield opened
    opened.close()


def test_what_is_saved_can_be_loaded(store: BaselineStore) -> None:
    saved = store.save(baseline())
    entry, document = store.document("main")
    assert document == b"\x00run"
    assert entry == saved
    assert (entry.version, entry.device, entry.commit, entry.samples) == (1, "cpu", "abc123", 10)
    assert entry.saved_at.utcoffset() is not None


def test_saving_again_adds_a_version_and_keeps_the_old_one(store: BaselineStore) -> None:
    store.save(baseline(document=b"1"))
    store.save(baseline("other"))
    assert store.save(baseline(document=b"2")).version == 2
    assert store.document("main")[1] == b"2"
    assert store.document("main", 1)[1] == b"1"
    listed = [(entry.name, entry.version) for entry in store.entries()]
    assert listed == [("main", 1), ("other", 1), ("main", 2)]
    assert [entry.version for entry in store.entries("main")] == [1, 2]


@pytest.mark.parametrize(("name", "version"), [("nobody", None), ("main", 2), ("main", 0)])
def test_an_unknown_baseline_is_wrong_use_and_says_what_there_is(
    store: BaselineStore, name: str, version: int | None
) -> None:
    store.save(baseline())
    with pytest.raises(UsageError) as caught:
        store.document(name, version)
    assert "main" in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\nb"])
def test_a_name_that_nobody_could_type_is_refused(store: BaselineStore, name: str) -> None:
    with pytest.raises(UsageError):
        store.save(baseline(name))


@pytest.mark.slow
def test_concurrent_writers_lose_nothing_not_even_when_the_store_is_new(place: str) -> None:
    program = f"""
import sys
from unified_prof.migrate.baselines import open_store
from tests.store.test_baselines import baseline
for _ in range({EACH}):
    store = open_store(sys.argv[1], create=True)
    store.save(baseline())
    store.close()
"""
    command = [sys.executable, "-c", program, place]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(PROCESSES)]
    for writer in writers:
        assert writer.communicate(timeout=100)[1] == b""
    store = open_store(place, create=False)
    versions = [entry.version for entry in store.entries("main")]
    store.close()
    assert versions == list(range(1, PROCESSES * EACH + 1))


def test_a_store_that_is_not_there_is_made_only_to_save(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no baseline store"):
        open_store(str(tmp_path / "none.sqlite"), create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_store_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "baselines.sqlite"
    with_entry = open_store(str(path), create=True)
    with_entry.save(baseline())
    with_entry.close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        store = open_store(str(path), create=False)
        assert store.document("main")[1] == b"\x00run"
        store.close()
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize(
    ("content", "said"), [(b"not a database, but long enough " * 40, "not a database")]
)
def test_what_is_no_store_is_refused_and_left_as_it_was(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said):
        open_store(str(path), create=True)
    assert path.read_bytes() == content


def test_somebody_elses_database_gets_no_tables_of_ours(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="something else"):
        open_store(str(path), create=True)
    assert path.read_bytes() == before


def test_a_store_of_a_newer_build_is_refused_by_its_version(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "baselines.sqlite"
    open_store(str(path), create=True).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE uprof_baselines_version SET version_num = '9999'")
    db.close()
    with pytest.raises(SchemaVersionError, match="9999"):
        open_store(str(path), create=False)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2", "cannot be used"),
        ("nosuchdatabase://x", "cannot be used"),
        ("postgresql+nosuchdriver://x", "cannot be used"),
        ("://", "cannot be understood"),
    ],
)
def test_what_cannot_be_reached_is_told_in_one_line(url: str, said: str) -> None:
    with pytest.raises(UprofError, match=said) as caught:
        open_store(url, create=False)
    assert "\n" not in str(caught.value)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StoreError) as caught:
        open_store("postgresql+psycopg://me:s3cret@127.0.0.1:1/x?connect_timeout=2", create=False)
    assert "s3cret" not in str(caught.value)


def test_the_migrated_schema_is_that_of_the_models(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    from unified_prof.models.baseline import BaselineBase

    path = tmp_path / "baselines.sqlite"
    open_store(str(path), create=True).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {"version_table": "uprof_baselines_version"}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, BaselineBase.metadata) == []
    engine.dispose()
