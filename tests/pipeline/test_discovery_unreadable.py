"""Files of a directory that are named like recordings but cannot be read."""

import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.pipeline.test_sources import kineto
from unified_prof.cli.app import app
from unified_prof.errors import RawFormatError
from unified_prof.pipeline import discovery
from unified_prof.pipeline.convert import convert_all


@pytest.mark.parametrize("command", ["report --convert", "convert -o out"])
def test_head_of_each_file_is_read_once(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [f"{number}x{end}" for number in range(20) for end in (".json", ".txt.gz", ".log")]
    Path("many").mkdir()
    kineto(Path("many"))
    for number, name in enumerate(names):
        data = b"text" if name.endswith("log") else b'{"a": %d}' % number
        Path("many", name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    opened: list[str] = []
    real = io.open

    def count(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.extend({Path(file).name} & {*names} if isinstance(file, Path) else ())
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", count)
    CliRunner().invoke(app, [*command.split(), "many"])
    assert sorted(opened) == sorted(names)


def test_unreadable_ranks_of_a_directory_are_reported(tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    kineto(ranks).rename(ranks / "rank0.json")
    (ranks / "rank1.json.gz").touch()
    (ranks / "rank2.json").write_text("garbage")
    (ranks / "rank3.json.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00")
    (ranks / "notes.json").write_text('{"batch": 8}')
    outcomes = convert_all([ranks], tmp_path / "out")
    failed = {o.recording.name: o.error for o in outcomes if o.error is not None}
    assert set(failed) == {"rank1.json.gz", "rank2.json", "rank3.json.gz"}
    assert {type(error) for error in failed.values()} == {RawFormatError}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rank0.db"]


def test_other_files_and_finished_reports_are_ignored(tmp_path: Path) -> None:
    kineto(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "readme.txt").write_text("trace")
    found = list(discovery.find([tmp_path], lambda _: None, lambda _: None))
    assert [type(item) for item in found] == [discovery.FoundRecording]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Return a directory with ranks 0, 2 and 5 of 8, three damaged ranks and two other files."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    trace = json.loads(kineto(tmp_path).read_text())
    for rank in (0, 2, 5):
        trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 8}
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    (folder / "rank1.json.gz").touch()
    (folder / "rank3.json").write_text("garbage")
    (folder / "rank4.json.gz").write_bytes(gzip.compress(b"[]" * 100)[:20])
    (folder / "model.pickle").write_bytes(b"\x80\x04}.")
    (folder / "notes.txt").write_text("a note")
    return folder


def test_import_of_unreadable_ranks_fails_and_names_them(ranks: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(ranks), "-o", str(tmp_path / "out")])
    assert done.exit_code == 6
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"rank{rank}.db" for rank in (0, 2, 5)
    ]
    refused = re.findall(r"error: .*/(rank\d\.json\S*?):? (.*) \[", done.stderr)
    assert dict(refused) == {
        "rank1.json.gz": "expected a torch.profiler trace (JSON), found an empty file",
        "rank3.json": "is not in a format that uprof can convert",
        "rank4.json.gz": "has no complete event: it is cut off, damaged or not a trace",
    }
    assert "6 recordings: 3 converted, 3 refused" in done.stderr


def test_import_of_a_directory_names_what_is_missing(ranks: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(ranks), "-o", str(tmp_path / "out")])
    others = f"2 other files in {ranks} are not recordings: .pickle: model.pickle; .txt: notes.txt"
    assert others in done.stderr
    assert f"5 of 8 ranks are missing in {ranks}: 1, 3, 4, 6, 7" in done.stderr


def test_report_of_a_directory_with_unreadable_ranks_fails_and_names_them(ranks: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--convert", str(ranks)])
    assert done.exit_code == 7
    heading = done.stdout.partition("\n\n")[0]
    assert "3 of 6 reports" in heading
    for rank in ("rank1.json.gz", "rank3.json", "rank4.json.gz"):
        assert rank in heading
    assert "5 of 8 ranks are missing" in done.stderr
