"""What people ask of a recording run again: what some changes would gain, and what would at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unified_prof.analysis.explain import path
from unified_prof.analysis.explain.path_limits import limits
from unified_prof.analysis.explain.what_if import (
    CLASSES,
    WITHOUT,
    Gain,
    gain,
    schedule_of,
    select,
    without,
)
from unified_prof.analysis.recording import Recording
from unified_prof.errors import UsageError

_TWICE = 2.0


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is to take less time."""

    name: str
    """As `what_if.select` takes it."""
    factor: float
    """How much faster; WITHOUT: it is not done at all."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What would be gained if one thing were twice as fast (of a call that waits: without it)."""

    name: str
    kind: str
    """A class of the critical path."""
    on_path_ns: int
    """Its time on the path of all steps; of a range on the host with all that it calls."""
    gain_ns: int
    """What all steps would gain."""


@dataclass(frozen=True, slots=True)
class Supposed:
    """The answer."""

    before_ns: int
    """Length of the steps as recorded."""
    steps: int
    stepped: bool
    """Whether any step was recorded; else the whole recording counts as one."""
    gain: Gain | None
    """What the changes would gain; None: no change was asked for."""
    worth: tuple[Worth, ...]
    """Without a change: what is worth one, the best first."""
    limits: tuple[str, ...]
    """What the recording cannot tell, in sentences."""


def suppose(recording: Recording, changes: Sequence[Change], *, top: int) -> Supposed:
    """Return what changes would gain; without any, what is worth one.

    Args:
        recording: the recording.
        changes: all of them at once.
        top: how many things to look at where there is no change.

    Raises:
        UsageError: nothing was recorded that a name stands for, or nothing at all.
    """
    scheduled = schedule_of(recording)
    if scheduled is None:
        raise UsageError(
            f"{recording.source.path} has neither device work nor host ranges: nothing can be "
            "said of what would be faster",
            slug="no-device-work",
        )
    chosen = [
        (
            without(recording, one.name) if one.factor == WITHOUT else select(recording, one.name),
            one.factor,
        )
        for one in changes
    ]
    lengths = scheduled.steps_ns()
    return Supposed(
        before_ns=int(lengths.sum()),
        steps=len(lengths),
        stepped=any(scheduled.step_names),
        gain=gain(recording, chosen) if chosen else None,
        worth=() if chosen else tuple(_worth(recording, top)),
        limits=tuple(sentence for _, sentence in limits(recording, scheduled)),
    )


def _worth(recording: Recording, top: int) -> list[Worth]:
    """Return what would gain most: each class of time, and the costliest things on the path."""
    critical = path.of_recording(recording)
    assert critical is not None
    rows = [row for row in critical.rows() if row.total_ns]
    of_class: dict[str, int] = {}
    for row in rows:
        of_class[row.kind] = of_class.get(row.kind, 0) + (row.total_ns or 0)
    asked = [(kind, kind, total) for kind, total in of_class.items() if kind in CLASSES]
    named = 0
    for row in rows:
        if named == top:
            break
        name = f"host:{row.name}" if row.kind in ("host", "synchronising") else row.name
        if row.kind in ("kernel", "communication", "copy", "host", "synchronising"):
            asked.append((name, row.kind, row.total_ns or 0))
            named += 1
    found = []
    for name, kind, total in asked:
        try:
            selection = select(recording, name)
        except UsageError:  # a line between operations is no name of anything
            continue
        factor = WITHOUT if kind == "synchronising" else _TWICE
        if kind == "host" and name not in CLASSES:
            # A row of the path is what was innermost; who speeds a range up means all within it.
            total = critical.on_host_ns(selection)
        gained = gain(recording, [(selection, factor)])
        assert gained is not None
        found.append(Worth(name, kind, total, gained.gain_ns))
    return sorted(found, key=lambda one: (-one.gain_ns, one.name))
