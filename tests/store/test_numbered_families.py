"""Files of an older revision of a family with numbers stay readable when a newer one is added."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.summaries import write_summary
from tests.sql import execute
from unified_prof.cluster.stored_run import open_run
from unified_prof.errors import SchemaVersionError
from unified_prof.migrate import runner
from unified_prof.migrate.upgrade import upgrade
from unified_prof.schema import catalogue
from unified_prof.sqlite import fingerprint
from unified_prof.sqlite.opening import detect
from unified_prof.sqlite.reader import open_report

MIGRATION = '''"""Add the version of the driver.

Released in: nothing, this is a test.
Old rows: NULL.
"""
import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    op.add_column("RANK", sa.Column("driver_version", sa.TEXT()))
    op.execute("PRAGMA user_version = 2")
'''


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a summary at revision 1, in a version of the program that has revision 2 too."""
    folder = write_summary(tmp_path / "run")
    for name in ("schemas", "migrations"):
        shutil.copytree(catalogue.resource_directory(name), tmp_path / name)
    for module in (catalogue, runner):
        monkeypatch.setattr(module, "resource_directory", lambda name: tmp_path / name)
    monkeypatch.setitem(catalogue.REVISIONS, "cluster", ("1", "2"))
    text = (tmp_path / "schemas/cluster/1.sql").read_text()
    text = text.replace("user_version = 1", "user_version = 2")
    text = re.sub(
        r"(CREATE TABLE RANK \(.*?)\n\);", r"\1,\n  driver_version TEXT\n);", text, flags=re.S
    )
    (tmp_path / "schemas/cluster/2.sql").write_text(text)
    (tmp_path / "migrations/cluster/2.py").write_text(MIGRATION)
    forget_schemas()
    yield folder
    forget_schemas()


def forget_schemas() -> None:
    catalogue.load.cache_clear()
    fingerprint._shapes.clear()  # with views of the newest revision


def test_first_revision_is_recognised_read_and_upgraded(first: Path) -> None:
    file = first / "cluster.sqlite"
    assert detect(file).require() == ("cluster", "1")
    with open_run(first) as run:
        assert len(run.ranks) == 8
    with open_report(file) as report:
        assert set(report.rows("SELECT driver_version FROM RANK")) == {(None,)}
    done = upgrade(file)
    assert (done.before, done.after) == ("1", "2")
    assert detect(file).require() == ("cluster", "2")
    assert execute(file, "SELECT count(*), count(driver_version) FROM RANK") == [(8, 0)]


def test_unknown_number_names_the_known_ones(first: Path) -> None:
    file = first / "cluster.sqlite"
    upgrade(file, backup=False)
    execute(file, "PRAGMA user_version = 3")
    with pytest.raises(SchemaVersionError, match="user_version is 3, expected 1 or 2"):
        detect(file).require()
