"""Tables about the device's cores, sampled: frequency and hardware counters."""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from unified_prof.models.msprof.base import (
    MHZ,
    NUMERIC,
    PERCENT,
    MsprofBase,
    RowIdentity,
    Text,
    column,
    string_id,
    time_ns,
    written,
)

_SAMPLED = "--ai-core with --aic-mode=sample-based; --aic-metrics says which counters"


class SamplePmuTimeline(RowIdentity, MsprofBase):
    """Activity of one core in one sampling interval."""

    __tablename__ = "SAMPLE_PMU_TIMELINE"
    __table_args__ = written(_SAMPLED)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the sample")
    total_cycle: Mapped[int | None] = column("totalCycle", "cycles in the interval")
    usage: Mapped[float | None] = column(
        "usage",
        "share of the interval that it was busy; the first sample is huge",
        NUMERIC,
        unit=PERCENT,
    )
    freq: Mapped[float | None] = column("freq", "its frequency", NUMERIC, unit=MHZ)
    core_id: Mapped[int | None] = column("coreId", "number of the core")
    core_type_id: Mapped[int | None] = string_id("coreType", "AIC or AIV")

    core_type = Text("core_type_id")


class SamplePmuSummary(RowIdentity, MsprofBase):
    """One hardware counter of one core over the whole recording."""

    __tablename__ = "SAMPLE_PMU_SUMMARY"
    __table_args__ = written(_SAMPLED)
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    metric_id: Mapped[int | None] = string_id("metric", "the counter")
    value: Mapped[float | None] = column("value", "its value, in the counter's own unit", NUMERIC)
    core_id: Mapped[int | None] = column("coreId", "number of the core")
    core_type_id: Mapped[int | None] = string_id("coreType", "AIC or AIV")

    metric = Text("metric_id")
    core_type = Text("core_type_id")


class AicoreFrequency(RowIdentity, MsprofBase):
    """One change of the cores' frequency; the first row is the start of the recording."""

    __tablename__ = "AICORE_FREQ"
    __table_args__ = written("wherever a device was recorded")
    device_id: Mapped[int | None] = column("deviceId", "the device", refers="NPU_INFO.id")
    timestamp_ns: Mapped[int | None] = time_ns("timestampNs", "the change", NUMERIC)
    freq: Mapped[int | None] = column("freq", "frequency from then on", unit=MHZ)
    die_id: Mapped[int | None] = column("dieId", "die of the device; -1: not told apart", NUMERIC)
