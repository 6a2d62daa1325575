"""Writes all deliverables that a report can give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from unified_prof.errors import UsageError
from unified_prof.export.files import OutputFiles, Written
from unified_prof.export.mindstudio.recording import LeftOut, Recording
from unified_prof.export.mindstudio.registry import NOT_WRITTEN, Delivery, deliverables
from unified_prof.recording.model import Anomaly
from unified_prof.recording.source import Source

_FAMILY = "msprof"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has written, and what it could not."""

    files: tuple[Written, ...]
    left_out: tuple[LeftOut, ...]
    anomalies: tuple[Anomaly, ...]
    """Oddities found while reading."""


def refuse_others(source: Source) -> None:
    """Raise UsageError when a report is none that has deliverables of this layout."""
    if source.family != _FAMILY:
        raise UsageError(
            f"{source.path} is a report of the {source.family} family, which has no timeline; "
            "the deliverables of msprof are made of msprof databases",
            hint="record one with `uprof run --report timeline`, or name a PROF_* directory",
            slug="wrong-kind-of-report",
        )


def write(
    source: Source,
    directory: Path,
    *,
    force: bool = False,
    moment: datetime | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Exported:
    """Write the deliverables of an open msprof database into an existing folder, or none at all.

    Args:
        source: the report.
        directory: where the files go.
        force: whether files of the same names may be replaced.
        moment: local time in the files' names; by default now.
        progress: told what is being written.

    Raises:
        UsageError: it is no msprof database, or has nothing that any file is made of.
        StoreError: it is damaged.
        OutputError: a file exists or cannot be written.
    """
    refuse_others(source)
    recording = Recording(source)
    with OutputFiles(directory, force=force) as files:
        delivery = Delivery(files, moment or datetime.now())
        for deliverable in deliverables():
            tables = deliverable.tables
            if not tables or any(table in source.tables for table in tables):
                progress(deliverable.name)
                deliverable.write(recording, delivery)
            elif deliverable.missing is not None:
                recording.leave_out(deliverable.name, "the file", deliverable.missing)
        for table, name in NOT_WRITTEN.items():
            if table in source.tables and source.rows(f"SELECT 1 FROM {table} LIMIT 1"):
                recording.leave_out(
                    name, "the file", f"uprof does not write it; its rows are in table {table}"
                )
        if not files.written:
            raise UsageError(
                f"{source.path} has neither tasks nor calls nor marks nor operators' memory: "
                "there is nothing to write",
                slug="empty-recording",
            )
    return Exported(
        tuple(files.written),
        tuple(recording.left_out),
        tuple(recording.findings.anomalies()),
    )
