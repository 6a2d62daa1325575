"""What the matrix units of a device did for a model: MFU of steps and of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.explain.roofline.charged import Charged
from unified_prof.analysis.explain.roofline.peaks import Device
from unified_prof.analysis.explain.roofline.placed import Placed
from unified_prof.analysis.model import ModelUse
from unified_prof.analysis.read.framework import NONE
from unified_prof.analysis.recording import Recording

_ENOUGH_TOLD, _ENOUGH_PEAKS = 0.5, 0.95


def model_use(
    recording: Recording,
    devices: dict[str, Device | None],
    charged: Charged,
    calculated: NDArray[np.float64],
    ideal_ns: NDArray[np.float64],
    told: NDArray[np.bool_],
    placed: list[Placed],
) -> tuple[ModelUse, ...]:
    """Return what each device's matrix units did in the steps, else in the window."""
    result = []
    for name, number in recording.device_numbers.items():
        here = np.ones(len(charged), bool) if number is None else charged.device == number
        windows = recording.step_windows.get(name)
        steps = None
        time_ns = recording.devices[name].window.total_ns
        counted = here
        if windows is not None and recording.steps:
            steps, time_ns = len(recording.steps), windows.all.total_ns
            counted = here & (charged.step != NONE)
        total = int(calculated[counted].sum())
        if not total or not time_ns:
            continue
        kernels = int(charged.total_ns[here].sum())
        told_share = int(charged.total_ns[here & told].sum()) / kernels if kernels else 0.0
        unknown = calculated[counted & (ideal_ns == 0)].sum() / total
        can_tell = told_share >= _ENOUGH_TOLD and unknown <= 1 - _ENOUGH_PEAKS
        of_steps: list[tuple[str, int, float | None]] = []
        if steps is not None and windows is not None:
            for index, (step, _, _) in enumerate(recording.steps):
                mine = here & (charged.step == index)
                length = int(windows.end_ns[index] - windows.start_ns[index])
                share = float(ideal_ns[mine].sum()) / length if length and can_tell else None
                of_steps.append((step, int(calculated[mine].sum()), _possible(share)))
        used = {
            one.peak.name: one.peak
            for one in placed
            if one.device == name and one.peak and one.cost and one.cost.unit == "matrix"
        }
        result.append(
            ModelUse(
                device=name,
                flops=total,
                time_ns=time_ns,
                steps=steps,
                share=_possible(float(ideal_ns[counted].sum()) / time_ns if can_tell else None),
                told_share=told_share,
                peak=", ".join(f"{key} {one.rate / 1e12:,g}" for key, one in used.items()),
                uncertain=any(one.uncertain for one in used.values()),
                by_step=tuple(of_steps),
            )
        )
    return tuple(result)


def _possible(share: float | None) -> float | None:
    return share if share is not None and share <= 1 else None
