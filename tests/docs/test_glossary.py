"""Every heading of a table or figure is explained in the glossary."""

import ast
from collections.abc import Iterator

from tests.conftest import ROOT
from tests.source_trees import nodes
from unified_prof.recording.model import KINDS
from unified_prof.report import glossary
from unified_prof.report.columns import extra_column

CALLS = ("Column", "column", "fact")
"""Functions of the renderers whose first argument is a heading."""


def headings() -> Iterator[str]:
    for path, found in nodes("unified_prof").items():
        if "report" not in path.parts:
            continue
        for node in found:
            if isinstance(node, ast.AnnAssign) and "tuple[Figure[" in ast.unparse(node.annotation):
                yield from _first_elements(node.value)
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0]
            if name in CALLS and isinstance(first, ast.Constant) and first.value:
                yield str(first.value)
    for kind in KINDS.values():
        yield from filter(None, (kind.counted, kind.detailed))


def _first_elements(table: ast.expr | None) -> Iterator[str]:
    for row in getattr(table, "elts", ()):
        if isinstance(row, ast.Tuple) and isinstance(row.elts[0], ast.Constant):
            yield from filter(None, [str(row.elts[0].value)])


def extra_headings() -> Iterator[str]:
    """Yield the headings of figures that only some breakdowns have, by their keys."""
    for found in nodes("unified_prof").values():
        for node in found:
            if isinstance(node, ast.keyword) and node.arg == "extra":
                tables = [one for one in ast.walk(node.value) if isinstance(one, ast.Dict)]
                for key in (key for table in tables for key in table.keys):
                    if isinstance(key, ast.Constant):
                        yield extra_column(str(key.value))[0]


def test_each_heading_has_an_entry() -> None:
    found = {*headings(), *extra_headings()}
    assert len(found) > 50
    assert sorted(found - set(glossary.HEADINGS)) == [], "add it to unified_prof/report/glossary.py"


def test_each_entry_is_used_as_a_heading() -> None:
    literals = {
        node.value
        for found in nodes("unified_prof").values()
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert sorted(set(glossary.HEADINGS) - literals - set(KINDS)) == []


def test_page_is_current() -> None:
    stored = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert stored == glossary.markdown(), "run scripts/make_schema_docs.py --glossary"


def test_definitions_are_sentences() -> None:
    for term, text in {**glossary.CONCEPTS, **glossary.HEADINGS}.items():
        assert text.endswith("."), term
