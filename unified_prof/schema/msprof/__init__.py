"""SQLAlchemy models for reading msprof databases at the newest revision.

`MSPROF_MODELS` has the tables of msprof in the order of its schema, `PYTORCH_MODELS` those that
torch_npu appends. Older files are read through the same models, because the reader presents them in
the newest shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from unified_prof.schema import catalogue
from unified_prof.schema.msprof.host import (
    CannApi,
    CpuUsage,
    GcRecord,
    HostDiskUsage,
    HostMemoryUsage,
    HostNetworkUsage,
    MemoryRecord,
    MstxEvent,
    OpMemory,
    OsrtApi,
    PytorchApi,
    PytorchCallchain,
    PytorchConnection,
    StepTime,
)
from unified_prof.schema.msprof.links import Hccs, NetdevStats, Nic, Pcie, Roce, Sio, Ub
from unified_prof.schema.msprof.memory import (
    AccPmu,
    AicoreFrequency,
    Ddr,
    Hbm,
    Llc,
    NpuMemory,
    NpuModuleMemory,
    NpuOpMemory,
    Qos,
    SamplePmuSummary,
    SamplePmuTimeline,
    SocBandwidthLevel,
)
from unified_prof.schema.msprof.session import (
    EPOCH_NS,
    STRINGS,
    ApiType,
    HcclDataType,
    HcclLinkType,
    HcclRdmaType,
    HcclTransportType,
    Host,
    MemcpyOperation,
    MetaData,
    Module,
    MsprofBase,
    MstxEventType,
    Npu,
    OverlapType,
    RankDevice,
    SessionTime,
    StringId,
)
from unified_prof.schema.msprof.tasks import (
    CcuTask,
    CommunicationOp,
    CommunicationScheduleTask,
    CommunicationTask,
    ComputeTask,
    DpuTask,
    MemcpyInfo,
    OverlapInterval,
    Task,
    TaskPmu,
)

MSPROF_MODELS: tuple[type[MsprofBase], ...] = (
    StringId,
    SessionTime,
    Npu,
    RankDevice,
    Host,
    Task,
    ComputeTask,
    CommunicationScheduleTask,
    CommunicationTask,
    CommunicationOp,
    CannApi,
    NpuMemory,
    NpuModuleMemory,
    NpuOpMemory,
    Nic,
    Roce,
    Hbm,
    Ddr,
    Llc,
    TaskPmu,
    SamplePmuTimeline,
    SamplePmuSummary,
    Pcie,
    Hccs,
    NetdevStats,
    AccPmu,
    SocBandwidthLevel,
    MetaData,
    AicoreFrequency,
    MstxEvent,
    MemcpyInfo,
    CpuUsage,
    HostMemoryUsage,
    HostDiskUsage,
    HostNetworkUsage,
    OsrtApi,
    OverlapInterval,
    Qos,
    DpuTask,
    Ub,
    Sio,
    CcuTask,
    ApiType,
    Module,
    HcclDataType,
    HcclLinkType,
    HcclTransportType,
    HcclRdmaType,
    MstxEventType,
    MemcpyOperation,
    OverlapType,
)
"""Tables of msprof, in the order of its schema."""

PYTORCH_MODELS: tuple[type[MsprofBase], ...] = (
    PytorchApi,
    PytorchConnection,
    PytorchCallchain,
    StepTime,
    MemoryRecord,
    OpMemory,
    GcRecord,
)
"""Tables that torch_npu appends."""

__all__ = [
    "MSPROF_MODELS",
    "PYTORCH_MODELS",
    "AccPmu",
    "AicoreFrequency",
    "ApiType",
    "CannApi",
    "CcuTask",
    "CommunicationOp",
    "CommunicationScheduleTask",
    "CommunicationTask",
    "ComputeTask",
    "CpuUsage",
    "Ddr",
    "DpuTask",
    "GcRecord",
    "Hbm",
    "HcclDataType",
    "HcclLinkType",
    "HcclRdmaType",
    "HcclTransportType",
    "Hccs",
    "Host",
    "HostDiskUsage",
    "HostMemoryUsage",
    "HostNetworkUsage",
    "Llc",
    "MemcpyInfo",
    "MemcpyOperation",
    "MemoryRecord",
    "MetaData",
    "Module",
    "MsprofBase",
    "MstxEvent",
    "MstxEventType",
    "NetdevStats",
    "Nic",
    "Npu",
    "NpuMemory",
    "NpuModuleMemory",
    "NpuOpMemory",
    "OpMemory",
    "OsrtApi",
    "OverlapInterval",
    "OverlapType",
    "Pcie",
    "PytorchApi",
    "PytorchCallchain",
    "PytorchConnection",
    "Qos",
    "RankDevice",
    "Roce",
    "SamplePmuSummary",
    "SamplePmuTimeline",
    "SessionTime",
    "Sio",
    "SocBandwidthLevel",
    "StepTime",
    "StringId",
    "Task",
    "TaskPmu",
    "Ub",
]


# Tables of collectives to which columns refer, with the first revision of each.
_COLLECTIVE_ENUMS = "ENUM_HCCL_"
_COLLECTIVE_ENUMS_SINCE = "1.0.0_20240521"


@dataclass(frozen=True, slots=True)
class Reference:
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
    for model in (*MSPROF_MODELS, *PYTORCH_MODELS):
        for column in MsprofBase.metadata.tables[model.__tablename__].c:
            refers = column.info.get("refers")
            first = since(model.__tablename__, column.name)
            if refers is None or (first is not None and order(revision) < order(first)):
                continue
            if refers.startswith(_COLLECTIVE_ENUMS) and order(revision) < order(
                _COLLECTIVE_ENUMS_SINCE
            ):
                refers = STRINGS
            table, _, target = refers.partition(".")
            found.append(Reference(model.__tablename__, column.name, table, target))
    return tuple(found)
