"""What the columns of the msprof database refer to, at any revision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from unified_prof.schema import catalogue
from unified_prof.schema.msprof import MSPROF_MODELS, PYTORCH_MODELS, MsprofBase
from unified_prof.schema.msprof.session import EPOCH_NS, STRINGS

_ENUMS_OF_COLLECTIVES = "ENUM_HCCL_"
_FIRST_WITH_ENUMS_OF_COLLECTIVES = "1.0.0_20240521"


@dataclass(frozen=True, slots=True)
class Reference:
    """One column whose values are found in another table's column."""

    table: str
    column: str
    target_table: str
    target_column: str


def since(table: str, column: str) -> str | None:
    """Return the revision from which on a column of the newest schema has been there.

    A column that was renamed counts from then on; None for the tables of torch_npu.
    """
    found = None
    for revision in reversed(catalogue.REVISIONS[catalogue.MSPROF]):
        spec = catalogue.load(catalogue.MSPROF, revision).tables.get(table)
        if spec is None or column not in spec.column_names:
            break
        found = revision
    return found


@cache
def times(table: str) -> frozenset[str]:
    """Return the columns of a table that hold points in time; some are declared as text."""
    known = MsprofBase.metadata.tables.get(table)
    columns = () if known is None else known.c
    return frozenset(one.name for one in columns if one.info.get("unit") == EPOCH_NS)


@cache
def references(revision: str) -> tuple[Reference, ...]:
    """Return the references that hold in a file at `revision`, torch_npu's tables included."""
    order = catalogue.REVISIONS[catalogue.MSPROF].index
    found = []
    for model in (*MSPROF_MODELS, *PYTORCH_MODELS):
        for column in MsprofBase.metadata.tables[model.__tablename__].c:
            refers = column.info.get("refers")
            first = since(model.__tablename__, column.name)
            if refers is None or (first is not None and order(revision) < order(first)):
                continue
            if refers.startswith(_ENUMS_OF_COLLECTIVES) and order(revision) < order(
                _FIRST_WITH_ENUMS_OF_COLLECTIVES
            ):
                refers = STRINGS
            table, _, target = refers.partition(".")
            found.append(Reference(model.__tablename__, column.name, table, target))
    return tuple(found)
