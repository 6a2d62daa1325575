"""One side of a device comparison, with sums over all its recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from unified_prof.base.text import NS_PER_MS
from unified_prof.compare.confidence import Sample
from unified_prof.compare.device_leaves import Leaves, Naming, merge_leaves, read_leaves
from unified_prof.explain.advice import registry
from unified_prof.explain.roofline import peaks
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.recording import counters
from unified_prof.recording import source as provenance
from unified_prof.recording.calls import Labels
from unified_prof.recording.idle import REASONS
from unified_prof.recording.model import Advice, DeviceTime, Finding
from unified_prof.recording.recording import Recording
from unified_prof.recording.source import NOTHING_KNOWN

# Parts of a step; each moment belongs to exactly one.
PARTS: Final = ("compute", "exposed communication", "copies", *(f"idle {one}" for one in REASONS))

UNKNOWN_DEVICE: Final = "unknown device"
_GPU_VERSIONS: Final = {
    "cuda_runtime_version": "CUDA",
    "cuda_driver_version": "driver CUDA",
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


class Side(Struct, frozen=True, eq=False):
    """Device time of one side, summed over its recordings."""

    label: str
    devices: tuple[str, ...]  # Distinct names of its devices.
    # Number of devices with tasks, over all recordings.
    device_count: int
    recordings: int
    # (name, version) of torch, toolkit and driver, if recorded.
    versions: tuple[tuple[str, str], ...]
    steps: int | None  # Number of steps of all recordings; None if none were recorded.
    shares: int  # Divisor of totals: steps (recordings if there are no steps) times devices.
    window_ns: int  # Time of the steps, or from first to last task, summed over all devices.
    # The same time by PARTS, which add up to it exactly.
    parts_ns: Mapping[str, int]
    leaves: Leaves
    limits: Device | None  # Peaks of its devices; None if unknown, or if there are several models.
    outside_ns: int  # Device time outside all steps, which is not compared.
    step_ns: Sample  # Length of each step until its device finished, recording by recording.
    facts: Mapping[str, str]  # Provenance of the first recording.
    # Peak memory of each recording that has it.
    peak_bytes: tuple[int, ...]
    # Cost per step of each kind of finding (mean of the recordings), and the finding itself.
    findings: Mapping[str, tuple[float, Finding]]
    judged: frozenset[str]  # Kinds of findings whose rules could be evaluated in all recordings.
    remarks: tuple[str, ...] = ()

    @property
    def work_ns(self) -> int:
        """Sum of the durations of all compared tasks, including overlaps."""
        return int(self.leaves.total_ns.sum())

    def same_figures(self, other: Side) -> bool:
        """Return True if the other side has the same times and the same tasks."""
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

    def finding_ns(self, kind: str) -> float | None:
        """Return the cost of a kind of finding per step; None if its rule lacks data."""
        if kind in self.findings:
            return self.findings[kind][0]
        return 0.0 if kind in self.judged else None

    def per_share(self, total_ns: float) -> float:
        """Return a total divided by the number of steps and devices."""
        return total_ns / self.shares


def read(label: str, recordings: Sequence[Recording], labels: Labels, naming: Naming) -> Side:
    """Return the sums over the recordings of one side; if some have steps, only those count.

    The texts of this side are added to `labels`, which both sides share.
    """
    every = [_part(recording, labels, naming) for recording in recordings]
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
        devices=tuple(dict.fromkeys(devices)),
        device_count=len(devices),
        recordings=len(parts),
        versions=_versions([part.facts for part in parts]),
        facts=parts[0].facts,
        steps=sum(len(part.step_ns) for part in parts) if stepped else None,
        shares=max(1, sum(max(1, len(part.step_ns)) * len(part.devices) for part in parts)),
        window_ns=sum(part.window_ns for part in parts),
        parts_ns={name: sum(part.parts_ns[name] for part in parts) for name in PARTS},
        leaves=merge_leaves([part.leaves for part in parts]),
        limits=_common_device([part.limits for part in parts]),
        outside_ns=sum(part.outside_ns for part in parts),
        step_ns=Sample.from_values(
            [time for part in parts for time in part.step_ns], [len(part.step_ns) for part in parts]
        ),
        peak_bytes=tuple(part.peak_bytes for part in parts if part.peak_bytes is not None),
        findings=_mean_costs([part.advice for part in parts]),
        judged=frozenset.intersection(*(_judged(part.advice) for part in parts)),
        remarks=(*remarks, *(f"{label}: {remark}" for part in parts for remark in part.remarks)),
    )


def _mean_costs(recorded: Sequence[Advice]) -> dict[str, tuple[float, Finding]]:
    """Return the mean cost of each kind of finding in ns per step, and its costliest finding."""
    found = [finding for advice in recorded for finding in advice.findings]
    result: dict[str, tuple[float, Finding]] = {}
    for one in sorted(found, key=lambda finding: -finding.cost_ms_per_step):
        cost, finding = result.get(one.kind, (0.0, one))
        result[one.kind] = cost + one.cost_ms_per_step * NS_PER_MS / len(recorded), finding
    return result


def _judged(advice: Advice) -> frozenset[str]:
    return frozenset((*advice.judged, *(finding.kind for finding in advice.findings)))


def has_framework(recordings: Sequence[Recording]) -> bool:
    """Return True if a recording of a side, or its capture, has framework operations."""
    captures = [one.captured_in for one in recordings if one.captured_in is not None]
    return any(
        "PYTORCH_API" in source.tables and source.rows("SELECT 1 FROM PYTORCH_API LIMIT 1")
        for source in (recording.source for recording in (*recordings, *captures))
    )


def models(recordings: Sequence[Recording]) -> frozenset[str]:
    """Return the device models recorded on a side."""
    return frozenset(
        str(name)
        for recording in recordings
        for (name,) in recording.source.rows("SELECT name FROM NPU_INFO")
        if name not in NOTHING_KNOWN
    )


class _Part(Struct, frozen=True, eq=False):
    """Figures of one recording of a side."""

    devices: Sequence[str]
    facts: Mapping[str, str]
    step_ns: Sequence[int]
    window_ns: int
    parts_ns: Mapping[str, int]
    leaves: Leaves
    limits: Device | None
    outside_ns: int
    peak_bytes: int | None
    advice: Advice
    remarks: Sequence[str]


def _part(whole: Recording, labels: Labels, naming: Naming) -> _Part:
    # A separate Recording is freed after it is summed; there may be many ranks.
    recording = Recording(whole.source, whole.captured_in)
    windows, idle = _times(recording)
    leaves, outside = read_leaves(recording, labels, naming)
    # The peak rates of a recording's devices, from their recorded properties or names.
    known = known_devices(recording).values()
    names = _devices(recording)
    return _Part(
        devices=_devices(recording),
        facts=dict(provenance.facts(recording.source)),
        step_ns=recording.step_lengths_ns,
        window_ns=sum(window.window_ns for window in windows),
        parts_ns=_parts(windows, idle),
        leaves=leaves,
        limits=_common_device(list(known)) or _common_device([peaks.find(name) for name in names]),
        outside_ns=outside,
        peak_bytes=counters.peak_memory(recording.source, recording.strings),
        advice=registry.advise(recording, quick=True),
        remarks=[
            *filter(None, [recording.sample_note]),
            *(
                f"{anomaly.detail} ({anomaly.count} times)"
                for anomaly in recording.findings.anomalies()
                if anomaly.name.startswith("replay_")
            ),
        ],
    )


def _times(recording: Recording) -> tuple[list[DeviceTime], dict[str, int]]:
    """Return the times of each device within steps (or its window), and the idle time by reason."""
    windows = [
        work.time(
            name, recording.step_windows[name].all if name in recording.step_windows else None
        )
        for name, work in recording.devices.items()
    ]
    idle = dict.fromkeys(REASONS, 0)
    for total in recording.idle_time.totals(recording.steps, recording.step_windows):
        if total.step is None:
            for reason in REASONS:
                idle[reason] += total.reason_ns(reason)
    return windows, idle


def _parts(windows: Sequence[DeviceTime], idle: Mapping[str, int]) -> dict[str, int]:
    compute = sum(window.compute_ns for window in windows)
    exposed = sum((window.communication_ns or 0) - (window.overlap_ns or 0) for window in windows)
    busy = sum(window.busy_ns for window in windows)
    return {
        "compute": compute,
        "exposed communication": exposed,
        "copies": busy - compute - exposed,
        **{f"idle {reason}": value for reason, value in idle.items()},
    }


def _devices(recording: Recording) -> list[str]:
    """Return the model of each device with tasks; if there is only one model, it applies to all."""
    rows = recording.source.rows("SELECT id, name FROM NPU_INFO")
    named = {number: str(name) for number, name in rows if name not in NOTHING_KNOWN}
    numbers = np.unique(np.concatenate((recording.tasks.devices, recording.comms.device)))
    models = set(named.values())
    default = models.pop() if len(models) == 1 else UNKNOWN_DEVICE
    return [named.get(number, default) for number in numbers.astype(np.int64).tolist()]


def _common_device(devices: Sequence[Device | None]) -> Device | None:
    """Return the device if all are the same model, else None."""
    names_of = {None if device is None else device.name for device in devices}
    return devices[0] if len(names_of) == 1 else None


def _versions(facts: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the recorded versions of torch, toolkit and driver; several values are joined."""
    result: dict[str, dict[str, None]] = {}
    for fact in facts:
        recorded = {title: fact[name] for name, title in _VERSIONS.items() if name in fact}
        for name, value in (_trace_versions(fact.get("trace_metadata")) | recorded).items():
            result.setdefault(name, {})[value] = None
    return tuple((name, ", ".join(values)) for name, values in result.items())


def _trace_versions(text: str | None) -> dict[str, str]:
    """Return the versions in the metadata of a Kineto trace, such as `12.4`."""
    try:
        metadata: Any = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(metadata, dict):
        return {}
    result = {}
    for name, title in _GPU_VERSIONS.items():
        number = metadata.get(name)
        if isinstance(number, int) and number > 0:
            result[title] = (
                f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
                if "hip" in name
                else f"{number // 1000}.{number % 1000 // 10}"
            )
    return result
