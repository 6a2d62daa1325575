"""msprof_*.json: the timeline with all its layers; msprof_tx_*.json: that of the marks alone."""

from __future__ import annotations

from unified_prof.export.mindstudio.delivery import Delivery
from unified_prof.export.mindstudio.marks import TABLE as MARKS
from unified_prof.export.mindstudio.recording import Recording
from unified_prof.export.mindstudio.registry import deliverable
from unified_prof.export.mindstudio.timeline import (
    cann,
    communication,
    counters,
    hardware,
    overlap,
    program,
)
from unified_prof.export.mindstudio.timeline.events import Blocks, Layer, Processes

_MARKS: tuple[Layer, ...] = (program.layer, program.device_layer)
_LAYERS: tuple[Layer, ...] = (
    *(cann.layer, hardware.layer, communication.layer, overlap.layer),
    *(*_MARKS, *counters.layers()),
)


@deliverable("msprof")
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the whole timeline."""
    delivery.timeline("msprof", _events(recording, _LAYERS))


@deliverable("msprof_tx timeline", tables=(MARKS,))
def write_marks(recording: Recording, delivery: Delivery) -> None:
    """Write the marks once more, for viewers of these alone."""
    delivery.timeline("msprof_tx", _events(recording, _MARKS))


def _events(recording: Recording, layers: tuple[Layer, ...]) -> Blocks:
    processes = Processes(recording)
    for layer in layers:
        yield from layer(recording, processes)
