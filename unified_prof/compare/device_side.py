"""One side of a comparison of devices: recordings summed up by what identifies their work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from unified_prof.compare import device_leaves
from unified_prof.compare.confidence import Sample
from unified_prof.compare.device_leaves import Leaves, Naming, joined, leaves_of
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.explain.roofline import peaks
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.recording import counters
from unified_prof.recording import source as provenance
from unified_prof.recording.calls import Labels
from unified_prof.recording.idle import REASONS
from unified_prof.recording.model import DeviceTime
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import NOTHING_KNOWN

PARTS: Final = ("compute", "exposed communication", "copies", *(f"idle {one}" for one in REASONS))
"""What the time of a step consists of; each moment is one of these."""

UNKNOWN_DEVICE: Final = "unknown device"
_GPU_VERSIONS: Final = {
    "cuda_runtime_version": "CUDA",
    "cuda_driver_version": "CUDA of the driver",
    "hip_runtime_version": "HIP",
}
_VERSIONS: Final = {
    "torch": "torch",
    "torch_npu": "torch_npu",
    "cuda": "CUDA",
    "rocm": "ROCm",
    "hip": "HIP",
    "cann": "CANN",
    "driver": "driver",
}


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Everything of one side that is compared."""

    label: str
    devices: tuple[str, ...]
    """The distinct names of its devices."""
    device_count: int
    """Devices that worked, of all recordings together."""
    recordings: int
    versions: tuple[tuple[str, str], ...]
    """torch, toolkit, driver: what was recorded of them."""
    steps: int | None
    """Steps of all recordings together; None: no step is known."""
    shares: int
    """What totals are divided by: steps, or recordings without any, each on each of its devices."""
    window_ns: int
    """The time of the steps (or from first to last work) on all devices together."""
    parts_ns: Mapping[str, int]
    """The same by PARTS, to the nanosecond."""
    leaves: Leaves
    limits: Device | None
    """What its devices can do at most; None: not known, or they are of several models."""
    outside_ns: int
    """Work that belongs to no step; it is not compared."""
    step_ns: Sample
    """How long each step took, until its device was done with it, recording by recording."""
    facts: Mapping[str, str]
    """Provenance of the first recording."""
    peak_bytes: tuple[int, ...]
    """Highest memory in use, of each recording that knows it."""
    remarks: tuple[str, ...] = ()

    @property
    def work_ns(self) -> int:
        """Time of all work that is compared, whatever ran at the same time."""
        return int(self.leaves.total_ns.sum())

    def same_figures(self, other: Side) -> bool:
        """Tell whether another side has the same times throughout, and the same work."""
        return (
            self.devices == other.devices
            and (self.steps, self.shares) == (other.steps, other.shares)
            and self.window_ns == other.window_ns
            and self.parts_ns == other.parts_ns
            and self.outside_ns == other.outside_ns
            and self.peak_bytes == other.peak_bytes
            and np.array_equal(self.step_ns.values, other.step_ns.values)
            and self.leaves.same_figures(other.leaves)
        )

    def per_share(self, total_ns: float) -> float:
        """Return a total as a step of one device has it on average."""
        return total_ns / self.shares


def read(label: str, analyses: Sequence[MsprofAnalysis], labels: Labels, naming: Naming) -> Side:
    """Sum up the recordings of one side. Where some of them have steps, only those count.

    Args:
        label: What to call the side.
        analyses: The recordings.
        labels: Texts of both sides; those of this one are added.
        naming: What work counts for.
    """
    every = [_part(analysis, labels, naming) for analysis in analyses]
    stepped = [part for part in every if part.step_ns]
    parts = stepped or every
    remarks = []
    if len(parts) < len(every):
        remarks.append(
            f"{len(every) - len(parts)} recordings of {label} have no steps and are left out"
        )
    devices = [name for part in parts for name in part.devices]
    return Side(
        label=label,
        devices=device_leaves.together(devices),
        device_count=len(devices),
        recordings=len(parts),
        versions=_versions([part.facts for part in parts]),
        facts=parts[0].facts,
        steps=sum(len(part.step_ns) for part in parts) if stepped else None,
        shares=max(1, sum(max(1, len(part.step_ns)) * len(part.devices) for part in parts)),
        window_ns=sum(part.window_ns for part in parts),
        parts_ns={name: sum(part.parts_ns[name] for part in parts) for name in PARTS},
        leaves=joined([part.leaves for part in parts]),
        limits=_one_of([part.limits for part in parts]),
        outside_ns=sum(part.outside_ns for part in parts),
        step_ns=Sample.of(
            [time for part in parts for time in part.step_ns], [len(part.step_ns) for part in parts]
        ),
        peak_bytes=tuple(part.peak_bytes for part in parts if part.peak_bytes is not None),
        remarks=(*remarks, *(f"{label}: {one}" for part in parts for one in part.remarks)),
    )


def has_framework(analyses: Sequence[MsprofAnalysis]) -> bool:
    """Tell, without reading them, whether a recording of a side, or its capture, has operations."""
    recordings = [analysis.recording for analysis in analyses]
    recordings += [one.captured_in for one in recordings if one.captured_in is not None]
    return any(
        "PYTORCH_API" in source.tables and source.rows("SELECT 1 FROM PYTORCH_API LIMIT 1")
        for source in (recording.source for recording in recordings)
    )


def models(analyses: Sequence[MsprofAnalysis]) -> frozenset[str]:
    """Return the models of device that the recordings of a side name."""
    return frozenset(
        str(name)
        for analysis in analyses
        for (name,) in analysis.recording.source.rows("SELECT name FROM NPU_INFO")
        if name not in NOTHING_KNOWN
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one recording has of its side."""

    devices: Sequence[str]
    facts: Mapping[str, str]
    step_ns: Sequence[int]
    window_ns: int
    parts_ns: Mapping[str, int]
    leaves: Leaves
    limits: Device | None
    outside_ns: int
    peak_bytes: int | None
    remarks: Sequence[str]


def _part(analysis: MsprofAnalysis, labels: Labels, naming: Naming) -> _Part:
    # One of its own, which goes when it is summed up: of ranks there may be many.
    recording = Recording(analysis.recording.source, analysis.recording.captured_in)
    windows, idle = _times(recording)
    leaves, outside = leaves_of(recording, labels, naming)
    return _Part(
        devices=_devices(recording),
        facts=dict(provenance.facts(recording.source)),
        step_ns=recording.step_lengths_ns,
        window_ns=sum(window.window_ns for window in windows),
        parts_ns=_parts(windows, idle),
        leaves=leaves,
        limits=_limits(recording),
        outside_ns=outside,
        peak_bytes=counters.peak_memory(recording.source, recording.strings),
        remarks=[
            f"{one.detail} ({one.count} times)"
            for one in recording.findings.anomalies()
            if one.name.startswith("replay_")
        ],
    )


def _times(recording: Recording) -> tuple[list[DeviceTime], dict[str, int]]:
    """Return how each device spent its steps (else its window), and its idle time by reason."""
    windows = [
        work.time(
            name,
            recording.step_windows[name].all if name in recording.step_windows else None,
        )
        for name, work in recording.devices.items()
    ]
    idle = dict.fromkeys(REASONS, 0)
    for one in recording.idle_time.totals(recording.steps, recording.step_windows):
        if one.step is None:
            for reason in REASONS:
                idle[reason] += one.of(reason)
    return windows, idle


def _parts(windows: Sequence[DeviceTime], idle: Mapping[str, int]) -> dict[str, int]:
    compute = sum(one.compute_ns for one in windows)
    exposed = sum((one.communication_ns or 0) - (one.overlap_ns or 0) for one in windows)
    busy = sum(one.busy_ns for one in windows)
    return {
        "compute": compute,
        "exposed communication": exposed,
        "copies": busy - compute - exposed,
        **{f"idle {reason}": value for reason, value in idle.items()},
    }


def _devices(recording: Recording) -> list[str]:
    """Return the model of each device that worked; where only one model is named, it is that."""
    rows = recording.source.rows("SELECT id, name FROM NPU_INFO")
    named = {number: str(name) for number, name in rows if name not in NOTHING_KNOWN}
    numbers = np.unique(np.concatenate((recording.tasks.devices, recording.comms.device)))
    models = set(named.values())
    only = models.pop() if len(models) == 1 else UNKNOWN_DEVICE
    return [named.get(number, only) for number in numbers.astype(np.int64).tolist()]


def _limits(recording: Recording) -> Device | None:
    """Return what the devices of a recording can do, by all that it has of them, else by name."""
    known = known_devices(recording).values()
    return _one_of(list(known)) or _one_of([peaks.find(name) for name in _devices(recording)])


def _one_of(devices: Sequence[Device | None]) -> Device | None:
    """Return what all of some devices can do, None where they differ or one is not known."""
    names_of = {None if one is None else one.name for one in devices}
    return devices[0] if len(names_of) == 1 else None


def _versions(facts: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return what runs say of torch and of what lies below it; several values are joined."""
    found: dict[str, dict[str, None]] = {}
    for one in facts:
        told = {said: one[name] for name, said in _VERSIONS.items() if name in one}
        for name, value in (_of_trace(one.get("trace_metadata")) | told).items():
            found.setdefault(name, {})[value] = None
    return tuple((name, ", ".join(values)) for name, values in found.items())


def _of_trace(text: str | None) -> dict[str, str]:
    """Return the versions that a Kineto trace names, numbers as people write them."""
    try:
        metadata: Any = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(metadata, dict):
        return {}
    found = {}
    for name, said in _GPU_VERSIONS.items():
        number = metadata.get(name)
        if isinstance(number, int) and number > 0:
            found[said] = (
                _hip(number) if "hip" in name else f"{number // 1000}.{number % 1000 // 10}"
            )
    return found


def _hip(number: int) -> str:
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
