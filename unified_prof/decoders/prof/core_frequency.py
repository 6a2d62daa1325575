"""The frequency of the AI cores over time, lpmFreqConv.data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.decoders.prof import samples
from unified_prof.decoders.prof.directory import DeviceDirectory

_CHANGES_PER_RECORD = 55


@dataclass(frozen=True, slots=True)
class CoreFrequency:
    """Every change of the frequency, in the order of time."""

    ticks: NDArray[np.uint64]
    """Device counter values."""
    mhz: NDArray[np.int64]

    def at(self, ticks: NDArray[Any], otherwise_mhz: float) -> NDArray[np.float64]:
        """Return the frequency at device times; `otherwise_mhz` before the first change."""
        last = np.searchsorted(self.ticks, ticks, side="right")
        frequencies = np.concatenate([[otherwise_mhz], self.mhz.astype(np.float64)])
        return np.asarray(frequencies[last], np.float64)


def read_core_frequency(device: DeviceDirectory) -> CoreFrequency:
    """Read all changes of a device; none when it recorded none."""
    ticks, mhz = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for records in samples.pieces(device, "lpmFreqConv", "lpm_freq"):
        words = records["words"].reshape(-1, _CHANGES_PER_RECORD, 2)
        valid = np.arange(_CHANGES_PER_RECORD) < records["count"][:, None]
        ticks.append(words[..., 0][valid])
        mhz.append((words[..., 1][valid] & np.uint64(0xFFFFFFFF)).astype(np.int64))
    all_ticks = np.concatenate(ticks)
    order = np.argsort(all_ticks, kind="stable")
    return CoreFrequency(all_ticks[order], np.concatenate(mhz)[order])
