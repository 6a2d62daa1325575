"""The device side of a text export: tasks with their operators, collectives, overlap."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.ascend_text.collectives import Collectives
from unified_prof.decoders.ascend_text.columns import Columns, Enums, Names
from unified_prof.decoders.ascend_text.events import Event
from unified_prof.decoders.ascend_text.layers import Layer
from unified_prof.decoders.ascend_text.operators import write_operators
from unified_prof.decoders.ascend_text.tasks import Tasks

_OVERLAP = {"Computing": 0, "Communication": 1, "Communication(Not Overlapped)": 2, "Free": 3}


class Device:
    """Takes the events of devices, then writes their tables."""

    def __init__(self, enums: Enums) -> None:
        self._texts = Names()
        self.tasks = Tasks(self._texts, enums)
        self.collectives = Collectives(self._texts, enums)
        self._overlap = Columns("device", "start", "end", "type")

    @property
    def devices(self) -> list[int]:
        """The devices that did anything."""
        found = [self.tasks.arrays()["device"], self._overlap.arrays()["device"]]
        return [int(one) for one in np.unique(np.concatenate(found))]

    def take_overlap(self, event: Event, start: int, end: int, layer: Layer) -> bool:
        """Take what a device did at a time; tell whether it is known."""
        kind = _OVERLAP.get(event.name)
        if kind is None:
            return False
        self._overlap.add(layer.device, start, end, kind)
        return True

    def write(self, kernels: Path | None, sink: Sink) -> int:
        """Write all tables of devices; return the number of tasks.

        Args:
            kernels: kernel_details.csv.
            sink: Where rows go.
        """
        tasks = self.tasks.arrays()
        extra = count(len(tasks["start"]))
        texts = np.array(sink.strings.intern_all(self._texts.all), np.int64)
        self.tasks.write(texts, sink)
        write_operators(kernels, tasks, self._texts.all, sink)
        self.collectives.write(tasks, texts, extra, sink)
        self._write_overlap(sink)
        return next(extra)

    def _write_overlap(self, sink: Sink) -> None:
        overlap = self._overlap.arrays()
        if len(overlap["start"]):
            sink.write(
                "OVERLAP_ANALYSIS",
                {
                    "id": np.arange(len(overlap["start"])),
                    "deviceId": overlap["device"],
                    "startNs": overlap["start"],
                    "endNs": overlap["end"],
                    "type": overlap["type"],
                },
            )
