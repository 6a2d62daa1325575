"""The msprof database at its newest revision, as SQLAlchemy models for reading.

`MSPROF_MODELS` has what msprof writes in the order of its schema, `PYTORCH_MODELS` what
torch_npu appends. Older files are read through the same models: the store shows them in the
newest shape.
"""

from unified_prof.models.msprof.base import MsprofBase
from unified_prof.models.msprof.cores import AicoreFrequency, SamplePmuSummary, SamplePmuTimeline
from unified_prof.models.msprof.enums import (
    ApiType,
    HcclDataType,
    HcclLinkType,
    HcclRdmaType,
    HcclTransportType,
    MemcpyOperation,
    Module,
    MstxEventType,
    OverlapType,
)
from unified_prof.models.msprof.host import (
    CannApi,
    CpuUsage,
    HostDiskUsage,
    HostMemoryUsage,
    HostNetworkUsage,
    MstxEvent,
    OsrtApi,
)
from unified_prof.models.msprof.links import Hccs, NetdevStats, Nic, Pcie, Roce, Sio, Ub
from unified_prof.models.msprof.memory import (
    AccPmu,
    Ddr,
    Hbm,
    Llc,
    NpuMemory,
    NpuModuleMemory,
    NpuOpMemory,
    Qos,
    SocBandwidthLevel,
)
from unified_prof.models.msprof.pytorch import (
    GcRecord,
    MemoryRecord,
    OpMemory,
    PytorchApi,
    PytorchCallchain,
    PytorchConnection,
    StepTime,
)
from unified_prof.models.msprof.session import (
    Host,
    MetaData,
    Npu,
    RankDevice,
    SessionTime,
    StringId,
)
from unified_prof.models.msprof.tasks import (
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

__all__ = [  # noqa: RUF022 (the order of the schema: the tuples below are made of it)
    "StringId",
    "SessionTime",
    "Npu",
    "RankDevice",
    "Host",
    "Task",
    "ComputeTask",
    "CommunicationScheduleTask",
    "CommunicationTask",
    "CommunicationOp",
    "CannApi",
    "NpuMemory",
    "NpuModuleMemory",
    "NpuOpMemory",
    "Nic",
    "Roce",
    "Hbm",
    "Ddr",
    "Llc",
    "TaskPmu",
    "SamplePmuTimeline",
    "SamplePmuSummary",
    "Pcie",
    "Hccs",
    "NetdevStats",
    "AccPmu",
    "SocBandwidthLevel",
    "MetaData",
    "AicoreFrequency",
    "MstxEvent",
    "MemcpyInfo",
    "CpuUsage",
    "HostMemoryUsage",
    "HostDiskUsage",
    "HostNetworkUsage",
    "OsrtApi",
    "OverlapInterval",
    "Qos",
    "DpuTask",
    "Ub",
    "Sio",
    "CcuTask",
    "ApiType",
    "Module",
    "HcclDataType",
    "HcclLinkType",
    "HcclTransportType",
    "HcclRdmaType",
    "MstxEventType",
    "MemcpyOperation",
    "OverlapType",
    "PytorchApi",
    "PytorchConnection",
    "PytorchCallchain",
    "StepTime",
    "MemoryRecord",
    "OpMemory",
    "GcRecord",
    "MsprofBase",
    "MSPROF_MODELS",
    "PYTORCH_MODELS",
]

_MODELS: tuple[type[MsprofBase], ...] = tuple(
    globals()[name] for name in __all__[: __all__.index(MsprofBase.__name__)]
)
MSPROF_MODELS = tuple(model for model in _MODELS if model.__module__ != PytorchApi.__module__)
PYTORCH_MODELS = tuple(model for model in _MODELS if model.__module__ == PytorchApi.__module__)
