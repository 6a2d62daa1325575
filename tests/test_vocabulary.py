"""Reserved values are defined in one module and known to the database."""

import ast

import pytest

from tests.source_trees import nodes
from unified_prof.base import columns as vocabulary
from unified_prof.schema import catalogue

RESERVED = {
    vocabulary.HOST_ONLY_CONNECTION,
    vocabulary.FIRST_MARK_CONNECTION,
    vocabulary.TYPE_NOT_AVAILABLE,
    vocabulary.API_OPERATION,
    vocabulary.NOT_AVAILABLE,
}
"""Values with no other meaning than that in the vocabulary."""


def test_reserved_values_are_used_by_name_only() -> None:
    spelling = [
        path.name
        for path, found in nodes("unified_prof").items()
        if path.name != "columns.py"
        and {node.value for node in found if isinstance(node, ast.Constant)} & RESERVED
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
def test_newest_enumerations_contain_the_reserved_values(enum: str, number: int, name: str) -> None:
    assert (number, name) in catalogue.load(catalogue.MSPROF, "latest").rows[enum]
