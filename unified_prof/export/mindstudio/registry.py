"""What a deliverable is, and which there are.

A deliverable is one module with one function that writes its files, marked with `deliverable`:

    @deliverable("op_statistic", tables=("TASK", "COMPUTE_TASK_INFO"))
    def write(recording: Recording, delivery: Delivery) -> None: ...

It writes nothing where it has no rows, and tells `recording.left_out` what it cannot know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_prof.export.mindstudio.delivery import Delivery
    from unified_prof.export.mindstudio.recording import Recording

Write = Callable[["Recording", "Delivery"], None]

MODULES = (
    "op_summary",
    "op_statistic",
    "task_time",
    "api_statistic",
    "communication_statistic",
    "step_trace",
    "memory_record",
    "operator_memory",
    "npu_mem",
    "npu_module_mem",
    "msprof_tx",
    "msprof",
)
"""The modules with deliverables, in the order in which they are written."""

_REGISTERED: dict[str, Deliverable] = {}


@dataclass(frozen=True, slots=True)
class Deliverable:
    """One kind of file that the vendor's text export leaves."""

    name: str
    """As its files are called, before the time."""
    tables: tuple[str, ...]
    """What it is made of: without any of these there is nothing to write; none: of anything."""
    write: Write
    missing: str | None = None
    """What to say where none of the tables is there; None: then the recording had no such thing."""


def deliverable(
    name: str, *, tables: tuple[str, ...] = (), missing: str | None = None
) -> Callable[[Write], Write]:
    """Register the function that writes a deliverable; see `Deliverable`."""

    def register(write: Write) -> Write:
        _REGISTERED[name] = Deliverable(name, tables, write, missing)
        return write

    return register


def deliverables() -> tuple[Deliverable, ...]:
    """Return all deliverables."""
    for module in MODULES:
        import_module(f"unified_prof.export.mindstudio.{module}")
    return tuple(_REGISTERED.values())
