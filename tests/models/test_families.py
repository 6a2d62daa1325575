"""The frozen texts of Skyline equal its models; those of uprof describe each table and column."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase

from unified_prof.schema import catalogue
from unified_prof.schema.skyline import SkylineMemoryBase, SkylineRunTimeBase

SCHEMAS = catalogue.resource_directory("schemas")
TEXTS = sorted(
    path.relative_to(SCHEMAS)
    for folder in ("cluster", "extensions", "skyline_memory", "skyline_run_time", "watch")
    for path in (SCHEMAS / folder).glob("*.sql")
    if path.name != "pytorch.sql"  # described by models
)
TABLE = re.compile(r'((?:--.*\n)*)CREATE TABLE "?(\w+)"? \(\n((?:.*\n)*?)\)')


@pytest.mark.parametrize("text", TEXTS, ids=str)
def test_every_table_and_column_is_described(text: Path) -> None:
    tables = TABLE.findall((SCHEMAS / text).read_text(encoding="utf-8"))
    assert tables
    for comment, table, body in tables:
        names = re.findall(r'^  "?(\w+)"? (?:INT|TEXT|REAL|VARCHAR|DOUBLE)', body, re.MULTILINE)
        assert re.match(r"-- \S", comment), table
        assert re.findall(r"^--   (\w+): \S", comment, re.MULTILINE) == names, table


@pytest.mark.parametrize("family", [name for name in catalogue.FAMILIES if name != "msprof"])
def test_first_revision_has_user_version_1(family: str) -> None:
    assert catalogue.load(family, "1").user_version == 1


def shape(db: sqlite3.Connection) -> dict[str, Any]:
    """Columns (order, name, type, NOT NULL unless implied, default, key) and indexes by table."""
    tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    result = {}
    for table in tables:
        columns = db.execute(f"PRAGMA table_info('{table}')").fetchall()
        indexes = db.execute(f"PRAGMA index_list('{table}')").fetchall()
        # SQLAlchemy writes NOT NULL for integer keys; SQLite implies it for a rowid alias.
        result[table] = (
            [(i, n, t, (pk and t == "INTEGER") or nn, d, pk) for i, n, t, nn, d, pk in columns],
            sorted(
                (unique, origin, [c for _, _, c in db.execute(f"PRAGMA index_info({name})")])
                for _, name, unique, origin, _ in indexes
            ),
        )
    return result


@pytest.mark.parametrize(
    ("family", "base"),
    [("skyline-run-time", SkylineRunTimeBase), ("skyline-memory", SkylineMemoryBase)],
)
def test_models_equal_the_frozen_text(family: str, base: type[DeclarativeBase]) -> None:
    frozen = sqlite3.connect(":memory:")
    frozen.executescript(catalogue.frozen_text(family, "1"))
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        base.metadata.create_all(connection)
        raw: Any = connection.connection.dbapi_connection
        assert shape(raw) == shape(frozen)
    engine.dispose()
    frozen.close()
