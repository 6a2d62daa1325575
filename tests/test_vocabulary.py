"""The values that stand for something else have one place, and the database knows them."""

import ast

import pytest

from tests.source_trees import nodes
from unified_prof.base import columns as vocabulary
from unified_prof.schema import catalogue

SPELLED = {
    vocabulary.HOST_ONLY_CONNECTION,
    vocabulary.FIRST_MARK_CONNECTION,
    vocabulary.TYPE_NOT_AVAILABLE,
    vocabulary.API_OPERATION,
    vocabulary.NOT_AVAILABLE,
}
"""Values that mean nothing but what the vocabulary says."""


def test_no_other_module_spells_them() -> None:
    spelling = [
        path.name
        for path, found in nodes("unified_prof").items()
        if path.name != "columns.py"
        and {node.value for node in found if isinstance(node, ast.Constant)} & SPELLED
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
