"""Base classes of the msprof models, and models of tables about the recording and of enums.

The format declares few keys, no NOT NULL and no foreign keys, and neither do the models; the
column to which a column refers is in its `info`. Attributes are named like the columns, in
snake_case; a column with a string id ends in `_id`, and the attribute without that suffix is the
text. The contents of the nine enum tables at each revision are in the frozen schemas.
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

STRINGS = "STRING_IDS.id"
EPOCH_NS = "ns since 1970"
BYTES = "bytes"
BYTES_PER_S = "bytes/s"
MHZ = "MHz"
PERCENT = "%"


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


def column(
    name: str,
    doc: str,
    type_: type[TypeEngine[Any]] = INTEGER,
    *,
    unit: str | None = None,
    refers: str | None = None,
    key: bool = False,
) -> MappedColumn[Any]:
    """Declare a column; like every column of the format, it is nullable.

    Args:
        name: column name, as the vendor spells it.
        doc: meaning of the column.
        type_: declared type.
        unit: unit of the numbers in the column.
        refers: the `TABLE.column` to which the values refer.
        key: True if the format declares it PRIMARY KEY.
    """
    info = {"unit": unit, "refers": refers}
    return mapped_column(
        name, type_(), doc=doc, info=info, primary_key=key, nullable=True, autoincrement=False
    )


def written(when: str) -> dict[str, Any]:
    """Return the table arguments that document when exporters write the table."""
    return {"info": {"written": when}}


def string_id(
    name: str, doc: str, type_: type[TypeEngine[Any]] = INTEGER, *, refers: str = STRINGS
) -> tuple[MappedColumn[Any], Text]:
    """Declare a column with ids of STRING_IDS, and the attribute with its texts."""
    return column(name, doc, type_, refers=refers), Text()


def enum_id(
    name: str, enum: str, doc: str, type_: type[TypeEngine[Any]] = INTEGER
) -> tuple[MappedColumn[Any], Text]:
    """Declare a column with ids of the table `enum`, and the attribute with its texts."""
    return string_id(name, doc, type_, refers=f"{enum}.id")


def time_ns(name: str, doc: str, type_: type[TypeEngine[Any]] = INTEGER) -> MappedColumn[Any]:
    """Declare a column with points in time."""
    return column(name, doc, type_, unit=EPOCH_NS)


def rate(name: str, doc: str) -> MappedColumn[Any]:
    """Declare a column with a transfer rate."""
    return column(name, doc, NUMERIC, unit=BYTES_PER_S)


class Text:
    """Attribute that returns the text for an id column (STRING_IDS or an enum).

    On an object, the value is the text, or None if the id is NULL or not in the file; each text is
    fetched once per session. On a class, the value is an SQL expression:
    `select(ComputeTask.name)`, `.where(CannApi.type == "runtime")`.
    """

    def __set_name__(self, model: type, name: str) -> None:
        self._attribute = f"{name}_id"

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


_ALWAYS = "always"


class StringId(MsprofBase):
    """Texts of the file, to which other tables refer by id.

    This table is written last, so its presence marks a complete file. Ids count from 0 in the order
    of first use. If torch_npu appended to the file, texts are not unique: its ids begin at 2**28,
    those of memory records at 2**29, and the empty text may have the id 4294967295.
    """

    __tablename__ = "STRING_IDS"
    __table_args__ = written(_ALWAYS)
    id = column("id", "number of the text", key=True)
    value = column("value", "the text; N/A is an ordinary text", TEXT)


class SessionTime(RowIdentity, MsprofBase):
    """Start and end of the recording, with microsecond resolution; one row.

    If a recording was not stopped properly, its end is start + 30 minutes (since 2026-05-06) or
    -616 (before; an overflowed maximum).
    """

    __tablename__ = "SESSION_TIME_INFO"
    __table_args__ = written(_ALWAYS)
    start_time_ns = time_ns("startTimeNs", "start of the recording")
    end_time_ns = time_ns("endTimeNs", "end of the recording")


class Npu(RowIdentity, MsprofBase):
    """Recorded devices, one row each; (-1, UNKNOWN) if no device was recorded."""

    __tablename__ = "NPU_INFO"
    __table_args__ = written(_ALWAYS)
    id = column("id", "number of the device on its host; -1: not recorded")
    name = column("name", "model of the chip, such as Ascend910B", TEXT)


class RankDevice(RowIdentity, MsprofBase):
    """Device of each rank of a distributed job."""

    __tablename__ = "RANK_DEVICE_MAP"
    __table_args__ = written(f"{_ALWAYS}; msprof writes rank -1, torch_npu the actual rank")
    rank_id = column("rankId", "rank in the job; -1: unknown")
    device_id = column(
        "deviceId", "number of the device on its host; -1: not recorded", refers="NPU_INFO.id"
    )


class Host(RowIdentity, MsprofBase):
    """Host machine of the devices; one row."""

    __tablename__ = "HOST_INFO"
    __table_args__ = written(_ALWAYS)
    host_uid = column("hostUid", "unique number of the machine, as text; 0: unknown", TEXT)
    host_name = column("hostName", "network name of the machine", TEXT)


class MetaData(RowIdentity, MsprofBase):
    """Metadata of the file, as names and values.

    msprof writes SCHEMA_VERSION and its three parts; uprof adds UPROF_SCHEMA_REVISION; torch_npu
    adds ENV_VARIABLES and the metadata that the training script passed to its profiler.
    """

    __tablename__ = "META_DATA"
    __table_args__ = written(_ALWAYS)
    name = column("name", "name of the value", TEXT)
    value = column("value", "the value; mappings and lists are JSON", TEXT)


class Constants:
    """Mixin for enum tables, which map numbers to names."""

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
    """Levels of the host software stack to which API calls belong.

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
    """Element types of collectives."""

    __tablename__ = "ENUM_HCCL_DATA_TYPE"
    _what = "type"


class HcclLinkType(Constants, MsprofBase):
    """Physical links between devices."""

    __tablename__ = "ENUM_HCCL_LINK_TYPE"
    _what = "link type"


class HcclTransportType(Constants, MsprofBase):
    """Engines that transfer the data of collectives."""

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
