"""The nine tables of constants. What they hold at which revision is in the frozen schemas."""

from __future__ import annotations

from typing import Any

from sqlalchemy import TEXT
from sqlalchemy.orm import Mapped

from unified_prof.models import catalogue
from unified_prof.models.msprof.base import MsprofBase, column

_ALWAYS: dict[str, Any] = {"info": {"written": "always; the rows are constants"}}


def contents(table: str, revision: str = "latest") -> dict[int, str]:
    """Return what an ENUM_ table holds at a revision: id -> name; empty before it existed."""
    rows = catalogue.load(catalogue.MSPROF, revision).rows.get(table, ())
    return {int(str(number)): str(name) for number, name in rows}


class ApiType(MsprofBase):
    """Levels of the host's software stack that API calls belong to.

    torch_npu adds 50001 op, 50002 queue, 50003 trace and 50004 mstx.
    """

    __tablename__ = "ENUM_API_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the level", key=True)
    name: Mapped[str | None] = column("name", "the level", TEXT)


class Module(MsprofBase):
    """Components of the driver and of CANN that allocate device memory."""

    __tablename__ = "ENUM_MODULE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the component, given by the driver", key=True)
    name: Mapped[str | None] = column("name", "the component", TEXT)


class HcclDataType(MsprofBase):
    """Types of the elements that collectives move."""

    __tablename__ = "ENUM_HCCL_DATA_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the type", key=True)
    name: Mapped[str | None] = column("name", "the type", TEXT)


class HcclLinkType(MsprofBase):
    """Physical links between devices."""

    __tablename__ = "ENUM_HCCL_LINK_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the link type", key=True)
    name: Mapped[str | None] = column("name", "the link type", TEXT)


class HcclTransportType(MsprofBase):
    """Engines that move the data of collectives."""

    __tablename__ = "ENUM_HCCL_TRANSPORT_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the transport", key=True)
    name: Mapped[str | None] = column("name", "the transport", TEXT)


class HcclRdmaType(MsprofBase):
    """What an RDMA transfer of a collective is for."""

    __tablename__ = "ENUM_HCCL_RDMA_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the purpose", key=True)
    name: Mapped[str | None] = column("name", "the purpose", TEXT)


class MstxEventType(MsprofBase):
    """Kinds of marks that an application sets with mstx."""

    __tablename__ = "ENUM_MSTX_EVENT_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the kind", key=True)
    name: Mapped[str | None] = column("name", "the kind", TEXT)


class MemcpyOperation(MsprofBase):
    """Directions of memory copies."""

    __tablename__ = "ENUM_MEMCPY_OPERATION"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the direction", key=True)
    name: Mapped[str | None] = column("name", "the direction", TEXT)


class OverlapType(MsprofBase):
    """What the intervals of OVERLAP_ANALYSIS are filled with."""

    __tablename__ = "ENUM_OVERLAP_ANALYSIS_TYPE"
    __table_args__ = _ALWAYS
    id: Mapped[int] = column("id", "number of the kind", key=True)
    name: Mapped[str | None] = column("name", "the kind", TEXT)
