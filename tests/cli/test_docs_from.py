"""Commands on the pages "From X to uprof" work as written."""

import lzma
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_report import Done, uprof
from tests.conftest import ROOT
from tests.pipeline import test_standard_input
from tests.pipeline.test_sources import MAKERS

PAGES = sorted((ROOT / "docs" / "from").glob("*.md"))
PROF = "PROF_000001_20260101000000000_00004242ABCDEFGH"
ASCEND = "host_4242_20260101000000000_ascend_pt"


def put(kind: str, *names: str) -> None:
    """Write recordings of a kind under the names that a page uses."""
    for number, name in enumerate(names):
        recording = MAKERS[kind](Path(".recordings") / f"{kind}{number}")
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        recording.rename(name)


def write_torch_files() -> None:
    put("kineto", "trace.json.gz", "rank0/trace.json", "rank1/trace.json")
    Path("trace.json.xz").write_bytes(lzma.compress(Path("trace.json.gz").read_bytes()))


def write_nsys_files() -> None:
    put("nsys", "run.sqlite")
    Path("run.sqlite.xz").write_bytes(lzma.compress(Path("run.sqlite").read_bytes()))


PREPARED: dict[str, Callable[[], None]] = {
    "torch-profiler.md": write_torch_files,
    "msprof.md": lambda: put("prof", PROF, f"cluster/a/{PROF}", "cluster/b/c/PROF_2"),
    "nsight-systems.md": write_nsys_files,
    "memory-snapshots.md": lambda: put("memory_snapshot", "memory.pickle", "before.pickle"),
    "rocprofv3.md": lambda: put("rocm", "results.db"),
    "torch-npu.md": lambda: put("ascend_pt", ASCEND, f"cluster/{ASCEND}"),
}


def commands(page: Path) -> list[str]:
    """Return the uprof commands of a page, without comments."""
    lines = (line[2:] for line in page.read_text().splitlines() if line.startswith("$ "))
    return [line.partition(" #")[0].strip() for line in lines if "uprof" in line]


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> Done:
    before, _, last = command.rpartition(" | ")
    if before:
        tool, option, path = shlex.split(before)
        assert (tool, option) == ("xz", "-dc")
        test_standard_input.set_standard_input(
            monkeypatch, lzma.decompress(Path(path).read_bytes())
        )
    name, *arguments = shlex.split(last)
    assert name == "uprof"
    return uprof(*arguments)


def test_every_page_is_tested() -> None:
    assert {page.name for page in PAGES} == set(PREPARED)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_a_page_work_as_documented(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    PREPARED[page.name]()
    shutil.rmtree(".recordings", ignore_errors=True)
    monkeypatch.setattr(sys, "stdin", None)
    found = commands(page)
    assert found
    for command in found:
        done = run(command, monkeypatch)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert "Traceback" not in done.stderr
