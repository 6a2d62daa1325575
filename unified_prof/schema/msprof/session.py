"""Base classes of the models of the msprof database.

The format declares few keys, no NOT NULL and no foreign keys, and neither do the models: what a
column refers to stands in its `info`. Attribute names are the columns' in snake_case; a column
that holds an id of a text ends in `_id`, and the attribute without that ending is the text.

Tables about the recording itself: its strings, its time, the machine it ran on.

The nine tables of constants. What they hold at which revision is in the frozen schemas.
"""

from __future__ import annotations

from typing import Any, ClassVar, overload

from sqlalchemy import INTEGER, TEXT, ColumnElement, select
from sqlalchemy import MetaData as SqlMetaData
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

from unified_prof.schema import catalogue

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

    metadata = SqlMetaData()


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


_ALWAYS = "always"


class StringId(MsprofBase):
    """Every text of the file, once; other tables hold its id.

    The last table to be written: its presence marks a complete file. Ids count from 0 in the
    order of first use. Where torch_npu appended to the file the texts are not unique: its own
    ids begin at 2**28, those of memory records at 2**29, and the empty text may be 4294967295.
    """

    __tablename__ = "STRING_IDS"
    __table_args__ = written(_ALWAYS)
    id: Mapped[int] = column("id", "number of the text", key=True)
    value: Mapped[str | None] = column("value", "the text; N/A is an ordinary one", TEXT)


class SessionTime(RowIdentity, MsprofBase):
    """When the recording began and ended; one row, to the microsecond.

    A recording that was not stopped properly has start + 30 minutes as its end since
    2026-05-06, and -616 (a wrapped maximum) before.
    """

    __tablename__ = "SESSION_TIME_INFO"
    __table_args__ = written(_ALWAYS)
    start_time_ns: Mapped[int | None] = time_ns("startTimeNs", "start of the recording")
    end_time_ns: Mapped[int | None] = time_ns("endTimeNs", "end of the recording")


class Npu(RowIdentity, MsprofBase):
    """The devices that were recorded, one row each; (-1, UNKNOWN) where none was."""

    __tablename__ = "NPU_INFO"
    __table_args__ = written(_ALWAYS)
    id: Mapped[int | None] = column("id", "number of the device in its host; -1: not recorded")
    name: Mapped[str | None] = column("name", "model of the chip, such as Ascend910B", TEXT)


class RankDevice(RowIdentity, MsprofBase):
    """Which rank of a distributed job ran on which device."""

    __tablename__ = "RANK_DEVICE_MAP"
    __table_args__ = written(f"{_ALWAYS}; msprof writes rank -1, torch_npu the real one")
    rank_id: Mapped[int | None] = column("rankId", "rank in the job; -1: not known")
    device_id: Mapped[int | None] = column(
        "deviceId", "device in this host; -1: not recorded", refers="NPU_INFO.id"
    )


class Host(RowIdentity, MsprofBase):
    """The machine the devices sit in; one row."""

    __tablename__ = "HOST_INFO"
    __table_args__ = written(_ALWAYS)
    host_uid: Mapped[str | None] = column(
        "hostUid", "unique number of the machine, as text; 0: not known", TEXT
    )
    host_name: Mapped[str | None] = column("hostName", "network name of the machine", TEXT)


class MetaData(RowIdentity, MsprofBase):
    """Names and values about the file.

    msprof writes SCHEMA_VERSION and its three parts; uprof adds UPROF_SCHEMA_REVISION;
    torch_npu adds ENV_VARIABLES and what the training script told its profiler.
    """

    __tablename__ = "META_DATA"
    __table_args__ = written(_ALWAYS)
    name: Mapped[str | None] = column("name", "what the value is", TEXT)
    value: Mapped[str | None] = column("value", "the value; mappings and lists are JSON", TEXT)


def contents(table: str, revision: str = "latest") -> dict[int, str]:
    """Return what an ENUM_ table holds at a revision: id -> name; empty before it existed."""
    rows = catalogue.load(catalogue.MSPROF, revision).rows.get(table, ())
    return {int(str(number)): str(name) for number, name in rows}


class Constants:
    """Mixin for tables of constants: a number and the name that stands for it."""

    __table_args__ = written("always; the rows are constants")
    _what: ClassVar[str]
    """Description of one row."""
    _given_by: ClassVar[str] = ""

    @declared_attr
    @classmethod
    def id(cls) -> Mapped[int]:
        """The number."""
        return column("id", f"number of the {cls._what}{cls._given_by}", key=True)

    @declared_attr
    @classmethod
    def name(cls) -> Mapped[str | None]:
        """The name."""
        return column("name", f"the {cls._what}", TEXT)


class ApiType(Constants, MsprofBase):
    """Levels of the host's software stack that API calls belong to.

    torch_npu adds 50001 op, 50002 queue, 50003 trace and 50004 mstx.
    """

    __tablename__ = "ENUM_API_TYPE"
    _what = "level"


class Module(Constants, MsprofBase):
    """Components of the driver and of CANN that allocate device memory."""

    __tablename__ = "ENUM_MODULE"
    _what = "component"
    _given_by = ", given by the driver"


class HcclDataType(Constants, MsprofBase):
    """Types of the elements that collectives move."""

    __tablename__ = "ENUM_HCCL_DATA_TYPE"
    _what = "type"


class HcclLinkType(Constants, MsprofBase):
    """Physical links between devices."""

    __tablename__ = "ENUM_HCCL_LINK_TYPE"
    _what = "link type"


class HcclTransportType(Constants, MsprofBase):
    """Engines that move the data of collectives."""

    __tablename__ = "ENUM_HCCL_TRANSPORT_TYPE"
    _what = "transport"


class HcclRdmaType(Constants, MsprofBase):
    """Purpose of an RDMA transfer of a collective."""

    __tablename__ = "ENUM_HCCL_RDMA_TYPE"
    _what = "purpose"


class MstxEventType(Constants, MsprofBase):
    """Kinds of marks that an application sets with mstx."""

    __tablename__ = "ENUM_MSTX_EVENT_TYPE"
    _what = "kind"


class MemcpyOperation(Constants, MsprofBase):
    """Directions of memory copies."""

    __tablename__ = "ENUM_MEMCPY_OPERATION"
    _what = "direction"


class OverlapType(Constants, MsprofBase):
    """Content of the intervals of OVERLAP_ANALYSIS."""

    __tablename__ = "ENUM_OVERLAP_ANALYSIS_TYPE"
    _what = "kind"
