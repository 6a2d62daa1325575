"""SQLAlchemy models for reading msprof databases at the newest revision.

`MODELS` has the tables of msprof and those that torch_npu appends. Older files are read through the
same models, because the reader presents them in the newest shape.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from unified_prof.schema import catalogue
from unified_prof.schema.msprof.host import *  # noqa: F403
from unified_prof.schema.msprof.samples import *  # noqa: F403
from unified_prof.schema.msprof.session import *  # noqa: F403
from unified_prof.schema.msprof.session import EPOCH_NS, STRINGS, MsprofBase
from unified_prof.schema.msprof.tasks import *  # noqa: F403

MODELS: dict[str, type[MsprofBase]] = {
    model.__tablename__: model for model in MsprofBase.__subclasses__()
}
"""Model of each table."""

# Tables of collectives to which columns refer, with the first revision of each.
_COLLECTIVE_ENUMS = "ENUM_HCCL_"
_COLLECTIVE_ENUMS_SINCE = "1.0.0_20240521"


class Reference(Struct, frozen=True):
    """A column whose values refer to a column of another table."""

    table: str
    column: str
    target_table: str
    target_column: str


def since(table: str, column: str) -> str | None:
    """Return the first revision with a column of the newest schema; None for torch_npu's tables.

    For a renamed column, this is the revision that introduced the new name.
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
    """Return the names of a table's columns with points in time; some are declared as text."""
    known = MsprofBase.metadata.tables.get(table)
    columns = () if known is None else known.c
    return frozenset(one.name for one in columns if one.info.get("unit") == EPOCH_NS)


@cache
def references(revision: str) -> tuple[Reference, ...]:
    """Return the references between columns at `revision`, including torch_npu's tables."""
    order = catalogue.REVISIONS[catalogue.MSPROF].index
    found = []
    for name in (*catalogue.load(catalogue.MSPROF, "latest").tables, *catalogue.extension_tables()):
        for column in MsprofBase.metadata.tables[name].c if name in MODELS else ():
            refers = column.info.get("refers")
            first = since(name, column.name)
            if refers is None or (first is not None and order(revision) < order(first)):
                continue
            if refers.startswith(_COLLECTIVE_ENUMS) and order(revision) < order(
                _COLLECTIVE_ENUMS_SINCE
            ):
                refers = STRINGS
            target_table, _, target = refers.partition(".")
            found.append(Reference(name, column.name, target_table, target))
    return tuple(found)
