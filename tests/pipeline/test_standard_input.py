"""Recordings from standard input."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sqlite3
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.test_import import uprof
from tests.pipeline.test_sources import MAKERS
from unified_prof.errors import OutputError, RawFormatError, UprofError, UsageError
from unified_prof.pipeline import temporary_inputs
from unified_prof.pipeline.temporary_inputs import TemporaryInputs

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
FILES = ("kineto", "nsys", "memory_snapshot", "rocm")
"""Kinds that are one file."""


@pytest.fixture(autouse=True)
def _tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def kept(content: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    give(monkeypatch, content)
    with TemporaryInputs() as inputs:
        path = inputs.read_standard_input()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        return path.read_bytes()


@pytest.mark.quick(cases=6)
@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("kind", FILES)
def test_the_kind_is_determined_by_the_content(
    kind: str,
    packer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    give(monkeypatch, PACKERS[packer](recording.read_bytes()))
    assert uprof("import", "-", "--json") == 0
    told = capsys.readouterr()
    (record,) = json.loads(told.out)
    assert record["kind"] == kind
    assert "standard input -> stdin.db" in told.err
    with closing(sqlite3.connect("stdin.db")) as db:
        facts = dict(db.execute("SELECT name, value FROM UPROF_RUN"))
    assert "stdin" in facts.values()
    assert not [name for name in map(str, facts.values()) if "/tmp/" in name]
    assert list((tmp_path / "tmp").iterdir()) == [], "it is taken away again"


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("jobs", [1, 2])
def test_it_goes_in_beside_files_and_is_named_like_one(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = MAKERS["kineto"](tmp_path / "in")
    give(monkeypatch, gzip.compress(trace.read_bytes()))
    assert uprof("import", trace, "-", "-", "-o", "out", "--jobs", jobs) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["run.db", "stdin.db"]
    assert "2 recordings: 2 converted" in capsys.readouterr().err
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "standard input is empty"),
        (b"hello", "standard input is not a format that uprof can convert"),
        (b"\x1f\x8b\x08\0nothing of the kind", "standard input: the gzip data is damaged"),
        (gzip.compress(b""), "standard input is an empty file, compressed"),
        (b"SQLite format 3\0" + bytes(90), "standard input"),
    ],
)
def test_unreadable_input_does_not_stop_the_others(
    content: bytes,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = MAKERS["kineto"](tmp_path / "in")
    give(monkeypatch, content)
    assert uprof("import", "-", trace, "-o", "out") in (6, 7)
    err = capsys.readouterr().err
    assert f"uprof: error: {told}" in err
    assert str(tmp_path / "tmp") not in err, "temporary paths are not shown"
    assert [path.name for path in Path("out").iterdir()] == ["run.db"]


def test_an_archive_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for kind in ("kineto", "nsys"):
            tar.add(MAKERS[kind](tmp_path / kind), f"{kind}/run{kind}")
        tar.add(__file__, "notes.txt")
    give(monkeypatch, archive.getvalue())
    assert uprof("import", "-", "-o", "out") == 0
    assert len(list(Path("out").iterdir())) == 2
    assert str(tmp_path / "tmp") not in capsys.readouterr().err
    assert list((tmp_path / "tmp").iterdir()) == []


def refusal(work: Callable[[], object], kind: type[UprofError]) -> str:
    with pytest.raises(kind) as raised:
        work()
    return str(raised.value)


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(temporary_inputs, "MAX_BYTES", 3 << 20)
    error = refusal(lambda: kept(bytes(4 << 20), monkeypatch), RawFormatError)
    assert "standard input is too long" in error
    assert list((tmp_path / "tmp").iterdir()) == []
    assert kept(bytes(3 << 20), monkeypatch) == bytes(3 << 20)


def test_a_closed_one_and_a_terminal_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep() -> None:
        with TemporaryInputs() as inputs:
            inputs.read_standard_input()

    for closed in (None, io.TextIOWrapper(io.BytesIO())):
        monkeypatch.setattr(sys, "stdin", closed)
        if closed is not None:
            closed.close()
        assert "is closed" in refusal(keep, UsageError)
    terminal = SimpleNamespace(buffer=SimpleNamespace(closed=False, isatty=lambda: True))
    monkeypatch.setattr(sys, "stdin", terminal)
    assert "is a terminal" in refusal(keep, UsageError)


def test_missing_temporary_space_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, b"x")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    told = refusal(lambda: kept(b"x", monkeypatch), OutputError)
    assert "cannot store standard input in a temporary file" in told


@pytest.mark.slow
def test_a_real_pipe(tmp_path: Path) -> None:
    import subprocess

    trace = MAKERS["kineto"](tmp_path / "in")
    done = subprocess.run(
        [sys.executable, "-m", "unified_prof", "import", "-", "-o", "r.db"],
        input=gzip.compress(trace.read_bytes()),
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        timeout=60,
        check=True,
    )
    assert b"torch.profiler trace: 1 events" in done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
