"""Recordings made by others are converted and read by every command."""

import json
import lzma
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_every_source import succeeded
from tests.cli.test_report import uprof
from tests.conftest import ROOT
from unified_prof.sqlite.opening import detect

pytestmark = pytest.mark.slow

SAMPLES = ROOT.parent / "shared" / "samples"
NO_REPORTS = {"analysis.db": "made by torch_npu"}
"""Databases that are no reports, and the message about them."""


def samples() -> list[str]:
    """Return the files that a user could have."""
    if not SAMPLES.is_dir():
        return []
    others = (".md", ".db-shm", ".db-wal")  # SQLite leaves the last two beside an open database.
    files = (path for path in SAMPLES.rglob("*") if path.is_file() and path.suffix not in others)
    return sorted(str(path.relative_to(SAMPLES)) for path in files)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=samples())
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a sample, unpacked if it is packed."""
    path: Path = SAMPLES / request.param
    if path.name.endswith(".tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / "in", filter="data")
        return next((tmp_path / "in").iterdir())
    if path.suffix == ".xz":
        unpacked: Path = tmp_path / path.stem
        unpacked.write_bytes(lzma.decompress(path.read_bytes()))
        return unpacked
    if path.suffix == ".db":  # the original is never opened
        return Path(shutil.copy(path, tmp_path))
    return path


def reports(sample: Path, folder: Path) -> Iterator[Path]:
    """Yield the reports of a sample."""
    if sample.is_file() and sample.suffix == ".db":
        yield sample
        return
    succeeded(uprof("import", sample, "-o", folder / "reports"))
    yield from sorted((folder / "reports").rglob("*.db"))


def test_sample_can_be_imported_and_reported(sample: Path, tmp_path: Path) -> None:
    if sample.name in NO_REPORTS:
        done = uprof("report", sample)
        assert done.returncode == 7
        assert NO_REPORTS[sample.name] in done.stderr
        return
    found = list(reports(sample, tmp_path))
    assert found
    for report in found:
        assert detect(report).family == "msprof"
        document = json.loads(succeeded(uprof("report", report, "--json")).stdout)
        (figures,) = document["reports"]
        assert figures["totals"]["count"] or figures["devices"]
        timeline = tmp_path / "timeline.json"
        succeeded(uprof("trace", report, "-o", timeline, "--force", "-q"))
        events = json.loads(timeline.read_text())["traceEvents"]
        assert any(event["ph"] == "X" for event in events)
        difference = json.loads(succeeded(uprof("diff", report, report, "--json")).stdout)
        assert difference["operations"]["delta_ns"] == 0
        assert all(one["ratio"] in (1.0, None) for one in difference["totals"].values())
