"""All recordings made by others that lie beside the checkout: in by import, out by every reader."""

from __future__ import annotations

import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_every_source import well
from tests.cli.test_report import uprof
from tests.conftest import ROOT
from unified_prof.sqlite.detect import detect

pytestmark = pytest.mark.slow

SAMPLES = ROOT.parent / "shared" / "samples"
NO_REPORTS = {"analysis.db": "made by torch_npu"}
"""Databases among the samples that say nothing by themselves, and what is said of them."""


def samples() -> list[str]:
    """Return all files that a user could have."""
    if not SAMPLES.is_dir():
        return []
    others = (".md", ".db-shm", ".db-wal")  # SQLite leaves the last two beside an opened database.
    files = (path for path in SAMPLES.rglob("*") if path.is_file() and path.suffix not in others)
    return sorted(str(path.relative_to(SAMPLES)) for path in files)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=samples())
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a sample as a user has it, unpacked where it is not one as it is."""
    path: Path = SAMPLES / request.param
    if path.name.endswith(".tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / "in", filter="data")
        return next((tmp_path / "in").iterdir())
    if path.suffix == ".xz":
        unpacked: Path = tmp_path / path.stem
        unpacked.write_bytes(lzma.decompress(path.read_bytes()))
        return unpacked
    if path.suffix == ".db":  # nobody's database is opened where it lies
        return Path(shutil.copy(path, tmp_path))
    return path


def reports(given: Path, folder: Path) -> Iterator[Path]:
    """Yield the reports of a sample."""
    if given.is_file() and given.suffix == ".db":
        yield given
        return
    well(uprof("import", given, "-o", folder / "reports"))
    yield from sorted((folder / "reports").rglob("*.db"))


def test_sample_can_be_imported_and_reported(given: Path, tmp_path: Path) -> None:
    if given.name in NO_REPORTS:
        done = uprof("report", given)
        assert done.returncode == 7
        assert NO_REPORTS[given.name] in done.stderr
        return
    found = list(reports(given, tmp_path))
    assert found
    for report in found:
        assert detect(report).family == "msprof"
        document = json.loads(well(uprof("report", report, "--json")).stdout)
        (figures,) = document["reports"]
        assert figures["totals"]["count"] or figures["devices"]
        timeline = tmp_path / "timeline.json"
        well(uprof("trace", report, "-o", timeline, "--force", "-q"))
        events = json.loads(timeline.read_text())["traceEvents"]
        assert any(event["ph"] == "X" for event in events)
        difference = json.loads(well(uprof("diff", report, report, "--json")).stdout)
        assert difference["operations"]["delta_ns"] == 0
        assert all(one["ratio"] in (1.0, None) for one in difference["totals"].values())
