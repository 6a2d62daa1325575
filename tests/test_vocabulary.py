"""The values that stand for something else have one place, and the database knows them."""

import ast
from pathlib import Path

import pytest

import unified_prof
from unified_prof import vocabulary
from unified_prof.models import catalogue

PACKAGE = Path(unified_prof.__file__).parent
SPELLED = {
    vocabulary.HOST_ONLY_CONNECTION,
    vocabulary.FIRST_MARK_CONNECTION,
    vocabulary.TYPE_NOT_AVAILABLE,
    vocabulary.API_OPERATION,
    vocabulary.NOT_AVAILABLE,
}
"""Values that mean nothing but what the vocabulary says."""


def _constants(path: Path) -> set[object]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


def test_no_other_module_spells_them() -> None:
    spelling = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "vocabulary.py" and _constants(path) & SPELLED
    ]
    assert spelling == []


@pytest.mark.parametrize(
    ("enum", "number", "name"),
    [
        ("ENUM_HCCL_DATA_TYPE", vocabulary.TYPE_NOT_AVAILABLE, vocabulary.NOT_AVAILABLE),
        ("ENUM_HCCL_RDMA_TYPE", vocabulary.TYPE_INVALID, "INVALID_TYPE"),
        ("ENUM_MEMCPY_OPERATION", vocabulary.COPY_OTHER, "other"),
    ],
)
def test_enums_of_the_newest_revision_have_them(enum: str, number: int, name: str) -> None:
    assert (number, name) in catalogue.load(catalogue.MSPROF, "latest").rows[enum]
