"""What scripts generate from the code is what lies in the repository."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from unified_prof.schema import catalogue

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_frozen_schemas_match_the_migrations() -> None:
    frozen = runpy.run_path(str(ROOT / "scripts" / "freeze_schemas.py"))["frozen"]
    for revision in catalogue.REVISIONS["msprof"]:
        assert frozen(revision) == catalogue.frozen_text("msprof", revision)


def test_schema_page_has_each_table_with_its_columns() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "make_schema_docs.py"))["page"]()
    newest = catalogue.load("msprof", "latest")
    for table, spec in newest.tables.items():
        section = page.partition(f"\n### {table}\n")[2].partition("\n### ")[0]
        for column in spec.column_names:
            assert f"\n| {column} | " in section, (table, column)
