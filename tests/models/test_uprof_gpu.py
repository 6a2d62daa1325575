"""The models of uprof's GPU tables and the text that creates them say the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from sqlalchemy import create_engine

from unified_prof.schema import uprof
from unified_prof.schema.catalogue import extension_tables
from unified_prof.schema.uprof import UprofBase

MODELS = [
    model
    for model in vars(uprof).values()
    if isinstance(model, type) and issubclass(model, UprofBase) and model is not UprofBase
]


def test_columns_are_those_of_the_frozen_text() -> None:
    for model in MODELS:
        declared = extension_tables()[model.__tablename__].columns
        engine = create_engine("sqlite://")
        with engine.begin() as connection:
            model.__table__.create(connection)  # type: ignore[attr-defined]
            rows = connection.exec_driver_sql(f"PRAGMA table_info({model.__tablename__})").all()
        engine.dispose()
        assert [(c.name, c.type, c.not_null, c.primary_key) for c in declared] == [
            (row[1], row[2], bool(row[3]), row[5]) for row in rows
        ]


def test_every_column_is_documented() -> None:
    for model in MODELS:
        assert model.__doc__
        for column in model.__table__.columns:
            assert column.doc, f"{model.__name__}.{column.name}"


def test_the_text_runs_on_its_own() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        for model in MODELS:
            db.execute(extension_tables()[model.__tablename__].create_sql)
