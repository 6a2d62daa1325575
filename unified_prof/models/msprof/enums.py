"""The nine tables of constants. What they hold at which revision is in the frozen schemas."""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import TEXT
from sqlalchemy.orm import Mapped, declared_attr

from unified_prof.models import catalogue
from unified_prof.models.msprof.base import MsprofBase, column, written


def contents(table: str, revision: str = "latest") -> dict[int, str]:
    """Return what an ENUM_ table holds at a revision: id -> name; empty before it existed."""
    rows = catalogue.load(catalogue.MSPROF, revision).rows.get(table, ())
    return {int(str(number)): str(name) for number, name in rows}


class Constants:
    """Mixin for tables of constants: a number and the name that stands for it."""

    __table_args__ = written("always; the rows are constants")
    _what: ClassVar[str]
    """What one row is."""
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
    """What an RDMA transfer of a collective is for."""

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
    """What the intervals of OVERLAP_ANALYSIS are filled with."""

    __tablename__ = "ENUM_OVERLAP_ANALYSIS_TYPE"
    _what = "kind"
