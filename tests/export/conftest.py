"""Fixtures of export tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.export.builders import DatabaseBuilder
from unified_prof.export.mindstudio import writer
from unified_prof.export.mindstudio.writer import Exported
from unified_prof.sqlite.reader import open_report

Export = Callable[[Path], Exported]


@pytest.fixture
def database(tmp_path: Path) -> DatabaseBuilder:
    """Return a database builder."""
    return DatabaseBuilder(tmp_path / "msprof_1.db")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return an empty directory."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def export(out: Path) -> Export:
    """Return a function that exports a database into `out`."""

    def run(path: Path) -> Exported:
        with open_report(path) as report:
            return writer.write(report, out)

    return run
