"""Every heading of a table or figure is explained in the glossary."""

import ast
from collections.abc import Iterator

from tests.conftest import ROOT
from tests.source_trees import nodes
from unified_prof.recording.model import KINDS
from unified_prof.report import glossary

CALLS = ("Column", "column", "fact")
"""Functions of the renderers whose first argument is a heading."""


def headings() -> Iterator[str]:
    for path, found in nodes("unified_prof").items():
        if "report" not in path.parts:
            continue
        for node in found:
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0]
            if name in CALLS and isinstance(first, ast.Constant) and first.value:
                yield str(first.value)
    for kind in KINDS.values():
        yield from filter(None, (kind.counted, kind.detailed))


def test_each_heading_has_an_entry() -> None:
    found = set(headings())
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
