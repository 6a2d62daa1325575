"""Tables about the recording itself: its strings, its time, the machine it ran on."""

from __future__ import annotations

from sqlalchemy import TEXT
from sqlalchemy.orm import Mapped

from unified_prof.models.msprof.base import MsprofBase, RowIdentity, column, time_ns, written

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
