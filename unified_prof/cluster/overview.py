"""Headline figures of a run: rows for ranks, steps, kinds of group and links.

Times are ns per step. Values for several ranks are means, so the parts of a step add up to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from unified_prof.cluster.stored_run import (
    BlameRecord,
    CollectiveRecord,
    GroupRecord,
    LinkRecord,
    RankRecord,
    StoredRun,
)
from unified_prof.errors import UsageError


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank over all steps."""

    rank: RankRecord
    steps: int
    span_ns: float | None  # Mean length of its steps; None without steps.
    parts: dict[str, float | None]  # STEP_PARTS -> mean over the steps.
    blame: BlameRecord | None

    @property
    def cost_ns(self) -> tuple[float, float]:
        """Sort key: gain per step with its faults fixed, then the wait that it causes, ns."""
        if self.blame is None:
            return 0.0, 0.0
        caused_ns = self.blame.caused_wait_ns or 0
        return self.blame.saved_ns_per_step or 0.0, caused_ns / max(1, self.steps)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step over all ranks."""

    step: int
    ranks: int
    span_ns: float  # Mean length over the ranks.
    longest_ns: float  # Length on the slowest rank.
    longest_rank: int
    parts: dict[str, float | None]  # STEP_PARTS -> mean over the ranks for which it is known.
    most_compute_ns: float
    most_compute_rank: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Collectives of one kind and size in groups of one kind and size, over all steps."""

    group_kind: str
    size: int
    groups: int  # Number of such groups with such collectives.
    size_is_minimum: bool  # True if the members were not recorded and ranks are missing.
    kind: str
    bytes: int | None
    per_step: float  # Number of collectives per step and group.
    incomplete: int  # Number of collectives with missing members; the times exclude them.
    transfer_ns: float | None  # Transfer time per step and group; None if none of them is complete.
    wait_ns: float | None  # Mean wait per step and member.
    setup_ns: float | None
    bus_gb_per_s: float | None  # Median over groups and steps.
    slowest_group: GroupRecord | None
    slowest_gb_per_s: float | None


class Overview:
    """Tables of a run; each is computed on first use."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run

    @cached_property
    def steps(self) -> tuple[StepRow, ...]:
        """The steps by number."""
        table = self.run.steps
        if not len(table):
            return ()
        numbers, first = np.unique(table.step, return_index=True)
        bounds = [*first.tolist(), len(table)]
        return tuple(
            self._step(int(number), slice(begin, end))
            for number, begin, end in zip(numbers.tolist(), bounds, bounds[1:], strict=False)
        )

    def _step(self, number: int, rows: slice) -> StepRow:
        table = self.run.steps
        span, ranks = table.span_ns[rows], table.rank[rows]
        compute = table.parts["compute_ns"][rows]
        longest, most = int(span.argmax()), int(np.nanargmax(compute))
        parts = table.means(rows)
        del parts["span_ns"]
        return StepRow(
            number,
            len(ranks),
            float(span.mean()),
            float(span[longest]),
            int(ranks[longest]),
            parts,
            float(compute[most]),
            int(ranks[most]),
        )

    @cached_property
    def ranks(self) -> tuple[RankRow, ...]:
        """The ranks by number."""
        table = self.run.steps
        order = np.argsort(table.rank, kind="stable")
        ordered = table.rank[order]
        rows = []
        for rank in self.run.ranks:
            begin, end = np.searchsorted(ordered, [rank.rank, rank.rank + 1]).tolist()
            parts = table.means(order[begin:end])
            blame = self.run.blame.get(rank.rank)
            rows.append(RankRow(rank, end - begin, parts.pop("span_ns"), parts, blame))
        return tuple(rows)

    @cached_property
    def worst(self) -> tuple[RankRow, ...]:
        """The ranks with figures, most expensive first."""
        known = (row for row in self.ranks if row.steps)
        return tuple(sorted(known, key=lambda row: row.cost_ns, reverse=True))

    @cached_property
    def mean_step(self) -> dict[str, float | None]:
        """Mean step: `span_ns` and STEP_PARTS, means over ranks and steps."""
        return self.run.steps.means(slice(None)) if len(self.run.steps) else {"span_ns": None}

    @cached_property
    def groups(self) -> tuple[GroupRow, ...]:
        """Collectives by kind of group, most expensive first, then by size."""
        known = {group.id: group for group in self.run.groups}
        alike: dict[tuple[Any, ...], list[CollectiveRecord]] = {}
        for collective in self.run.collectives:
            group = known[collective.group_id]
            alike.setdefault(
                (group.kind, group.size, collective.kind, collective.bytes), []
            ).append(collective)
        steps = max(1, len(self.steps))
        read = {one.rank for one in self.run.read} if self.missing else set()
        rows = [_group_row(key, found, known, steps, read) for key, found in alike.items()]
        rows.sort(key=lambda row: -(row.bytes or 0))
        return tuple(sorted(rows, key=lambda row: -(row.transfer_ns or 0) - (row.wait_ns or 0)))

    @cached_property
    def links(self) -> tuple[LinkRecord, ...]:
        """Links, the slowest compared with similar ones first."""
        return tuple(sorted(self.run.links, key=lambda one: (one.ratio is None, one.ratio or 0.0)))

    @property
    def is_watched(self) -> bool:
        """True if the run was only watched, and communication includes backward passes."""
        return any(one.name == "watched_steps" for one in self.run.anomalies)

    @cached_property
    def layout(self) -> str:
        """The parallel layout, such as `tp 4 x dp 4 x pp 4`; empty if unknown."""
        sizes = {}
        for name in ("tp", "cp", "ep", "dp", "pp"):
            places = {getattr(rank, name) for rank in self.run.ranks} - {None}
            if len(places) > 1:
                sizes[name] = len(places)
        return " x ".join(f"{name} {size}" for name, size in sizes.items())

    def rank(self, number: int) -> RankRow:
        """Return one rank.

        Raises:
            UsageError: The run has no such rank.
        """
        for row in self.ranks:
            if row.rank.rank == number:
                return row
        last = max((rank.rank for rank in self.run.ranks), default=None)
        raise UsageError(
            f"{self.run.path} has no rank {number}",
            hint="it has no ranks" if last is None else f"its ranks are 0 to {last}",
            slug="no-such-rank",
        )

    def step(self, number: int) -> tuple[RankRow, ...]:
        """Return one step, one row per rank.

        Raises:
            UsageError: The run has no such step.
        """
        table = self.run.steps
        rows = np.flatnonzero(table.step == number)
        if not len(rows):
            known = [row.step for row in self.steps]
            steps = f"{known[0]} to {known[-1]}" if known else "none"
            raise UsageError(
                f"{self.run.path} has no step {number}",
                hint=f"its steps: {steps}",
                slug="no-such-step",
            )
        by_rank = {rank.rank: rank for rank in self.run.ranks}
        result = []
        for row, rank in zip(rows.tolist(), table.rank[rows].tolist(), strict=True):
            parts = table.means(slice(row, row + 1))
            result.append(RankRow(by_rank[rank], 1, parts.pop("span_ns"), parts, None))
        return tuple(result)

    @property
    def missing(self) -> tuple[RankRecord, ...]:
        """Ranks that are missing or incomplete."""
        return tuple(rank for rank in self.run.ranks if rank.status != "read")

    @property
    def world_size_text(self) -> str:
        """The number of ranks of the run: `8 ranks`, or `at least 8 ranks`."""
        at_least = "at least " if self.run.facts.get("world_size_is_minimum") == "true" else ""
        size = self.run.world_size
        return f"{at_least}{size:,} rank{'s' if size != 1 else ''}"

    @property
    def missing_ranges(self) -> list[tuple[str, str]]:
        """The ranks without complete recordings, as ranges, with the common reason of each."""
        return ranks_by_reason(
            (one.rank, f"{one.status}{f': {one.why}' if one.why else ''}") for one in self.missing
        )

    @property
    def coverage(self) -> str:
        """Text that says how many of the ranks have figures, and why the others have none."""
        run = self.run
        text = f"{len(run.read):,} of {self.world_size_text}"
        absent = [rank.rank for rank in run.ranks if rank.status == "absent"]
        if absent:
            text += f"; missing: {format_ranges(absent)}"
        failed = (one for one in self.missing if one.status != "absent")
        reasons = ranks_by_reason((one.rank, one.why or one.status) for one in failed)
        return "; ".join([text, *map(": ".join, reasons)])


def ranks_by_reason(reasons: Iterable[tuple[int, str]]) -> list[tuple[str, str]]:
    """Return the ranks with each reason as text, and the reason."""
    ranks: dict[str, list[int]] = {}
    for rank, reason in reasons:
        ranks.setdefault(reason, []).append(rank)
    return [
        (f"rank{'s' if len(of_reason) != 1 else ''} {format_ranges(of_reason)}", reason)
        for reason, of_reason in ranks.items()
    ]


def format_ranges(numbers: Iterable[int], *, most: int = 12) -> str:
    """Format numbers as up to `most` ranges and a count of the rest: `3, 17 to 24 and 5 more`."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    words = [
        str(low) if low == high else f"{low}, {high}" if high == low + 1 else f"{low} to {high}"
        for low, high in ranges
    ]
    left = sum(high - low + 1 for low, high in ranges[most:])
    return ", ".join(words[:most]) + (f" and {left:,} more" if left else "")


def _group_row(
    key: tuple[Any, ...],
    found: list[CollectiveRecord],
    known: dict[int, GroupRecord],
    steps: int,
    read: set[int],
) -> GroupRow:
    """Return a row; `read` has the ranks with recordings if other ranks are missing."""
    group_kind, size, kind, size_bytes = key
    ids = {one.group_id for one in found}
    complete = [one for one in found if one.complete_n]
    shares = len(ids) * steps
    rates: dict[int, list[float]] = {}
    for one in complete:
        if one.bus_gb_per_s is not None:
            rates.setdefault(one.group_id, []).append(one.bus_gb_per_s)
    by_group = sorted((median(found), number) for number, found in rates.items())
    slowest_gb_per_s, slowest = by_group[0] if len(by_group) > 1 else (None, None)
    return GroupRow(
        group_kind,
        size,
        len(ids),
        # The recorded members cannot be all members if none of their collectives is complete.
        not complete
        and all(size == len(known[one].ranks) and read.issuperset(known[one].ranks) for one in ids),
        kind,
        size_bytes,
        sum(one.n for one in found) / shares,
        sum(one.n - one.complete_n for one in found),
        sum(one.transfer_ns for one in complete) / shares if complete else None,
        sum(one.wait_ns for one in complete) / shares / size if complete else None,
        sum(one.setup_ns for one in complete) / shares if complete else None,
        median(rate for rate, _ in by_group) if by_group else None,
        None if slowest is None else known[slowest],
        slowest_gb_per_s,
    )
