"""Recordings from standard input."""

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.test_import import uprof
from tests.pipeline.test_sources import MAKERS
from tests.sql import run_facts
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
"""Kinds whose recordings are one file."""


@pytest.fixture(autouse=True)
def _tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)


def set_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def read_stored(content: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    set_standard_input(monkeypatch, content)
    with TemporaryInputs() as inputs:
        path = inputs.read_standard_input()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        return path.read_bytes()


@pytest.mark.quick(cases=6)
@pytest.mark.parametrize(
    ("kind", "packer"),
    [
        *((kind, "plain") for kind in FILES),
        *(("kineto", packer) for packer in [*PACKERS][1:]),
        ("nsys", "xz"),
    ],
)
def test_kind_is_determined_by_the_content(
    kind: str,
    packer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    set_standard_input(monkeypatch, PACKERS[packer](recording.read_bytes()))
    assert uprof("import", "-", "--json") == 0
    output = capsys.readouterr()
    (record,) = json.loads(output.out)
    assert record["kind"] == kind
    assert "standard input -> stdin.db" in output.err
    facts = run_facts("stdin.db")
    assert "stdin" in facts.values()
    assert not [name for name in map(str, facts.values()) if "/tmp/" in name]
    assert list((tmp_path / "tmp").iterdir()) == [], "the temporary file is removed"


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("jobs", [1, 2])
def test_standard_input_is_converted_together_with_files(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = MAKERS["kineto"](tmp_path / "in")
    set_standard_input(monkeypatch, gzip.compress(trace.read_bytes()))
    assert uprof("import", trace, "-", "-", "-o", "out", "--jobs", jobs) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["run.db", "stdin.db"]
    assert "2 recordings: 2 converted" in capsys.readouterr().err
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input is empty"),
        (b"hello", "standard input is not in a format that uprof can convert"),
        (b"\x1f\x8b\x08\0nothing of the kind", "standard input: the gzip data is damaged"),
        (gzip.compress(b""), "standard input is an empty file, compressed"),
        (b"SQLite format 3\0" + bytes(90), "standard input"),
    ],
)
def test_unreadable_input_does_not_stop_the_others(
    content: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = MAKERS["kineto"](tmp_path / "in")
    set_standard_input(monkeypatch, content)
    assert uprof("import", "-", trace, "-o", "out") in (6, 7)
    err = capsys.readouterr().err
    assert f"uprof: error: {message}" in err
    assert str(tmp_path / "tmp") not in err, "temporary paths are not shown"
    assert [path.name for path in Path("out").iterdir()] == ["run.db"]


def test_archive_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for kind in ("kineto", "nsys"):
            tar.add(MAKERS[kind](tmp_path / kind), f"{kind}/run{kind}")
        tar.add(__file__, "notes.txt")
    set_standard_input(monkeypatch, archive.getvalue())
    assert uprof("import", "-", "-o", "out") == 0
    assert len(list(Path("out").iterdir())) == 2
    assert str(tmp_path / "tmp") not in capsys.readouterr().err
    assert list((tmp_path / "tmp").iterdir()) == []


def error_text(work: Callable[[], object], kind: type[UprofError]) -> str:
    with pytest.raises(kind) as raised:
        work()
    return str(raised.value)


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(temporary_inputs, "MAX_BYTES", 3 << 20)
    error = error_text(lambda: read_stored(bytes(4 << 20), monkeypatch), RawFormatError)
    assert "standard input is too long" in error
    assert list((tmp_path / "tmp").iterdir()) == []
    assert read_stored(bytes(3 << 20), monkeypatch) == bytes(3 << 20)


def test_closed_input_and_terminal_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep() -> None:
        with TemporaryInputs() as inputs:
            inputs.read_standard_input()

    for closed in (None, io.TextIOWrapper(io.BytesIO())):
        monkeypatch.setattr(sys, "stdin", closed)
        if closed is not None:
            closed.close()
        assert "is closed" in error_text(keep, UsageError)
    terminal = SimpleNamespace(buffer=SimpleNamespace(closed=False, isatty=lambda: True))
    monkeypatch.setattr(sys, "stdin", terminal)
    assert "is a terminal" in error_text(keep, UsageError)


def test_full_temporary_space_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_standard_input(monkeypatch, b"x")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    output = error_text(lambda: read_stored(b"x", monkeypatch), OutputError)
    assert "cannot create a temporary directory" in output


@pytest.mark.slow
def test_pipe_is_read(tmp_path: Path) -> None:
    import subprocess

    trace = MAKERS["kineto"](tmp_path / "in")
    result = subprocess.run(
        [sys.executable, "-m", "unified_prof", "import", "-", "-o", "r.db"],
        input=gzip.compress(trace.read_bytes()),
        capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        timeout=400,
        check=True,
    )
    assert b"torch.profiler trace: 1 events" in result.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
