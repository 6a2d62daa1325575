"""The frozen texts of uprof describe each table and column."""

import re
from pathlib import Path

import pytest

from unified_prof.schema import catalogue

SCHEMAS = catalogue.resource_directory("schemas")
TEXTS = sorted(
    path.relative_to(SCHEMAS)
    for folder in ("cluster", "extensions", "skyline_memory", "skyline_run_time", "watch")
    for path in (SCHEMAS / folder).glob("*.sql")
    if path.name != "pytorch.sql"  # described by schemas/msprof.txt
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
