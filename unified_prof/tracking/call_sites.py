"""Which lines ran between two operations, where the time of no operation went.

The stacks of both operations are known as code objects and instructions. Where they part, the
function they have in common went on from one of its lines to another; what it called before may
have had lines left after its last operation, what it called next had lines before its first one.

From the regions of a whole run to those that its report shows.

From raw calls to what a report shows of them: name, frames, module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from unified_prof.base.run_spec import ActivationRecord, Frame, OperationRecord, RegionRecord
from unified_prof.tracking.code_entries import CodeEntry, Stack, frames_of
from unified_prof.tracking.function_mode import OperationNames, is_placeholder
from unified_prof.tracking.raw_calls import NO_REGION, CallSite, CallSites, Measured
from unified_prof.tracking.regions import Regions
from unified_prof.tracking.stack_walker import Scope


@dataclass(frozen=True, slots=True)
class GapSite:
    """The lines that can have taken the time between two operations."""

    file_path: str
    """Relative to the project root."""
    first_line: int
    last_line: int
    """Equal to the first where it can only have been one."""


def gap_site(before: Stack, after: Stack) -> GapSite | None:
    """Return the lines between two operations, None where they cannot be told.

    Where whole lines lie between, those; otherwise the line of the operation that follows, in
    which something ran before it.

    Args:
        before: the stack of the operation before; empty where it had no frame in the project.
        after: the stack of the operation that follows.
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
    """Yield functions and their lines that may have run in between, the likeliest first.

    Those of the function in common come first; then the head of what was called next, then the
    rest of what was called before, each from the innermost call outwards.
    """
    depth = 0
    while depth < min(len(before), len(after)) and before[depth] == after[depth]:
        depth += 1
    started, left = depth, depth
    if depth < min(len(before), len(after)) and before[depth][0] is after[depth][0]:
        entry = after[depth][0]
        first, last = entry.line(before[depth][1]), entry.line(after[depth][1])
        yield entry, {line for line in entry.lines() if first < line < last}
        started = left = depth + 1
    for entry, at in reversed(after[started:]):
        head = entry.line(at)
        yield entry, {line for line in entry.lines() if entry.first_line < line < head}
    for entry, at in reversed(before[left:]):
        tail = entry.line(at)
        yield entry, {line for line in entry.lines() if line > tail}


def _outermost_first(stack: Stack) -> Iterator[tuple[CodeEntry, int]]:
    return zip(reversed(stack[::2]), reversed(stack[1::2]), strict=True)


Entry = TypeVar("Entry", OperationRecord, ActivationRecord)


class ShownRegions:
    """The regions of a report: around what it lists, or opened by the program itself.

    torch marks regions too, around the steps of optimizers and what loads data: those that none of
    the report's operations is in are not worth a row.

    Args:
        regions: Those of the run.
        entries: What the report lists, with numbers of `regions`.
        reference: The iteration that it shows.
    """

    def __init__(
        self,
        regions: Regions,
        entries: Iterable[OperationRecord | ActivationRecord],
        reference: Measured,
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

    def of(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return what the report lists, with numbers of its own regions."""
        if not self._numbers:
            return entries
        return tuple(
            one if one.region is None else replace(one, region=self._numbers[one.region])
            for one in entries
        )

    def records(
        self, iterations: Sequence[Measured], peaks: Mapping[int, int]
    ) -> tuple[RegionRecord, ...]:
        """Return the regions, each after the one around it."""
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
    """One place in the program that calls one operation in one module.

    Of one table, equal ones are the same object: comparing and hashing them costs nothing.
    """

    name: str
    frames: tuple[Frame, ...]
    module_path: str | None
    module_class: str | None
    kept: bool
    """Whether the report shows it."""


class SiteTable:
    """What a report shows of call sites; equal ones give the same object."""

    def __init__(self, sites: CallSites, scope: Scope) -> None:
        self._call_sites = sites
        self._names = OperationNames()
        self.scope = scope
        self._known: dict[tuple[bool, int], Site] = {}
        self._sites: dict[tuple[object, ...], Site] = {}
        self._stacks: dict[int, Stack] = {}
        self._gaps: dict[tuple[Stack, Stack], GapSite | None] = {}

    def site(self, number: int, *, with_set_up: bool = False) -> Site:
        """Return the site with a number in `CallSites`.

        Args:
            number: Of a call of an iteration.
            with_set_up: The iteration holds the program's set-up: what modules do while they
                are made is not part of the iteration.
        """
        key = (with_set_up, number)
        site = self._known.get(key)
        if site is None:
            site = self._make(self._call_sites.sites[number], with_set_up)
            value = (site.name, site.frames, site.module_path, site.module_class, site.kept)
            site = self._known[key] = self._sites.setdefault(value, site)
        return site

    def stack(self, number: int) -> Stack:
        """Return the part of the stack at a site that is shown."""
        stack = self._stacks.get(number)
        if stack is None:
            stack = self._stacks[number] = self.scope.frames(self._call_sites.sites[number].stack)
        return stack

    def gap(self, stacks: tuple[Stack, Stack]) -> GapSite | None:
        """Return the lines between two operations with these stacks; see `gap_site`."""
        if stacks not in self._gaps:
            self._gaps[stacks] = gap_site(*stacks)
        return self._gaps[stacks]

    def _make(self, call: CallSite, with_set_up: bool) -> Site:
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
        if with_set_up and any(entry.code.co_name == "__init__" for entry in stack[::2]):
            kept = False
        return Site(
            name=name,
            frames=frames_of(stack),
            module_path=None if call.module is None else call.module.path,
            module_class=None if call.module is None else call.module.class_name,
            kept=kept,
        )
