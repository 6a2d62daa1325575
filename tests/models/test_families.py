"""The models of Skyline and cluster databases equal the frozen text."""

import sqlite3
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase

from unified_prof.schema import catalogue
from unified_prof.schema.cluster import ClusterBase
from unified_prof.schema.skyline import SkylineMemoryBase, SkylineRunTimeBase
from unified_prof.schema.uprof import UprofBase
from unified_prof.schema.watch import WatchBase

Shape = dict[str, Any]


def shape(db: sqlite3.Connection) -> Shape:
    """Columns (order, name, type, NOT NULL, key) and indexes (columns, uniqueness) by table."""
    tables = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        table: (
            db.execute(f"PRAGMA table_info('{table}')").fetchall(),
            sorted(
                (unique, origin, [c for _, _, c in db.execute(f"PRAGMA index_info({name})")])
                for _, name, unique, origin, _ in db.execute(f"PRAGMA index_list('{table}')")
            ),
        )
        for table in tables
    }


def without_implied_not_null(found: Shape) -> Shape:
    """SQLAlchemy writes NOT NULL for integer keys; SQLite implies it for a rowid alias."""
    return {
        table: (
            [
                (i, n, t, 0 if pk and columns[0][5] and t == "INTEGER" else nn, d, pk)
                for i, n, t, nn, d, pk in columns
            ],
            indexes,
        )
        for table, (columns, indexes) in found.items()
    }


@pytest.mark.parametrize(
    ("family", "base"),
    [
        ("skyline-run-time", SkylineRunTimeBase),
        ("skyline-memory", SkylineMemoryBase),
        ("cluster", ClusterBase),
        ("watch", WatchBase),
    ],
)
def test_models_equal_the_frozen_text(family: str, base: type[DeclarativeBase]) -> None:
    frozen = sqlite3.connect(":memory:")
    frozen.executescript(catalogue.frozen_text(family, "1"))
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        base.metadata.create_all(connection)
        raw: Any = connection.connection.dbapi_connection
        ours = shape(raw)
    engine.dispose()
    assert without_implied_not_null(ours) == without_implied_not_null(shape(frozen))
    assert frozen.execute("PRAGMA user_version").fetchone() == (1,)
    frozen.close()


@pytest.mark.parametrize(
    "base", [SkylineRunTimeBase, SkylineMemoryBase, ClusterBase, WatchBase, UprofBase]
)
def test_every_model_and_column_is_documented(base: type[DeclarativeBase]) -> None:
    for mapper in base.registry.mappers:
        assert mapper.class_.__doc__, mapper
    for table in base.metadata.tables.values():
        for column in table.columns:
            assert column.doc, f"{table.name}.{column.name}"
