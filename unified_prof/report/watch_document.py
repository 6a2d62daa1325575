"""Document of a watched run: step times, parts of the step, events and captures of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.report.document import Column, Document
from unified_prof.report.names import format_duration, format_number, format_share, format_size
from unified_prof.sqlite.watch_file import RankSteps

_ON_HOST = {"data_ns": "data loading", "wait_ns": "host wait"}
_ON_DEVICE = {"forward_ns": "forward", "backward_ns": "backward", "optimizer_ns": "optimizer"}
_MAX_EVENTS = 10


def watch_document(ranks: Mapping[int, RankSteps], folder: Path) -> Document:
    """Return the summary of a watched run; steps slowed by captures are left out of statistics.

    Args:
        ranks: Steps and events by rank.
        folder: Directory of the run, for commands.
    """
    document = Document()
    document.title(f"{folder}: steps of a watched run")
    for rank in sorted(ranks):
        _add_rank(document, ranks[rank], folder, is_only=len(ranks) == 1)
    return document


def _add_rank(document: Document, one: RankSteps, folder: Path, *, is_only: bool) -> None:
    length = one.values("length_ns", healthy=True)
    if not is_only:
        document.heading(f"rank {one.rank}")
    if not len(length):
        document.line("no complete step: no optimizer stepped twice, no model was called twice")
        return
    median, p90, longest = np.percentile(length, (50, 90, 100))
    captured = len(one) - len(length)
    note = f", {captured:,} more slowed by captures" if captured else ""
    document.fact("steps", f"{len(length):,}{note}")
    document.fact(
        "step",
        f"median {format_duration(median)}, p90 {format_duration(p90)}, "
        f"max {format_duration(longest)}",
    )
    samples = one.values("samples", healthy=True)
    if np.isfinite(samples).any():
        rate = float(np.nansum(samples) / length[np.isfinite(samples)].sum() * 1e9)
        document.fact("samples per second", format_number(round(rate)))
    _add_trends(document, one, length)
    _add_parts(document, one, length)
    _add_events(document, one, folder)


def _add_trends(document: Document, one: RankSteps, length: NDArray[np.float64]) -> None:
    tenth = len(length) // 10
    if tenth >= 10:
        first, last = float(np.median(length[:tenth])), float(np.median(length[-tenth:]))
        change = last / first - 1
        document.fact(
            "drift",
            f"median {format_duration(first)} in the first tenth, {format_duration(last)} in the "
            f"last ({change:+.1%})",
        )
    memory = one.values("allocated_bytes")
    memory = memory[np.isfinite(memory)]
    if len(memory):
        document.fact(
            "memory",
            f"{format_size(memory[-1])} at the end, max {format_size(max(memory))}",
        )


def _add_parts(document: Document, one: RankSteps, length: NDArray[np.float64]) -> None:
    """Add the parts of a step; those of each clock add up to the step."""
    on_device = not one.facts.get("device", "cpu").startswith("cpu")
    clocks = {"host": _ON_HOST, "device": _ON_DEVICE}
    rows: list[tuple[str, str, str, str]] = []
    for clock, columns in clocks.items() if on_device else [("host", _ON_HOST | _ON_DEVICE)]:
        values = [one.values(column, healthy=True) for column in columns]
        known = np.isfinite(np.sum(values, axis=0))
        if not known.any():  # the device has not completed a step
            continue
        step_ns = float(length[known].mean())
        parts_ns = [float(each[known].mean()) for each in values]
        parts_ns.append(max(step_ns - sum(parts_ns), 0.0))
        rows += [
            (title, clock, format_duration(part_ns), format_share(part_ns, step_ns))
            for title, part_ns in zip((*columns.values(), "other"), parts_ns, strict=True)
        ]
    part, clock_of, per_step, share = zip(*rows, strict=True)
    table = [
        Column("part", part, is_name=True),
        Column("per step", per_step),
        Column("share", share),
    ]
    document.table([table[0], Column("clock", clock_of), *table[1:]] if on_device else table)
    total = float(length.sum())
    collected = float(one.values("gc_ns", healthy=True).sum())
    if collected > 0.001 * total:
        document.note(f"garbage collection took {format_share(collected, total)} of the time")


def _add_events(document: Document, one: RankSteps, folder: Path) -> None:
    shown = [event for event in one.events if event.kind != "healthy"]
    for event in shown[-_MAX_EVENTS:]:
        document.line(f"- {event.text}")
        if event.capture is not None:
            document.line(f"  capture {folder / event.capture}: {event.finding or event.status}")
    if len(shown) > _MAX_EVENTS:
        document.note(f"and {len(shown) - _MAX_EVENTS:,} earlier events")
    captures = [event for event in shown if event.capture and event.status == "ready"]
    if captures:
        document.line(f"next  uprof advise {folder / str(captures[-1].capture)}")
