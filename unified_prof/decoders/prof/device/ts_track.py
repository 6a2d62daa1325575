"""ts_track: what the task scheduler noted - flips of task ids, steps, marks on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unified_prof.decoders.prof.identity.flips import Flips
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.host_records import join
from unified_prof.decoders.prof.raw.layouts import record_type
from unified_prof.decoders.prof.raw.slices import Records

_STEP, _FLIP = 0x0A, 0x0E
_MARK_TAG = 11
_STREAM_MASK = 0x7FF


@dataclass(frozen=True, slots=True)
class Track:
    """The records of a ts_track file that are used, in file order."""

    flips: Flips
    marks: Records
    """Step records of mstx marks: `index_id` is the mark."""

    @classmethod
    def none(cls) -> Track:
        """Return the track of a device that has none."""
        return cls(Flips.none(), np.zeros(0, record_type("ts_step_trace")))


def read_track(device: DeviceDirectory, *, expanded: bool) -> Track:
    """Read the scheduler's notes of a device; without the file there are none."""
    file = device.data.get("ts_track")
    steps: list[Records] = [np.zeros(0, record_type("ts_step_trace"))]
    flips: list[Records] = [np.zeros(0, record_type("ts_task_flip"))]
    if file is not None:
        for piece in file.pieces(record_type("ts_step_trace")):
            function = piece["func_type"]
            steps.append(piece[(function == _STEP) & (piece["tag_id"] == _MARK_TAG)])
            flips.append(piece.view(record_type("ts_task_flip"))[function == _FLIP])
    flip = join(flips)
    mask = np.uint32(0x7FFF if expanded else _STREAM_MASK)
    return Track(
        Flips(
            flip["stream_id"].astype(np.uint32) & mask,
            flip["task_id"].astype(np.uint32),
            flip["timestamp"].copy(),
        ),
        join(steps),
    )
