"""`uprof db` commands."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.migrate.databases import LATEST, make
from tests.processes import python
from tests.sql import execute
from unified_prof.cli.app import main
from unified_prof.sqlite.opening import detect


class Result:
    """Exit code and output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Uprof:
    """Runs the command line inside the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in ("db", *arguments)])
        out, err = self._capsys.readouterr()
        code = caught.value.code
        assert isinstance(code, int)
        return Result(code, out, err)


@pytest.fixture
def uprof(capsys: pytest.CaptureFixture[str]) -> Uprof:
    return Uprof(capsys)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return make(tmp_path / "old.db", "1.0.0_20241112", {"NPU_INFO": [(0, "Ascend910B")]})


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "films.db"
    execute(path, "CREATE TABLE films (title TEXT)")
    return path


def test_current_continues_after_a_bad_file(uprof: Uprof, old: Path, other: Path) -> None:
    result = uprof("current", "--json", other, old)
    assert result.code == 7
    bad, good = result.json
    assert "films.db is not a report" in bad["error"]
    assert bad["exit_code"] == 7
    assert "films.db" in result.err
    assert good["file"] == str(old)
    assert (good["family"], good["revision"]) == ("msprof", "1.0.0_20241112")
    assert (good["producer"], good["complete"]) == ("msprof", True)
    assert good["recognised_by"] == ["ENUM_MODULE has 74 AMP"]


def test_upgrade_replaces_the_file_and_keeps_the_original(uprof: Uprof, old: Path) -> None:
    result = uprof("upgrade", old, "--to", "documented")
    assert result.code == 0
    assert "1.0.0_20241112 -> 1.2.0_20251226, original kept as old.db.bak" in result.out
    assert detect(old).revision == "1.2.0_20251226"
    again = uprof("upgrade", old, "--to", "documented", "--json")
    assert (again.code, again.json[0]["changed"]) == (0, False)
    assert uprof("upgrade", old, "--to", "1.0.0_20240516").code == 8


def test_upgrade_continues_on_failure(uprof: Uprof, old: Path, other: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    result = uprof("upgrade", other, old, "-o", folder, "--json")
    assert result.code == 7
    assert "films.db" in result.json[0]["error"]
    assert result.json[1]["output"] == str(folder / "old.db")
    assert detect(folder / "old.db").revision == LATEST
    assert detect(old).revision == "1.0.0_20241112"
    assert uprof("upgrade", old, "-o", folder).code == 9
    assert uprof("upgrade", old, "-o", folder, "--force").code == 0


def test_upgrade_of_files_requires_a_directory(tmp_path: Path, old: Path, uprof: Uprof) -> None:
    result = uprof("upgrade", old, old, "-o", tmp_path / "one.db")
    assert result.code == 2
    assert "one.db is not a directory" in result.err


@pytest.mark.parametrize(
    ("family", "schema", "revision"),
    [
        ("msprof", "documented", "1.2.0_20251226"),
        ("msprof", "pre_20240328", "pre_20240328"),
        ("skyline-run-time", "latest", "1"),
        ("skyline-memory", "1", "1"),
    ],
)
def test_create_creates_every_table_of_a_revision(
    uprof: Uprof, tmp_path: Path, family: str, schema: str, revision: str
) -> None:
    path = tmp_path / "new.db"
    result = uprof("create", path, "--family", family, "--schema", schema, "--json")
    assert result.code == 0
    assert result.json == {"file": str(path), "family": family, "revision": revision}
    found = detect(path)
    assert (found.family, found.revision) == (family, revision)
    assert uprof("create", path, "--family", family, "--schema", schema).code == 9
    assert uprof("create", path, "--family", family, "--schema", schema, "--force").code == 0


@pytest.mark.parametrize(
    "arguments", [("--schema", "9.9.9"), ("--family", "nsight"), ("--family", "msprof", "--nope")]
)
def test_create_refuses_unknown_revisions(
    uprof: Uprof, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert uprof("create", tmp_path / "new.db", *arguments).code == 2
    assert not (tmp_path / "new.db").exists()


@pytest.mark.fresh_interpreter
def test_detection_imports_neither_sqlalchemy_nor_alembic(old: Path) -> None:
    program = (
        "import sys; from unified_prof.cli.app import main\n"
        f"try: main(['db', 'current', {str(old)!r}])\n"
        "except SystemExit: print([m for m in ('sqlalchemy', 'alembic') if m in sys.modules])"
    )
    run = python("-c", program, check=True)
    assert run.stdout.rstrip().endswith("[]")


UNUSUAL_NAMES = [b"caf\xe9.db", b"\x1b]0;title\x07.db", b"a\nuprof: error: forged.db", b"[red]x.db"]


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("name", UNUSUAL_NAMES)
@pytest.mark.parametrize("command", ["current", "check", "upgrade"])
def test_any_file_name_works_and_prints_as_one_safe_line(
    uprof: Uprof, tmp_path: Path, command: str, name: bytes
) -> None:
    path = make(tmp_path / "old.db", "1.0.0_20241112")
    path = path.rename(tmp_path / os.fsdecode(name))
    result = uprof(command, path)
    assert result.code == 0, result.err
    shown = {UNUSUAL_NAMES[0]: r"caf\xe9.db", UNUSUAL_NAMES[1]: r"\x1b]0;title\x07.db"}.get(name)
    assert (shown or name.decode().replace("\n", r"\x0a")) in result.out
    assert all(line.isprintable() for line in (result.out + result.err).splitlines())
    assert not any(line.startswith("uprof: error") for line in result.out.splitlines())
    as_json = uprof(command, path, "--json")
    assert as_json.json[0]["file"] == str(path)


@pytest.mark.parametrize("name", UNUSUAL_NAMES)
def test_output_with_any_name_is_written(uprof: Uprof, tmp_path: Path, name: bytes) -> None:
    path = make(tmp_path / "old.db", "1.0.0_20241112")
    target = tmp_path / os.fsdecode(name)
    assert uprof("upgrade", path, "-o", target).code == 0
    assert uprof("create", target, "--force").code == 0
    assert target.is_file()


def test_names_in_a_file_cannot_control_the_terminal(uprof: Uprof, tmp_path: Path) -> None:
    escape = "\x1b]0;owned\x07\x9b31m\n"
    path = make(
        tmp_path / "new.db",
        LATEST,
        {"NPU_INFO": [(0, "x")]},
        f'ALTER TABLE NPU_INFO ADD COLUMN "{escape}" TEXT',
        "CREATE TABLE UPROF_ANOMALIES (name TEXT PRIMARY KEY, count INTEGER, detail TEXT)",
        f"INSERT INTO UPROF_ANOMALIES VALUES ('odd', 1, '{escape}')",
        f"UPDATE META_DATA SET value = '{escape}' WHERE name = 'SCHEMA_VERSION_MINOR'",
    )
    for command in ("current", "check"):
        result = uprof(command, path)
        assert all(line.isprintable() for line in (result.out + result.err).splitlines())
        assert r"\x1b]0;owned\x07\x9b31m\x0a" in result.out
    strange = tmp_path / "strange.db"
    execute(strange, f'CREATE TABLE "{escape}" (x)')
    result = uprof("current", strange)
    assert result.code == 7
    assert all(line.isprintable() for line in result.err.splitlines())


def test_view_with_the_name_of_a_table_is_noted(uprof: Uprof, tmp_path: Path) -> None:
    path = make(tmp_path / "new.db", "latest", {}, "CREATE VIEW TASK AS SELECT 1 AS startNs")
    assert "TASK is not a table and is ignored" in uprof("current", path).out
    assert uprof("current", path, "--json").json[0]["not_tables"] == ["TASK"]
    assert uprof("check", path).code == 1
    assert uprof("upgrade", path).code == 7


def test_pipe_among_databases_exits_with_code_7(uprof: Uprof, tmp_path: Path, old: Path) -> None:
    os.mkfifo(tmp_path / "old.db-wal")
    for command in ("current", "check", "upgrade"):
        result = uprof(command, old)
        assert result.code == 7
        assert "old.db-wal in its directory is not a regular file" in result.err
