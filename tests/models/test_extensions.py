"""The frozen text of extension tables equals their models."""

import pkgutil
import sqlite3
from contextlib import closing
from importlib import import_module

import pytest
from sqlalchemy import Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from unified_prof import schema
from unified_prof.schema import catalogue
from unified_prof.schema.msprof import PYTORCH_MODELS
from unified_prof.schema.uprof import UprofBase

for _module in pkgutil.iter_modules(schema.__path__):
    if _module.name.startswith("uprof"):
        import_module(f"{schema.__name__}.{_module.name}")

TABLES: dict[str, Table] = {
    **UprofBase.metadata.tables,
    **{str(model.__tablename__): model.__table__ for model in PYTORCH_MODELS},  # type: ignore[misc]
}


def declared(create_sql: str, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(create_sql)
        return db.execute(f"PRAGMA table_info({table})").fetchall()


def test_models_and_frozen_texts_have_the_same_tables() -> None:
    assert set(catalogue.extension_tables()) == set(TABLES)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_model_and_frozen_text_declare_the_same_columns(name: str) -> None:
    text = str(CreateTable(TABLES[name]).compile(dialect=sqlite.dialect()))
    spec = catalogue.extension_tables()[name]
    frozen = declared(spec.create_sql, name)
    assert declared(text, name) == frozen
    columns = [(column.name, column.type, column.not_null) for column in spec.columns]
    assert columns == [(row[1], row[2], bool(row[3])) for row in frozen]


def test_extension_tables_do_not_hide_tables_of_families() -> None:
    for family, revisions in catalogue.REVISIONS.items():
        for revision in revisions:
            assert not set(catalogue.load(family, revision).tables) & set(TABLES)
