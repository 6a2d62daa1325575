"""The baseline store: the same specification for SQLite and, where its server is, PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from unified_prof.baselines.store import BaselineStore, NewBaseline, open_store
from unified_prof.errors import SchemaVersionError, StoreError, UprofError, UsageError

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
from unified_prof.baselines.store import open_store
from tests.baselines.test_store import baseline
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


@pytest.mark.slow
def test_concurrent_writers_are_told_different_versions_that_stay_their_own(place: str) -> None:
    open_store(place, create=True).close()
    program = f"""
import sys
from unified_prof.baselines.store import open_store
from tests.baselines.test_store import baseline
store = open_store(sys.argv[1], create=False)
sys.stdin.readline()
for number in range({EACH}):
    document = sys.argv[2].encode() + bytes([number])
    print(store.save(baseline(document=document)).version, document.hex(), flush=True)
store.close()
"""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, place, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    told: dict[int, str] = {}
    time.sleep(1)  # until all wait at the start
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        for line in writer.communicate(timeout=100)[0].splitlines():
            version, document = line.split()
            assert int(version) not in told
            told[int(version)] = document
    assert sorted(told) == list(range(1, PROCESSES * EACH + 1))
    store = open_store(place, create=False)
    assert {number: store.document("main", number)[1].hex() for number in told} == told
    store.close()


def test_a_writer_that_takes_no_lock_cannot_take_a_number_twice(place: str) -> None:
    """An older uprof, or somebody's SQL; the next save takes the number after it."""
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import IntegrityError

    store = open_store(place, create=True)
    store.save(baseline())
    engine = create_engine(place if "://" in place else f"sqlite:///{place}")
    insert = text(
        "INSERT INTO uprof_baselines (name, version, saved_at, label, uprof_version, samples,"
        " document) VALUES ('main', :version, '2026-01-01', 'x', '0', 1, :document)"
    )
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert, {"version": 1, "document": b"theirs"})
    with engine.begin() as connection:
        connection.execute(insert, {"version": 2, "document": b"theirs"})
    engine.dispose()
    assert store.save(baseline()).version == 3
    assert store.document("main", 2)[1] == b"theirs"
    store.close()


def test_a_version_that_is_taken_meanwhile_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a database that has no lock of ours: the table refuses, the next number fits."""
    from sqlalchemy import func

    store = open_store(str(tmp_path / "baselines.sqlite"), create=True)
    store.save(baseline())
    tries = 0

    def outdated(column: object) -> object:
        nonlocal tries
        tries += 1
        return func.max(column) if tries > 2 else func.max(column) - 1

    monkeypatch.setattr("unified_prof.baselines.store.func", SimpleNamespace(max=outdated))
    assert store.save(baseline()).version == 2
    assert tries == 3
    store.close()


def test_a_removed_version_is_not_given_again_while_newer_ones_exist(place: str) -> None:
    from sqlalchemy import create_engine, text

    store = open_store(place, create=True)
    for document in (b"1", b"2", b"3"):
        store.save(baseline(document=document))
    engine = create_engine(place if "://" in place else f"sqlite:///{place}")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM uprof_baselines WHERE version = 1"))
    engine.dispose()
    assert store.document("main", 2)[1] == b"2"
    assert [entry.version for entry in store.entries("main")] == [2, 3]
    with pytest.raises(UsageError, match="no version 1"):
        store.document("main", 1)
    assert store.save(baseline()).version == 4
    store.close()


def test_a_store_of_the_first_version_keeps_the_numbers_that_people_know(place: str) -> None:
    from alembic import command
    from sqlalchemy import text

    from unified_prof.baselines import store as migrate
    from unified_prof.baselines.store import WRITE, engine_for
    from unified_prof.migrate.runner import config_of

    if "://" not in place:
        Path(place).parent.mkdir()
    engine, _ = engine_for(place)
    config = config_of(migrate.FAMILY)
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        config.attributes["connection"] = connection
        config.attributes["configure"] = {"version_table": "uprof_baselines_version"}
        command.upgrade(config, "0001")
        for name, document in (("main", b"1"), ("other", b"o"), ("main", b"2")):
            connection.execute(
                text(
                    "INSERT INTO uprof_baselines (name, saved_at, label, uprof_version, samples,"
                    " document) VALUES (:name, '2026-01-01 00:00:00', 'x', '0.1', 3, :document)"
                ),
                {"name": name, "document": document},
            )
    engine.dispose()
    store = open_store(place, create=False)
    assert [(entry.name, entry.version) for entry in store.entries()] == [
        ("main", 1),
        ("other", 1),
        ("main", 2),
    ]
    assert store.document("main", 1)[1] == b"1"
    assert store.save(baseline()).version == 3
    store.close()


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
    with pytest.raises(StoreError, match="another database"):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2", "cannot be used"),
        ("nosuchdatabase://x", "cannot be used"),
        ("postgresql+nosuchdriver://x", "cannot be used"),
        ("://", "is not valid"),
    ],
)
def test_what_cannot_be_reached_is_told_in_one_line(url: str, said: str) -> None:
    with pytest.raises(UprofError, match=said) as caught:
        open_store(url, create=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://me:s3cret@127.0.0.1:1/x?connect_timeout=2",
        "postgresql+psycopg://127.0.0.1:1/x?connect_timeout=2&user=me&password=s3cret",
        "postgresql+psycopg:///x?host=127.0.0.1&port=1&password=s3cret&connect_timeout=2",
        "postgresql+psycopg://127.0.0.1:1/x?sslpassword=s3cret&connect_timeout=2",
        "postgresql+psycopg://127.0.0.1:none/x?password=s3cret",
        "nosuchdatabase://me:s3cret@x?password=s3cret",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(UprofError) as caught:
        open_store(url, create=False)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_the_migrated_schema_is_that_of_the_models(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    from unified_prof.baselines.store import BaselineBase

    path = tmp_path / "baselines.sqlite"
    open_store(str(path), create=True).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {"version_table": "uprof_baselines_version"}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, BaselineBase.metadata) == []
    engine.dispose()
