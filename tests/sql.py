"""Runs single statements on SQLite files."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def execute(path: str | Path, statement: str, *values: object) -> list[Any]:
    """Run a statement, and return its rows."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).fetchall()


def run_facts(path: str | Path) -> dict[str, Any]:
    """Return what a report says about its run."""
    return dict(execute(path, "SELECT name, value FROM UPROF_RUN"))
