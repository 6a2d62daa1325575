"""Convert recorded call sites to the entries of a report: operations, gaps, regions.

A gap is the time between two operations in which no operation ran. Its source lines follow from the
stacks of both operations. In the innermost function that both stacks share, the lines between the
two calls ran. In addition, lines after the first operation may have run in the functions that it
called, and lines before the second operation in the functions called next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from unified_prof.base.run_spec import ActivationRecord, Frame, OperationRecord, RegionRecord
from unified_prof.tracking.code_entries import CodeEntry, Stack, frames_of
from unified_prof.tracking.function_mode import OperationNames, is_placeholder
from unified_prof.tracking.raw_calls import NO_REGION, CallSite, CallSites, MeasuredIteration
from unified_prof.tracking.regions import Regions
from unified_prof.tracking.stack_walker import Scope


@dataclass(frozen=True, slots=True)
class GapSite:
    """Source lines that may have run between two operations."""

    file_path: str
    """Path relative to the project root."""
    first_line: int
    last_line: int
    """Last line; equal to the first line if there is only one."""


def gap_site(before: Stack, after: Stack) -> GapSite | None:
    """Return the source lines between two operations; None if they are unknown.

    If there are whole lines between both operations, these are returned. Otherwise, the line of the
    second operation is returned, because other code on that line ran before it.

    Args:
        before: Stack of the first operation; empty if it has no frame in the project.
        after: Stack of the second operation.
    """
    for entry, lines in _between(list(_outermost_first(before)), list(_outermost_first(after))):
        if lines and entry.path is not None:
            return GapSite(entry.path, min(lines), max(lines))
    if not before or not after:
        return None
    entry, at = after[0], after[1]
    if entry.path is None:
        return None
    line = entry.line(at)
    return GapSite(entry.path, line, line)


def _between(
    before: list[tuple[CodeEntry, int]], after: list[tuple[CodeEntry, int]]
) -> Iterator[tuple[CodeEntry, set[int]]]:
    """Yield functions and the lines that may have run in between, most likely first.

    The order is: the function that both stacks share, the first lines of the functions called next,
    the last lines of the functions called before, each from the innermost call outwards. If the
    shared function went back to an earlier line, the line of the call before it comes last.
    """
    depth = 0
    while depth < min(len(before), len(after)) and before[depth] == after[depth]:
        depth += 1
    started, left = depth, depth
    end_of_loop: list[tuple[CodeEntry, set[int]]] = []
    if depth < min(len(before), len(after)) and before[depth][0] is after[depth][0]:
        entry = after[depth][0]
        first, last = entry.line(before[depth][1]), entry.line(after[depth][1])
        yield entry, {line for line in entry.lines() if first < line < last}
        end_of_loop = [(entry, {first})] * (first > last)
        started = left = depth + 1
    for entry, at in reversed(after[started:]):
        head = entry.line(at)
        yield entry, {line for line in entry.lines() if entry.first_line < line < head}
    for entry, at in reversed(before[left:]):
        tail = entry.line(at)
        yield entry, {line for line in entry.lines() if line > tail}
    yield from end_of_loop


def _outermost_first(stack: Stack) -> Iterator[tuple[CodeEntry, int]]:
    return zip(reversed(stack[::2]), reversed(stack[1::2]), strict=True)


Entry = TypeVar("Entry", OperationRecord, ActivationRecord)


class ReportRegions:
    """Regions of a report: those around its entries, and those that the program opened itself.

    torch also opens regions, for example around optimizer steps and data loading. They are left out
    if they contain no operation of the report.

    Args:
        regions: All regions of the run.
        entries: Entries of the report, with numbers of `regions`.
        reference: Iteration that the report shows.
    """

    def __init__(
        self,
        regions: Regions,
        entries: Iterable[OperationRecord | ActivationRecord],
        reference: MeasuredIteration,
    ) -> None:
        self._regions = regions
        wanted = {one.region for one in entries if one.region is not None}
        wanted |= {region for region in reference.opened if regions.of_program[region]}
        kept: set[int] = set()
        for one in wanted:
            region = one
            while region != NO_REGION and region not in kept:
                kept.add(region)
                region = regions.around[region]
        self._numbers = {region: number for number, region in enumerate(sorted(kept))}

    def renumber(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the entries with the region numbers of the report."""
        if not self._numbers:
            return entries
        return tuple(
            one if one.region is None else replace(one, region=self._numbers[one.region])
            for one in entries
        )

    def records(
        self, iterations: Sequence[MeasuredIteration], peaks: Mapping[int, int]
    ) -> tuple[RegionRecord, ...]:
        """Return the regions; each comes after the region that contains it."""
        return tuple(
            RegionRecord(
                name=self._regions.names[region],
                around=self._numbers.get(self._regions.around[region]),
                counts=tuple(one.opened.get(region, 0) for one in iterations),
                peak_usage_bytes=peaks.get(region),
            )
            for region in self._numbers
        )


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place in the program that calls one operation in one module.

    Equal sites of a table are the same object, which makes comparing and hashing them fast.
    """

    name: str
    frames: tuple[Frame, ...]
    module_path: str | None
    module_class: str | None
    kept: bool
    """True if the report shows it."""

    @property
    def line(self) -> str | None:
        """`file:line` of the innermost frame; None without frames."""
        return f"{self.frames[0].file_path}:{self.frames[0].line_number}" if self.frames else None


class SiteTable:
    """Sites of a report by call site number; equal sites are the same object."""

    def __init__(self, sites: CallSites, scope: Scope) -> None:
        self._call_sites = sites
        self._names = OperationNames()
        self.scope = scope
        self._known: dict[tuple[bool, int], Site] = {}
        self._sites: dict[tuple[object, ...], Site] = {}
        self._stacks: dict[int, Stack] = {}
        self._gaps: dict[tuple[Stack, Stack], GapSite | None] = {}

    def site(self, number: int, *, with_setup: bool = False) -> Site:
        """Return the site of a call site.

        Args:
            number: Number in `CallSites`.
            with_setup: True if the iteration contains the program's setup; operations in
                constructors are then left out.
        """
        key = (with_setup, number)
        site = self._known.get(key)
        if site is None:
            site = self._make(self._call_sites.sites[number], with_setup)
            value = (site.name, site.frames, site.module_path, site.module_class, site.kept)
            site = self._known[key] = self._sites.setdefault(value, site)
        return site

    def stack(self, number: int) -> Stack:
        """Return the shown part of the stack at a call site."""
        stack = self._stacks.get(number)
        if stack is None:
            stack = self._stacks[number] = self.scope.frames(self._call_sites.sites[number].stack)
        return stack

    def gap(self, stacks: tuple[Stack, Stack]) -> GapSite | None:
        """Return the source lines between two operations with these stacks; see `gap_site`."""
        if stacks not in self._gaps:
            self._gaps[stacks] = gap_site(*stacks)
        return self._gaps[stacks]

    def _make(self, call: CallSite, with_setup: bool) -> Site:
        func = call.func
        if isinstance(func, str):
            name, private = func, False
        else:
            name = self._names.name(func, call.caller.code, call.caller_at)
            private = self._names.is_private(func)
        stack = self.scope.frames(call.stack) or (call.stack if call.in_module else ())
        kept = self.scope.keeps(call, private=private)
        if is_placeholder(name, call.caller.code):
            kept = False
        if with_setup and any(entry.code.co_name == "__init__" for entry in stack[::2]):
            kept = False
        return Site(
            name=name,
            frames=frames_of(stack),
            module_path=None if call.module is None else call.module.path,
            module_class=None if call.module is None else call.module.class_name,
            kept=kept,
        )
