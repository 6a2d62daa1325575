"""The baseline store: the same specification for SQLite and, if installed, PostgreSQL."""

import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from alembic import command as alembic_command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, func, text
from sqlalchemy.exc import IntegrityError

from tests.sql import execute
from unified_prof.baselines import store as baseline_store
from unified_prof.baselines.store import (
    WRITE,
    BaselineBase,
    BaselineStore,
    NewBaseline,
    engine_for,
    open_store,
)
from unified_prof.errors import SchemaVersionError, StoreError, UprofError, UsageError
from unified_prof.migrate.runner import config_of

PROCESSES, EACH = 8, 4


def baseline(name: str = "main", document: bytes = b"\x00run") -> NewBaseline:
    return NewBaseline(name, "run.sqlite", document, "cpu", "abc123", 10)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server that listens on a socket in a temporary directory."""
    tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not tools:
        pytest.skip("PostgreSQL's server is not installed (Debian: apt-get install postgresql)")
    # The server refuses to run as root, and the path of a socket must be short.
    folder = Path("/tmp") / f"uprof-pg-{os.getpid()}"
    folder.mkdir(mode=0o700)
    as_user: list[str] = []
    user = pwd.getpwuid(os.getuid()).pw_name
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        as_user, user = ["runuser", "-u", "postgres", "--"], "postgres"

    def tool(name: str, *arguments: str) -> None:
        command = [*as_user, str(tools[-1] / name), "-D", str(folder / "data"), *arguments]
        subprocess.run(command, check=True, cwd="/", timeout=400, stdout=subprocess.DEVNULL)

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


def test_saved_baseline_is_loaded(store: BaselineStore) -> None:
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
def test_unknown_baseline_is_refused(store: BaselineStore, name: str, version: int | None) -> None:
    store.save(baseline())
    with pytest.raises(UsageError) as caught:
        store.document(name, version)
    assert "main" in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\nb"])
def test_unusable_name_is_refused(store: BaselineStore, name: str) -> None:
    with pytest.raises(UsageError):
        store.save(baseline(name))


@pytest.mark.slow
def test_concurrent_writers_to_a_new_store_lose_nothing(place: str) -> None:
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
        assert writer.communicate(timeout=400)[1] == b""
    store = open_store(place, create=False)
    versions = [entry.version for entry in store.entries("main")]
    store.close()
    assert versions == list(range(1, PROCESSES * EACH + 1))


@pytest.mark.slow
def test_concurrent_writers_get_different_versions(place: str) -> None:
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
    documents: dict[int, str] = {}
    time.sleep(1)  # until all writers wait
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        for line in writer.communicate(timeout=400)[0].splitlines():
            version, document = line.split()
            assert int(version) not in documents
            documents[int(version)] = document
    assert sorted(documents) == list(range(1, PROCESSES * EACH + 1))
    store = open_store(place, create=False)
    assert {number: store.document("main", number)[1].hex() for number in documents} == documents
    store.close()


def test_version_number_is_unique_even_for_writers_without_a_lock(place: str) -> None:
    """An older uprof or a user's SQL may write; the next save gets the next number."""

    store = open_store(place, create=True)
    store.save(baseline())
    engine = create_engine(place if "://" in place else f"sqlite:///{place}")
    insert = text(
        "INSERT INTO uprof_baselines (name, version, saved_at, label, uprof_version, samples,"
        " document) VALUES ('main', :version, '2026-01-01', 'x', '0', 1, :document)"
    )
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert, {"version": 1, "document": b"other"})
    with engine.begin() as connection:
        connection.execute(insert, {"version": 2, "document": b"other"})
    engine.dispose()
    assert store.save(baseline()).version == 3
    assert store.document("main", 2)[1] == b"other"
    store.close()


def test_version_taken_by_another_writer_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a database without locks: the table refuses the number, and the next one is used."""
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


def test_removed_version_is_not_reused_while_newer_ones_exist(place: str) -> None:
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


def make_first_revision(place: str, rows: int = 0) -> None:
    """Create a store as the first revision wrote it: main@1, other@1, main@2, and bulk@1 to ROWS.

    Their upgrade counts the earlier rows for each row: 2,000 rows take about half a second.
    """
    if "://" not in place:
        Path(place).parent.mkdir()
    engine, _ = engine_for(place)
    config = config_of(baseline_store.FAMILY)
    with engine.connect().execution_options(**{WRITE: True}) as connection, connection.begin():
        config.attributes["connection"] = connection
        config.attributes["configure"] = {"version_table": "uprof_baselines_version"}
        alembic_command.upgrade(config, "0001")
        for name, document in (("main", b"1"), ("other", b"o"), ("main", b"2")):
            connection.execute(
                text(
                    "INSERT INTO uprof_baselines (name, saved_at, label, uprof_version, samples,"
                    " document) VALUES (:name, '2026-01-01 00:00:00', 'x', '0.1', 3, :document)"
                ),
                {"name": name, "document": document},
            )
        connection.execute(
            text(
                "INSERT INTO uprof_baselines (name, saved_at, label, uprof_version, samples,"
                " document) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                " WHERE i < :rows) SELECT 'bulk', '2026-01-01 00:00:00', 'x', '0.1', 3, document"
                " FROM n, uprof_baselines WHERE name = 'other' AND :rows > 0"
            ),
            {"rows": rows},
        )
    engine.dispose()


def test_store_of_the_first_schema_keeps_its_version_numbers(place: str) -> None:
    make_first_revision(place)
    store = open_store(place, create=False)
    versions = [(entry.name, entry.version) for entry in store.entries()]
    assert versions == [("main", 1), ("other", 1), ("main", 2)]
    assert store.document("main", 1)[1] == b"1"
    assert store.save(baseline()).version == 3
    store.close()


WRITER = """
import sys
from tests.baselines.test_store import baseline
from unified_prof.baselines.store import open_store
from unified_prof.errors import UprofError
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    document = f"{sys.argv[2]}-{number}"
    try:
        store = open_store(sys.argv[1], create=False)
        version = store.save(baseline(document=document.encode())).version
        print("saved", document, version, flush=True)
        store.close()
    except UprofError as error:
        print("failed", document, error.exit_code, error, flush=True)
"""


@contextmanager
def writers(place: str, count: int, each: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield processes that save baselines, all started at the same time."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, place, str(number), str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        for writer in started:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        yield started
    finally:
        for writer in started:
            writer.kill()
            writer.communicate()


def results(started: list[subprocess.Popen[str]]) -> tuple[dict[str, int], list[str]]:
    """Return document -> version as saved, and the lines about failures."""
    lines: list[str] = []
    for writer in started:
        out, error = writer.communicate(timeout=400)
        assert "Traceback" not in error, error
        lines += out.splitlines()
    saved = [line.split() for line in lines if line.startswith("saved")]
    return {one[1]: int(one[2]) for one in saved}, [x for x in lines if x.startswith("failed")]


def stored(place: str) -> dict[str, int]:
    """Return document -> version; each document is stored once, each version is used once."""
    store = open_store(place, create=False)
    versions = [entry.version for entry in store.entries("main")]
    found = {store.document("main", version)[1].decode(): version for version in versions}
    store.close()
    assert versions == list(range(1, len(versions) + 1))
    assert len(found) == len(versions)
    return found


@pytest.mark.slow
def test_concurrent_writers_upgrade_a_store_once_and_keep_its_rows(place: str) -> None:
    make_first_revision(place)
    with writers(place, PROCESSES, EACH) as started:
        saved, failed = results(started)
    assert failed == []
    assert len(saved) == PROCESSES * EACH
    assert stored(place) == {"1": 1, "2": 2, **saved}


def break_upgrade(place: str, started: list[subprocess.Popen[str]]) -> bool:
    """Cut off the writer that upgrades the store, if one does: end its connection, or kill it."""
    if "://" not in place:
        for writer in started:
            for descriptor in Path(f"/proc/{writer.pid}/fd").glob("*"):
                with suppress(OSError):
                    if str(descriptor.readlink()) == f"{place}-journal":
                        writer.kill()
                        writer.wait()
                        return True
        return False
    import psycopg

    query = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE state = 'active' AND query LIKE 'UPDATE uprof_baselines SET version%'"
    )
    with psycopg.connect(place.replace("+psycopg", ""), autocommit=True) as server:
        row = server.execute(query).fetchone()
    return row is not None and row[0] > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_broken_upgrades_keep_all_rows_and_the_next_writer_upgrades(place: str) -> None:
    make_first_revision(place, rows=2000)
    broken = 0
    with writers(place, PROCESSES, EACH) as started:
        while broken < 3 and any(writer.poll() is None for writer in started):
            broken += break_upgrade(place, started)
            time.sleep(0.05)
        assert broken == 3
        saved, failed = results(started)
    if "://" in place:
        assert len(failed) == 3
        assert {line.split()[2] for line in failed} == {"7"}, "StoreError"
        assert len(saved) == PROCESSES * EACH - 3
    else:
        assert failed == []
        assert len(saved) == (PROCESSES - 3) * EACH
    assert stored(place) == {"1": 1, "2": 2, **saved}
    store = open_store(place, create=False)
    assert [entry.version for entry in store.entries("bulk")] == list(range(1, 2001))
    store.close()


@pytest.mark.slow
def test_killed_writer_loses_only_its_own_unconfirmed_save(place: str) -> None:
    open_store(place, create=True).close()
    with writers(place, PROCESSES, EACH) as started:
        for writer in started[:3]:
            assert writer.stdout is not None
            first = writer.stdout.readline().split()
            writer.kill()
            assert stored(place)[first[1]] == int(first[2])
        saved, failed = results(started[3:])
    assert failed == []
    assert len(saved) == (PROCESSES - 3) * EACH
    assert saved.items() <= stored(place).items()


@pytest.mark.slow
def test_lost_connections_are_errors_that_neither_lose_nor_double_a_version(postgres: str) -> None:
    import psycopg

    with psycopg.connect(postgres.replace("+psycopg", ""), autocommit=True) as server:
        server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        open_store(postgres, create=True).close()
        ended = 0
        with writers(postgres, PROCESSES, 25) as started:
            while any(writer.poll() is None for writer in started):
                query = (
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND usename IS NOT NULL AND random() < 0.3"
                )
                row = server.execute(query).fetchone()
                ended += 0 if row is None else int(row[0])
                time.sleep(0.1)
            saved, failed = results(started)
        assert ended > 10
        assert failed
        assert {line.split()[2] for line in failed} == {"7"}, "StoreError"
        assert all("cannot be used" in line for line in failed)
        assert len(saved) + len(failed) == PROCESSES * 25
        found = stored(postgres)
        assert saved.items() <= found.items()
        server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def test_missing_store_is_created_only_to_save(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no baseline store"):
        open_store(str(tmp_path / "none.sqlite"), create=False)
    assert list(tmp_path.iterdir()) == []


def test_read_only_store_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "baselines.sqlite"
    writable = open_store(str(path), create=True)
    writable.save(baseline())
    writable.close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        store = open_store(str(path), create=False)
        assert store.document("main")[1] == b"\x00run"
        store.close()
    finally:
        tmp_path.chmod(0o755)


def test_file_that_is_no_database_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    content = b"not a database, but long enough " * 40
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a database"):
        open_store(str(path), create=True)
    assert path.read_bytes() == content


def test_database_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    execute(path, "CREATE TABLE other (x)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another database"):
        open_store(str(path), create=True)
    assert path.read_bytes() == before


def test_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baselines.sqlite"
    open_store(str(path), create=True).close()
    execute(path, "UPDATE uprof_baselines_version SET version_num = '9999'")
    with pytest.raises(SchemaVersionError, match="9999"):
        open_store(str(path), create=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2", "cannot be used"),
        ("nosuchdatabase://x", "cannot be used"),
        ("postgresql+nosuchdriver://x", "cannot be used"),
        ("://", "is not valid"),
    ],
)
def test_unreachable_store_is_reported_on_one_line(url: str, message: str) -> None:
    with pytest.raises(UprofError, match=message) as caught:
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
def test_password_in_a_url_is_never_shown(url: str) -> None:
    with pytest.raises(UprofError) as caught:
        open_store(url, create=False)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_migrated_schema_equals_that_of_the_models(tmp_path: Path) -> None:
    path = tmp_path / "baselines.sqlite"
    open_store(str(path), create=True).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {"version_table": "uprof_baselines_version"}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, BaselineBase.metadata) == []
    engine.dispose()
