"""AICORE_FREQ: the AI core frequency over time, from lpmFreqConv or lpmInfoConv.

Newer collectors write the second in place of the first: the same records, which tell in addition
what they are about. Voltages of cores and of the bus have no table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.layouts import record_type

_ENTRIES = 55
_FREQUENCY = 0
_UNKNOWN_DIE = -1
PLATFORMS = (5, 7)
"""Platforms whose recordings have this table."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the AI core frequency, by time."""

    ticks: NDArray[np.uint64]
    mhz: NDArray[np.int64]


def read_changes(device: DeviceDirectory) -> Changes:
    """Read the frequency changes of a device; the last one before its start counts from there."""
    ticks: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    mhz: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    for name in ("lpmFreqConv", "lpmInfoConv"):
        file = device.data.get(name)
        for piece in file.pieces(record_type("lpm_freq")) if file is not None else ():
            if name == "lpmInfoConv":
                piece = piece[piece["kind"] == _FREQUENCY]
            words = piece["words"].reshape(len(piece), _ENTRIES, 2)
            used = np.arange(_ENTRIES) < piece["count"][:, None]
            ticks.append(words[used][:, 0])
            mhz.append(words[used][:, 1] & np.uint64(0xFFFFFFFF))
    time, value = np.concatenate(ticks), np.concatenate(mhz)
    order = np.argsort(time, kind="stable")
    time, value = time[order], value[order]
    start = np.uint64(device.clocks.device_origin_ticks)
    before = max(int(np.searchsorted(time, start)) - 1, 0)
    return Changes(np.maximum(time[before:], start), value[before:].astype(np.int64))


def usable_changes(device: DeviceDirectory) -> Changes:
    """Return the changes that task times may rest on: none at all where one of them is to 0 MHz.

    So does the exporter, which takes the rated frequency for the whole recording then.
    """
    changes = read_changes(device)
    if (changes.mhz == 0).any():
        return Changes(changes.ticks[:0], changes.mhz[:0])
    return changes


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write the frequency at the start, at each change and at a recorded end."""
    if device.platform not in PLATFORMS or device.clocks.device is None:
        return
    changes = read_changes(device)
    session = device.session
    freq = np.r_[device.device_info.integer("aic_frequency") or 0, changes.mhz]
    time_ns = np.r_[session.start_ns, device.clocks.device.to_ns(changes.ticks)]
    if session.ended:
        freq, time_ns = np.r_[freq, freq[-1]], np.r_[time_ns, session.end_ns]
    sink.write(
        "AICORE_FREQ",
        {
            "deviceId": device.device_id,
            "timestampNs": time_ns,
            "freq": freq,
            "dieId": _UNKNOWN_DIE,
        },
    )
