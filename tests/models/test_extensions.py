"""The frozen text of torch_npu's tables equals their models; extension tables hide no others."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from unified_prof.schema import catalogue
from unified_prof.schema.msprof import MODELS, MsprofBase

TABLES = catalogue.extension_tables()


def declared(create_sql: str, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(create_sql)
        return db.execute(f"PRAGMA table_info({table})").fetchall()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - catalogue.outline("latest").columns))
def test_model_and_frozen_text_declare_the_same_columns(name: str) -> None:
    table = MsprofBase.metadata.tables[name]
    text = str(CreateTable(table).compile(dialect=sqlite.dialect()))
    assert declared(text, name) == declared(TABLES[name].create_sql, name)


def test_tables_without_a_model_are_those_of_uprof() -> None:
    assert all(name.startswith("UPROF_") for name in TABLES.keys() - MODELS.keys())


def test_extension_tables_do_not_hide_tables_of_families() -> None:
    for family, revisions in catalogue.REVISIONS.items():
        for revision in revisions:
            assert not set(catalogue.load(family, revision).tables) & set(TABLES)
