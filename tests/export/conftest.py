"""What the tests of exports share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.export.builders import Recorded
from unified_prof.export.mindstudio import writer
from unified_prof.export.mindstudio.writer import Exported
from unified_prof.sqlite.reader import open_report

Export = Callable[[Path], Exported]


@pytest.fixture
def database(tmp_path: Path) -> Recorded:
    """Return a database to fill."""
    return Recorded(tmp_path / "msprof_1.db")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return an empty folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def export(out: Path) -> Export:
    """Return what exports a database into `out`."""

    def run(path: Path) -> Exported:
        with open_report(path) as report:
            return writer.write(report, out)

    return run
