"""Estimated step time on another device, from the roofline efficiency of each class of kernels.

The time at the roofline changes with the peaks; the rest of a kernel's time (latency, few blocks)
stays. Kernels without known shapes have the efficiency of all others, and change with the memory
bandwidth. The host, copies and the network stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import UsageError
from unified_prof.explain.kernel_classes import CLASSES, class_of, classes_of_work
from unified_prof.explain.roofline import breakdown, peaks
from unified_prof.explain.roofline.peaks import Device
from unified_prof.explain.schedule.selection import Selection
from unified_prof.explain.what_if import WITHOUT, gain
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.recording import Recording

# Kernel time differs from the estimate by up to this factor (docs/validation.md).
SPREAD = 1.6


@dataclass(frozen=True, slots=True)
class ClassOnDevice:
    """Kernels of one class: time as recorded, and its factor on another device."""

    name: str
    total_ns: int
    factor: float
    # Roofline efficiency on the recorded device; None if shapes or peaks are unknown.
    efficiency: float | None


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """Estimate of the steps on another device, all steps together."""

    source: str
    target: str
    # Length of the steps if all kernels are `spread` times faster or slower than estimated.
    least_ns: int
    most_ns: int
    spread: float
    classes: tuple[ClassOnDevice, ...]  # The longest first.


def device_named(name: str) -> Device:
    """Return a device of the table or of the user.

    Raises:
        UsageError: It is unknown, or its memory bandwidth is.
    """
    device = peaks.find(name)
    if device is not None and device.memory_peak() is not None:
        return device
    known = [one.name for one in peaks.all_devices() if one.memory_peak() is not None]
    near = [one for one in known if name.casefold() in one.casefold()]
    raise UsageError(
        f"--device {name}: no peaks known",
        hint=f"similar names: {', '.join(near)}" if near else f"known: {', '.join(known)}",
        slug="wrong-option-value",
    )


def classes_on(recording: Recording, target: Device) -> tuple[str, tuple[ClassOnDevice, ...]]:
    """Return the recorded device, and what kernels of each class would take on another one.

    Raises:
        UsageError: The peaks of the recorded device are unknown, or it has no kernels.
    """
    found = breakdown.roofline_of(recording)
    known = [device for device in found.devices.values() if device and device.memory_peak()]
    memory, own = target.memory_peak(), known[0].memory_peak() if known else None
    if memory is None or own is None:
        raise UsageError(
            f"the peaks of {', '.join(found.devices) or 'the recorded device'} are unknown",
            hint='add them to pyproject.toml: [tool.uprof.devices."NAME"]',
            slug="no-device-work",
        )
    of_class = classes_of_work(recording)
    kernels = recording.work.kind == KERNEL
    time_ns = np.bincount(
        of_class[kernels], recording.work.duration_ns[kernels], minlength=len(CLASSES)
    )
    covered, bound_ns, scaled = (np.zeros(len(CLASSES)) for _ in range(3))
    for row in found.rows:
        after = breakdown.bound_on(row, target)
        if row.kind not in ("operation", "kernel") or after is None or not row.bound_ns:
            continue
        kernel = row.name if row.kind == "kernel" else None
        place = CLASSES.index(class_of(KERNEL, kernel, row.name, row.name))
        covered[place] += row.total_ns
        bound_ns[place] += min(row.bound_ns, row.total_ns)
        scaled[place] += min(row.bound_ns, row.total_ns) * after / row.bound_ns
    usual = bound_ns.sum() / max(covered.sum(), 1.0)
    result = []
    for place in np.argsort(-time_ns, kind="stable").tolist():
        if not time_ns[place]:
            continue
        if covered[place]:
            efficiency = bound_ns[place] / covered[place]
            factor = 1 - efficiency + scaled[place] / covered[place]
        else:
            efficiency, factor = None, 1 - usual + usual * own.rate / memory.rate
        result.append(ClassOnDevice(CLASSES[place], int(time_ns[place]), factor, efficiency))
    return known[0].name, tuple(result)


def estimate(
    recording: Recording, name: str, changes: Sequence[tuple[Selection, float]]
) -> tuple[DeviceEstimate, Selection]:
    """Return the estimate for another device, and the change to kernels for `what_if.gain`.

    Args:
        recording: A recording with a schedule.
        name: Name of the other device.
        changes: Further changes.

    Raises:
        UsageError: The peaks of one of the devices are unknown, or nothing was recorded.
    """
    target = device_named(name)
    source, classes = classes_on(recording, target)
    factor = np.ones(len(CLASSES))
    for one in classes:
        factor[CLASSES.index(one.name)] = one.factor
    factor = np.where(recording.work.kind == KERNEL, factor[classes_of_work(recording)], np.nan)
    times_ns = []
    for spread in (1 / SPREAD, SPREAD):
        found = gain(recording, [*changes, (_longer(factor * spread), WITHOUT)])
        assert found is not None
        times_ns.append(found.after_ns)
    least_ns, most_ns = times_ns
    estimated = DeviceEstimate(source, target.name, least_ns, most_ns, SPREAD, classes)
    return estimated, _longer(factor)


def _longer(factor: NDArray[np.float64]) -> Selection:
    """Return the change by which tasks take so many times as long; NaN: as recorded."""
    return Selection(work=1 - np.nan_to_num(factor, nan=1.0))
