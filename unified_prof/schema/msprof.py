"""SQLAlchemy models for reading msprof databases at the newest revision.

`MODELS` has the tables of msprof and those that torch_npu appends. They are built from the frozen
SQL of the newest revision and from `schemas/msprof.txt`, which has their classes and documentation.
Older files are read through the same models, because the reader presents them in the newest shape.

The format declares few keys, no NOT NULL and no foreign keys, and neither do the models; the
column to which a column refers is in its `info`. Attributes are named like the columns, in
snake_case; a column with a string id ends in `_id`, and the attribute without that suffix is the
text. The contents of the nine enum tables at each revision are in the frozen schemas.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from sqlalchemy import INTEGER, REAL, TEXT, ColumnElement, Index, select
from sqlalchemy import MetaData as SqlMetaData
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    declared_attr,
    mapped_column,
    object_session,
    relationship,
)
from sqlalchemy.orm.exc import DetachedInstanceError
from sqlalchemy.types import UserDefinedType

from unified_prof.schema import catalogue


class NUMERIC(UserDefinedType[Any]):
    """SQLite's NUMERIC type: whole numbers are 64-bit integers, other numbers are floats.

    SQLAlchemy's Numeric converts every parameter to float, which loses nanoseconds.
    """

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the name of the type in DDL."""
        return "NUMERIC"


class MsprofBase(DeclarativeBase):
    """Base class of the models of msprof databases at the newest revision."""

    metadata = SqlMetaData()


class Text:
    """Attribute that returns the text for an id column (STRING_IDS or an enum).

    On an object, the value is the text, or None if the id is NULL or not in the file; each text is
    fetched once per session. On a class, the value is an SQL expression:
    `select(ComputeTask.name)`, `.where(CannApi.type == "runtime")`.
    """

    def __set_name__(self, model: type, name: str) -> None:
        self._attribute = f"{name}_id"

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
            raise DetachedInstanceError(
                f"{model.__name__} is detached from its session; its texts cannot be read"
            )
        known: dict[tuple[str, int], str | None] = session.info.setdefault("msprof_texts", {})
        if (table, number) not in known:
            query = select(text).where(target.c[key] == number).limit(1)
            known[table, number] = session.scalar(query)
        return known[table, number]


class RowIdentity:
    """Mixin for tables without a key, whose rows the ORM identifies by SQLite's rowid.

    SQLite provides the column: it is not in CREATE TABLE, and a view that replaces such a table
    must have a column with that name.
    """

    rowid: Mapped[int] = mapped_column(
        "rowid", INTEGER, system=True, doc="rowid assigned by SQLite"
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
        """Duration in ns, NULL if start or end is NULL; can be used in queries."""
        if self.start_ns is None or self.end_ns is None:
            return None
        return int(self.end_ns - self.start_ns)

    @duration_ns.inplace.expression
    @classmethod
    def _duration_expression(cls) -> ColumnElement[int | None]:
        return cls.end_ns - cls.start_ns  # type: ignore[no-any-return]


class _IntervalInTexts:
    """Mixin for PYTORCH_API, whose times are texts."""

    start_ns_text: Any
    end_ns_text: Any

    @property
    def start_ns(self) -> int | None:
        """Start, ns since 1970."""
        return None if self.start_ns_text is None else int(self.start_ns_text)

    @property
    def end_ns(self) -> int | None:
        """End, ns since 1970."""
        return None if self.end_ns_text is None else int(self.end_ns_text)

    @property
    def duration_ns(self) -> int | None:
        """Duration in ns."""
        start, end = self.start_ns, self.end_ns
        return None if start is None or end is None else end - start


def _task_name(task: Any) -> str | None:
    """Name of the operator or, for other tasks, their type, as viewers display it."""
    part = task.compute or task.communication or task.schedule
    name: str | None = (part.name if part else None) or task.task_type
    return name


def _operator_name(collective: Any) -> str | None:
    """Name of the collective, in the same form as for other operators."""
    name: str | None = collective.op_name
    return name


_TYPES: dict[str, Any] = {"INTEGER": INTEGER, "REAL": REAL, "TEXT": TEXT, "NUMERIC": NUMERIC}
# `Model.attribute`: target, condition, order of a list (False: any, None: one object), meaning.
_RELATIONS: dict[str, tuple[str, str, str | Literal[False] | None, str]] = {
    "Task.compute": (
        "ComputeTask",
        "foreign(Task.global_task_id) == ComputeTask.global_task_id",
        None,
        "the operator that it executes",
    ),
    "Task.schedule": (
        "CommunicationScheduleTask",
        "foreign(Task.global_task_id) == CommunicationScheduleTask.global_task_id",
        None,
        "the scheduling task of collectives that it executes",
    ),
    "Task.communication": (
        "CommunicationTask",
        "Task.global_task_id == foreign(CommunicationTask.global_task_id)",
        None,
        "the step of a collective that it executes",
    ),
    "Task.copy": (
        "MemcpyInfo",
        "Task.global_task_id == foreign(MemcpyInfo.global_task_id)",
        None,
        "the memory copy that it executes",
    ),
    "Task.pmu": (
        "TaskPmu",
        "Task.global_task_id == foreign(TaskPmu.global_task_id)",
        "TaskPmu.rowid",
        "values of the hardware counters during it",
    ),
    "Task.apis": (
        "CannApi",
        "Task.connection_id == foreign(CannApi.connection_id)",
        False,
        "the host calls that launched it",
    ),
    "ComputeTask.task": (
        "Task",
        "ComputeTask.global_task_id == foreign(Task.global_task_id)",
        None,
        "the task with its time, device and stream",
    ),
    "CommunicationScheduleTask.task": (
        "Task",
        "CommunicationScheduleTask.global_task_id == foreign(Task.global_task_id)",
        None,
        "the task with its time, device and stream",
    ),
    "CommunicationTask.task": (
        "Task",
        "foreign(CommunicationTask.global_task_id) == remote(Task.global_task_id)",
        None,
        "the task with its time, device and stream",
    ),
    "CommunicationTask.op": (
        "CommunicationOp",
        "foreign(CommunicationTask.op_id) == CommunicationOp.op_id",
        None,
        "the collective to which the step belongs",
    ),
    "CommunicationOp.tasks": (
        "CommunicationTask",
        "CommunicationOp.op_id == foreign(CommunicationTask.op_id)",
        "CommunicationTask.rowid",
        "its steps",
    ),
    "CannApi.tasks": (
        "Task",
        "CannApi.connection_id == foreign(Task.connection_id)",
        "Task.start_ns",
        "the tasks that it launched",
    ),
    "PytorchApi.frames": (
        "PytorchCallchain",
        "PytorchApi.callchain_id == foreign(PytorchCallchain.id)",
        "PytorchCallchain.stack_depth",
        "the call stack, innermost frame first",
    ),
}


def _model(described: catalogue.Description) -> type[MsprofBase]:
    spec = catalogue.newest_tables()[described.table]
    indexes = [Index(name, *catalogue.index_columns(sql)) for name, sql in spec.indexes]
    body: dict[str, Any] = {
        "__tablename__": spec.name,
        "__doc__": described.meaning,
        "__table_args__": (*indexes, {"info": {"written": described.written}}),
    }
    for column in spec.columns:
        about = described.columns[column.name]
        name = re.sub(r"(?<=[a-z0-9])[A-Z]", lambda found: f"_{found[0].lower()}", column.name)
        if about.is_text_id:
            text = name.removesuffix("_id")
            name, body[text] = f"{text}_id", Text()
        elif about.unit == catalogue.EPOCH_NS and column.type == "TEXT":
            name += "_text"
        body[name] = mapped_column(
            column.name,
            _TYPES[column.type](),
            doc=about.meaning,
            info={"unit": about.unit, "refers": about.refers},
            primary_key=bool(column.primary_key),
            nullable=True,
            autoincrement=False,
        )
    for relation, (target, condition, order, doc) in _RELATIONS.items():
        model, _, name = relation.partition(".")
        if model == described.model:
            body[name] = relationship(
                target,
                primaryjoin=condition,
                viewonly=True,
                uselist=order is not None,
                order_by=order or False,
                doc=doc,
            )
    bases: list[type] = [MsprofBase]
    if not any(column.primary_key for column in spec.columns):
        bases.insert(0, RowIdentity)
    if "start_ns" in body and "end_ns" in body:
        bases.insert(0, Interval)
    if "start_ns_text" in body:
        bases.insert(0, _IntervalInTexts)
    if named := {"Task": _task_name, "CommunicationOp": _operator_name}.get(described.model):
        body["name"] = property(named)
    return type(described.model, tuple(bases), body)


MODELS: dict[str, type[MsprofBase]] = {
    table: _model(described) for table, described in catalogue.descriptions().items()
}
"""Model of each table."""

_BY_NAME = {model.__name__: model for model in MODELS.values()}


def __getattr__(name: str) -> Any:
    """Return a model by the name of its class, such as `Task`."""
    if name not in _BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _BY_NAME[name]
