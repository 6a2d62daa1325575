"""What scripts generate from the code is what lies in the repository."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from unified_prof.schema import catalogue

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_frozen_schemas_are_what_the_migrations_make() -> None:
    frozen = runpy.run_path(str(ROOT / "scripts" / "freeze_schemas.py"))["frozen"]
    for revision in catalogue.REVISIONS["msprof"]:
        assert frozen(revision) == catalogue.frozen_text("msprof", revision)


def test_the_schema_page_says_what_the_models_say() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "make_schema_docs.py"))["page"]
    stored = (ROOT / "docs" / "schema" / "msprof.md").read_text(encoding="utf-8")
    assert stored == page(), "run scripts/make_schema_docs.py"
