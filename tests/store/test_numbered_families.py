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

NEWEST = catalogue.REVISIONS["cluster"][-1]
NEXT = str(int(NEWEST) + 1)
MIGRATION = f'''"""Add a column.

Released in: nothing, this is a test.
Old rows: NULL.
"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{NEWEST}"


def upgrade() -> None:
    op.add_column("RANK", sa.Column("added_text", sa.TEXT()))
    op.execute("PRAGMA user_version = {NEXT}")
'''


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a summary at the newest revision, in a program that has one more."""
    folder = write_summary(tmp_path / "run")
    for name in ("schemas", "migrations"):
        shutil.copytree(catalogue.resource_directory(name), tmp_path / name)
    for module in (catalogue, runner):
        monkeypatch.setattr(module, "resource_directory", lambda name: tmp_path / name)
    monkeypatch.setitem(catalogue.REVISIONS, "cluster", (*catalogue.REVISIONS["cluster"], NEXT))
    text = (tmp_path / f"schemas/cluster/{NEWEST}.sql").read_text()
    text = text.replace(f"user_version = {NEWEST}", f"user_version = {NEXT}")
    text = re.sub(
        r"(CREATE TABLE RANK \(.*?)\n\);", r"\1,\n  added_text TEXT\n);", text, flags=re.S
    )
    (tmp_path / f"schemas/cluster/{NEXT}.sql").write_text(text)
    (tmp_path / f"migrations/cluster/{NEXT}.py").write_text(MIGRATION)
    forget_schemas()
    yield folder
    forget_schemas()


def forget_schemas() -> None:
    catalogue.load.cache_clear()
    fingerprint._shapes.clear()  # with views of the newest revision


def test_older_revision_is_recognised_read_and_upgraded(older: Path) -> None:
    file = older / "cluster.sqlite"
    assert detect(file).require() == ("cluster", NEWEST)
    with open_run(older) as run:
        assert len(run.ranks) == 8
    with open_report(file) as report:
        assert set(report.rows("SELECT added_text FROM RANK")) == {(None,)}
    done = upgrade(file)
    assert (done.before, done.after) == (NEWEST, NEXT)
    assert detect(file).require() == ("cluster", NEXT)
    assert execute(file, "SELECT count(*), count(added_text) FROM RANK") == [(8, 0)]


def test_unknown_number_names_the_known_ones(older: Path) -> None:
    file = older / "cluster.sqlite"
    upgrade(file, backup=False)
    unknown = int(NEXT) + 1
    execute(file, f"PRAGMA user_version = {unknown}")
    known = " or ".join(catalogue.REVISIONS["cluster"])
    message = f"user_version is {unknown}, expected {known}"
    with pytest.raises(SchemaVersionError, match=message):
        detect(file).require()
