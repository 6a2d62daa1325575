"""What sources of GPU recordings share: how they are told about, and tables of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.errors import RawFormatError, StoreError
from unified_prof.pipeline.sources.base import Decoded

if TYPE_CHECKING:
    from unified_prof.columns import Tables
    from unified_prof.decoders.gpu.found import Found


def decoded(found: Found, tasks: str | None = None) -> Decoded:
    """Return what a source tells of what its decoder found.

    Args:
        found: What the decoder says.
        tasks: The end of the summary; by default the device's tasks, or that there are none.
    """
    figures = {
        "events": found.events,
        "events_by_kind": dict(sorted(found.counts.items())),
        "device_tasks": found.tasks,
        "device_tasks_joined": found.tasks_joined,
    }
    if "rank" in found.facts:  # not every kind of recording knows of ranks
        figures["rank"] = found.rank
    if tasks is None:
        tasks = joined_tasks(found) if found.tasks else "no device task"
    return Decoded(
        facts=found.facts,
        figures=figures,
        summary=f"{found.events:,} events: {found.operations:,} operations, {tasks}",
        rank=found.rank,
    )


def joined_tasks(found: Found) -> str:
    """Say how many tasks there are, and how many have their launch."""
    return f"{found.tasks:,} device tasks, {found.tasks_joined:,} joined to their launch"


@contextmanager
def recorded_tables(path: Path) -> Iterator[Tables]:
    """Open the tables of a recording that is a database.

    Raises:
        RawFormatError: it cannot be read.
    """
    from unified_prof.store.foreign import foreign_tables

    try:
        with foreign_tables(path) as tables:
            yield tables
    except StoreError as err:  # the words of those who read reports; to us it is a recording
        raise RawFormatError(str(err), hint=err.hint, slug=err.slug) from err
