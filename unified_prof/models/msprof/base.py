"""What the models of the msprof database are built from.

The format declares few keys, no NOT NULL and no foreign keys, and neither do the models: what a
column refers to stands in its `info`. Attribute names are the columns' in snake_case; a column
that holds an id of a text ends in `_id`, and the attribute without that ending is the text.
"""

from __future__ import annotations

from typing import Any, overload

from sqlalchemy import INTEGER, ColumnElement, MetaData, select
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedColumn,
    declared_attr,
    mapped_column,
    object_session,
)
from sqlalchemy.orm.exc import DetachedInstanceError
from sqlalchemy.types import TypeEngine, UserDefinedType

STRINGS = "STRING_IDS.id"
EPOCH_NS = "ns since 1970"
BYTES = "bytes"
BYTES_PER_S = "bytes/s"
MHZ = "MHz"
PERCENT = "%"


class NUMERIC(UserDefinedType[Any]):
    """SQLite's NUMERIC: whole numbers stay integers, exact to 64 bits, others are floats.

    SQLAlchemy's own Numeric sends every parameter through float, which loses nanoseconds.
    """

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in DDL."""
        return "NUMERIC"


class MsprofBase(DeclarativeBase):
    """Registry of the msprof database's tables at its newest revision."""

    metadata = MetaData()


def column(
    name: str,
    doc: str,
    type_: type[TypeEngine[Any]] = INTEGER,
    *,
    unit: str | None = None,
    refers: str | None = None,
    key: bool = False,
) -> MappedColumn[Any]:
    """Declare one column, nullable as every column of the format is.

    Args:
        name: the vendor's spelling.
        doc: what it means.
        type_: the declared type.
        unit: of the numbers in it.
        refers: the `TABLE.column` whose values it holds.
        key: whether the format declares it PRIMARY KEY.
    """
    info = {"unit": unit, "refers": refers}
    return mapped_column(
        name, type_(), doc=doc, info=info, primary_key=key, nullable=True, autoincrement=False
    )


def written(when: str) -> dict[str, Any]:
    """Return the table arguments that say when exporters write a table."""
    return {"info": {"written": when}}


def string_id(name: str, doc: str, type_: type[TypeEngine[Any]] = INTEGER) -> MappedColumn[Any]:
    """Declare a column that holds an id of STRING_IDS."""
    return column(name, doc, type_, refers=STRINGS)


def enum_id(
    name: str, enum: str, doc: str, type_: type[TypeEngine[Any]] = INTEGER
) -> MappedColumn[Any]:
    """Declare a column that holds an id of the table `enum`."""
    return column(name, doc, type_, refers=f"{enum}.id")


def time_ns(name: str, doc: str, type_: type[TypeEngine[Any]] = INTEGER) -> MappedColumn[Any]:
    """Declare a point in time."""
    return column(name, doc, type_, unit=EPOCH_NS)


class Text:
    """The text behind a column that holds an id of STRING_IDS or of an enum.

    On an object it is the text, or None where the id is NULL or unknown to the file; each text
    is fetched once a session. On a class it is SQL: `select(ComputeTask.name)`,
    `.where(CannApi.type == "runtime")`.
    """

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    @overload
    def __get__(self, row: None, model: type[MsprofBase]) -> ColumnElement[str | None]: ...

    @overload
    def __get__(self, row: MsprofBase, model: type[MsprofBase]) -> str | None: ...

    def __get__(
        self, row: MsprofBase | None, model: type[MsprofBase]
    ) -> ColumnElement[str | None] | str | None:
        holder = getattr(model, self._attribute)
        table, _, key = holder.info["refers"].partition(".")
        target = MsprofBase.metadata.tables[table]
        text = target.c["value" if table == "STRING_IDS" else "name"]
        if row is None:
            subquery = select(text).where(target.c[key] == holder).correlate_except(target)
            return subquery.limit(1).scalar_subquery()
        number = getattr(row, self._attribute)
        if number is None:
            return None
        session = object_session(row)
        if session is None:
            raise DetachedInstanceError(f"{model.__name__} is detached: its texts are in the file")
        known: dict[tuple[str, int], str | None] = session.info.setdefault("msprof_texts", {})
        if (table, number) not in known:
            query = select(text).where(target.c[key] == number).limit(1)
            known[table, number] = session.scalar(query)
        return known[table, number]


class RowIdentity:
    """Mixin for tables without a key: the ORM tells their rows apart by SQLite's rowid.

    The column is SQLite's own: it is in no CREATE TABLE, and a view that stands for such a
    table has to offer a column of that name.
    """

    rowid: Mapped[int] = mapped_column(
        "rowid", INTEGER, system=True, doc="SQLite's number of the row"
    )

    @declared_attr.directive
    @classmethod
    def __mapper_args__(cls) -> dict[str, Any]:
        return {"primary_key": [cls.rowid]}


class Interval:
    """Mixin for tables with startNs and endNs."""

    start_ns: Any
    end_ns: Any

    @hybrid_property
    def duration_ns(self) -> int | None:
        """The time from start to end in ns, NULL where either is; also usable in queries."""
        if self.start_ns is None or self.end_ns is None:
            return None
        return int(self.end_ns - self.start_ns)

    @duration_ns.inplace.expression
    @classmethod
    def _duration_expression(cls) -> ColumnElement[int | None]:
        return cls.end_ns - cls.start_ns  # type: ignore[no-any-return]
