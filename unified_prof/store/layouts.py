"""Where a table of the newest msprof schema lies in a file of another revision, column by column.

Decoders and readers know the newest names only. Between revisions columns were added (always at
the end) and four were renamed; that is all the knowledge this module holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from unified_prof.models import catalogue
from unified_prof.models.catalogue import MSPROF, TableSpec


@dataclass(frozen=True, slots=True)
class Rename:
    """A column that was called `old` in every revision before `revision`."""

    table: str
    newest: str
    old: str
    revision: str


# Latest first. COMPUTE_TASK_INFO.blockDim of before 1.2.0_20260128 is today's blockNum; today's
# blockDim (SIMT dimensions) is another column, which came with 1.2.0_20260716.
RENAMES = (
    Rename("COMPUTE_TASK_INFO", "blockNum", "blockDim", "1.2.0_20260128"),
    Rename("COMPUTE_TASK_INFO", "mixBlockNum", "mixBlockDim", "1.2.0_20260128"),
    Rename("COMPUTE_TASK_INFO", "blockNum", "block_dim", "1.0.0_20240521"),
    Rename("NPU_MEM", "ddr", "ddrUsage", "1.0.0_20240521"),
    Rename("NPU_MEM", "hbm", "hbmUsage", "1.0.0_20240521"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one table of the newest schema is stored in a file of some revision."""

    table: str
    spec: TableSpec
    """The table as the file declares it."""
    sources: tuple[str, ...]
    """Newest name of every column of the file, in the file's order."""
    dropped: tuple[str, ...]
    """Columns of the newest schema that the file has no place for."""

    @property
    def index_columns(self) -> dict[str, tuple[str, ...]]:
        """Index name -> the file's columns it is made of."""
        return {name: _columns_of(sql) for name, sql in self.spec.indexes}


def known_tables() -> dict[str, TableSpec]:
    """Return every table that can be written, in its newest shape."""
    return catalogue.load(MSPROF, "latest").tables | catalogue.extension_tables()


@cache
def layout(revision: str, table: str) -> Layout | None:
    """Return where `table` lies in a file of `revision`; None: that revision lacks it.

    Raises:
        KeyError: no revision knows `table`.
    """
    newest = known_tables()[table]
    if table in catalogue.extension_tables():
        return Layout(table, newest, newest.column_names, ())
    spec = catalogue.load(MSPROF, revision).tables.get(table)
    if spec is None:
        return None
    stored = {column: old_name(revision, table, column) for column in newest.column_names}
    by_file_name: dict[str, str] = {}
    for column, name in stored.items():
        if name in spec.column_names:
            by_file_name.setdefault(name, column)  # a renamed column goes before its namesake
    sources = tuple(by_file_name[name] for name in spec.column_names)
    return Layout(table, spec, sources, tuple(c for c in stored if c not in sources))


def old_name(revision: str, table: str, column: str) -> str:
    """Return what `revision` calls a column of the newest schema, if it has it."""
    order = catalogue.REVISIONS[MSPROF]
    name = column
    for rename in RENAMES:
        same = (rename.table, rename.newest) == (table, column)
        if same and order.index(revision) < order.index(rename.revision):
            name = rename.old
    return name


def _columns_of(create_index: str) -> tuple[str, ...]:
    match = re.search(r"\(([^()]*)\)\s*$", create_index)
    assert match, create_index
    return tuple(name.strip().strip('"') for name in match[1].split(","))
