"""Which part of the recording an event belongs to: the process it is shown in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from unified_prof.columns import Sink
from unified_prof.decoders.ascend_text.columns import number
from unified_prof.decoders.ascend_text.events import read_events

PYTHON, COLLECTIONS, CANN, HARDWARE, OVERLAP = (
    "Python",
    "Python GC",
    "CANN",
    "Ascend Hardware",
    "Overlap Analysis",
)
COMMUNICATION = ("Communication", "HCCL")
_LABEL = re.compile(r"NPU (\d{1,4})")
_DEVICE_BITS = 0x1F
_PROCESS_SHIFT = 10


@dataclass(frozen=True, slots=True)
class Layer:
    """A process of the trace."""

    name: str
    device: int
    """What its label or its number says; meant for layers of devices only."""
    process: int
    """The real process that was recorded."""


@dataclass(slots=True)
class Layers:
    """Names of processes and threads of the trace."""

    by_pid: dict[int | str, Layer] = field(default_factory=dict)
    threads: dict[tuple[int | str, int | str], str] = field(default_factory=dict)

    def process(self) -> int | None:
        """Return the process that PyTorch ran in, or that the layers are numbered after."""
        found = [layer for layer in self.by_pid.values() if layer.name == PYTHON]
        return next((layer.process for layer in found or self.by_pid.values()), None)


def read_layers(path: Path, sink: Sink) -> Layers:
    """Read the names in a first pass over the file: they stand anywhere in it.

    Raises:
        RawFormatError: it cannot be read.
    """
    layers = Layers()
    names: dict[int | str, str] = {}
    labels: dict[int | str, str] = {}
    for events in read_events(path, sink):
        for event in events:
            if event.ph != "M" or not event.args:
                continue
            if event.name == "process_name":
                names[event.pid] = str(event.args.get("name"))
            elif event.name == "process_labels":
                labels[event.pid] = str(event.args.get("labels"))
            elif event.name == "thread_name":
                layers.threads[event.pid, event.tid] = str(event.args.get("name"))
    for pid, name in names.items():
        label = _LABEL.fullmatch(labels.get(pid, ""))
        shown = number(pid, 0)
        layers.by_pid[pid] = Layer(
            name,
            int(label[1]) if label else shown & _DEVICE_BITS,
            shown if name == PYTHON else shown >> _PROCESS_SHIFT,
        )
    return layers
