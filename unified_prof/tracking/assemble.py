"""Convert measured iterations to records: operations with one sample per iteration.

Operations of different iterations are matched by name, lines, module, participation in the backward
pass, and their order among equal operations: the third call of a layer is matched with the third
call. The operations of one iteration, the reference, are reported. Iterations that share at least
half of them contribute samples; all others are ignored.

Recorded call sites become the entries of a report: operations, gaps, regions. A gap is the time
between two operations in which no operation ran. Its source lines follow from the stacks of both
operations. In the innermost function that both stacks share, the lines between the two calls ran.
In addition, lines after the first operation may have run in the functions that it called, and lines
before the second operation in the functions called next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from msgspec import Struct

from unified_prof.base.run_spec import (
    ActivationRecord,
    Frame,
    GapRecord,
    IterationRecord,
    OperationRecord,
    RegionRecord,
)
from unified_prof.tracking.code_entries import CodeEntry, Stack, frames_of
from unified_prof.tracking.function_mode import OperationNames, is_placeholder
from unified_prof.tracking.raw_calls import (
    NO_REGION,
    CallSite,
    CallSites,
    IterationTimes,
    MeasuredIteration,
    Span,
)
from unified_prof.tracking.regions import Regions
from unified_prof.tracking.stack_walker import Scope
from unified_prof.tracking.torch_names import Anomalies


class GapSite(Struct, frozen=True):
    """Source lines that may have run between two operations."""

    file_path: str
    """Path relative to the project root."""
    first_line: int
    last_line: int
    """Last line; equal to the first line if there is only one."""


def gap_site(before: Stack, after: Stack) -> GapSite | None:
    """Return the source lines between two operations; None if they are unknown.

    If there are whole lines between both operations, these are returned. Otherwise, the line of the
    second operation is returned, because other code on that line ran before it. Stacks of
    operations without a frame in the project are empty.
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


_Record = TypeVar("_Record", OperationRecord, ActivationRecord)


class ReportRegions:
    """Regions of a report: those around its entries, and those that the program opened itself.

    torch also opens regions, for example around optimizer steps and data loading. They are left out
    if they contain no operation of the report. `reference` is the iteration that it shows.
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

    def renumber(self, entries: tuple[_Record, ...]) -> tuple[_Record, ...]:
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


class Site(Struct, frozen=True, eq=False):
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
        """Return the site of a call site by its number in `CallSites`.

        If the iteration contains the program's setup, operations in constructors are left out.
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


Entry = tuple[Site, bool]  # A reported operation, and True if it took part in the backward pass.
Key = tuple[Site, bool, int]  # An `Entry`, and its position among equal entries in its iteration.


class SelectedCalls(Struct, frozen=True):
    """The calls of an iteration that a report shows, in order."""

    iteration: MeasuredIteration
    sequence: tuple[Entry, ...]
    calls: tuple[int, ...]
    """For each shown call, its index among all calls of the iteration."""
    positions: dict[Key, int]
    """Position of each entry in the sequence."""


def select_calls(iteration: MeasuredIteration, table: SiteTable) -> SelectedCalls:
    """Return the calls of an iteration that a report shows."""
    sequence: list[Entry] = []
    calls: list[int] = []
    positions: dict[Key, int] = {}
    seen: Counter[Entry] = Counter()
    in_backward = (~np.isnan(iteration.backward_ms)).tolist()
    for index, number in enumerate(iteration.sites.tolist()):
        site = table.site(number, with_setup=iteration.with_setup)
        if site.kept:
            entry = (site, in_backward[index])
            positions[(*entry, seen[entry])] = len(sequence)
            seen[entry] += 1
            sequence.append(entry)
            calls.append(index)
    return SelectedCalls(iteration, tuple(sequence), tuple(calls), positions)


def is_same_kind(one: SelectedCalls, other: SelectedCalls) -> bool:
    """Return True if two iterations share at least half of their operations."""
    shared = len(one.positions.keys() & other.positions.keys())
    return 4 * shared >= len(one.positions) + len(other.positions)


def build_operations(
    iterations: Sequence[SelectedCalls], table: SiteTable, anomalies: Anomalies
) -> tuple[tuple[OperationRecord, ...], tuple[IterationRecord, ...], SelectedCalls]:
    """Return the operations of the reference iteration, all iterations, and the reference."""
    reference, is_common = _reference(iterations)
    matched = [number for number, one in enumerate(iterations) if is_same_kind(one, reference)]
    is_matched = frozenset(matched)
    among = "most iterations" if is_common else "the reported one"
    for number, one in enumerate(iterations):
        if one.sequence != reference.sequence:
            some = "some_" if number in is_matched else ""
            difference = _difference(one.sequence, reference.sequence, among)
            detail = f"iteration {one.iteration.number}: {difference}"
            anomalies.add(f"iterations_with_{some}other_operations", detail)
    of_matched = [(number, iterations[number]) for number in matched]
    found = [
        _operation(key, of_matched, reference, table, anomalies) for key in reference.positions
    ]
    operations = tuple(one for one in found if one is not None)
    records = tuple(
        _record(one, next(iter(one.iteration.untracked), None), matched=number in is_matched)
        for number, one in enumerate(iterations)
    )
    more = tuple(
        _record(iterations[number], whole, matched=True)
        for number in matched
        for whole in iterations[number].iteration.untracked[1:]
    )
    if more:  # they have no samples of operations
        operations = tuple(
            replace(one, iterations=one.iterations or tuple(matched)) for one in operations
        )
    records += more
    return operations, records, reference


def _reference(iterations: Sequence[SelectedCalls]) -> tuple[SelectedCalls, bool]:
    """Return the iteration to report, and True if at least half of the iterations match it.

    Without such a majority, the iteration with the smallest difference to all others is returned.
    """
    sequence, count = Counter(one.sequence for one in iterations).most_common(1)[0]
    if 2 * count >= len(iterations):
        return next(one for one in iterations if one.sequence == sequence), True
    having = Counter(key for one in iterations for key in one.positions)
    return max(
        iterations, key=lambda one: sum(2 * having[k] - len(iterations) for k in one.positions)
    ), False


def _operation(
    key: Key,
    matched: Sequence[tuple[int, SelectedCalls]],
    reference: SelectedCalls,
    table: SiteTable,
    anomalies: Anomalies,
) -> OperationRecord | None:
    """Return the record of an operation; None if none of its samples could be read."""
    site, in_backward, _ = key
    having = [
        (number, one, one.calls[position])
        for number, one in matched
        if (position := one.positions.get(key)) is not None
    ]
    having = _usable_samples(having, (site, in_backward), anomalies)
    if not having:
        return None
    return OperationRecord(
        name=site.name,
        frames=site.frames,
        module_path=site.module_path,
        module_class=site.module_class,
        forward_ms=tuple(float(one.iteration.forward_ms[call]) for _, one, call in having),
        backward_ms=tuple(float(one.iteration.backward_ms[call]) for _, one, call in having)
        if in_backward
        else None,
        gap=_gap(
            [(one.iteration, call) for _, one, call in having],
            (reference.iteration, reference.calls[reference.positions[key]]),
            table,
            anomalies,
        ),
        recomputed_ms=_recomputed(having),
        iterations=None
        if len(having) == len(matched)
        else tuple(number for number, _, _ in having),
        region=_region(reference.iteration, reference.calls[reference.positions[key]]),
    )


def _recomputed(having: Sequence[tuple[int, SelectedCalls, int]]) -> tuple[float, ...] | None:
    """Return the time in which a call was recomputed; None if it was not recomputed."""
    times = [
        float("nan") if one.iteration.recomputed_ms is None else one.iteration.recomputed_ms[call]
        for _, one, call in having
    ]
    return None if np.isnan(times).all() else tuple(np.nan_to_num(times).tolist())


def _region(iteration: MeasuredIteration, call: int) -> int | None:
    """Return the number of the innermost region around a call; None outside of regions."""
    found = iteration.region(call)
    return None if found == NO_REGION else found


def _usable_samples(
    having: list[tuple[int, SelectedCalls, int]], entry: Entry, anomalies: Anomalies
) -> list[tuple[int, SelectedCalls, int]]:
    """Return the samples without time of other work, or all samples if none is certain."""
    read = [one for one in having if not one[1].iteration.untimed[one[2]]]
    if len(read) < len(having):
        anomalies.add(
            "operation_not_timed",
            f"{_say(entry)}: only {len(read)} of {len(having)} samples could be read",
        )
    sure = [one for one in read if not one[1].iteration.doubtful[one[2]]]
    if not sure and read:
        anomalies.add(
            "operation_time_holds_host_time",
            f"{_say(entry)}: in all {len(read)} samples, the device caught up with the "
            "host and waited for it",
        )
    return sure or read


def _gap(
    having: Sequence[tuple[MeasuredIteration, int]],
    reference: tuple[MeasuredIteration, int],
    table: SiteTable,
    anomalies: Anomalies,
) -> GapRecord | None:
    """Return the gap before an operation; None if its time or source lines are unknown."""
    stacks = _stacks(*reference, table)
    site = None
    with anomalies.recording_failures("gaps_not_placed", "source lines between two operations"):
        site = None if stacks is None else table.gap(stacks)
    if site is None or any(_stacks(*one, table) != stacks for one in having):
        return None
    # Events on two streams of a device may be recorded out of order; a gap is never negative.
    times = tuple(
        max(0.0, float(np.nan_to_num(iteration.gap_ms[call]))) for iteration, call in having
    )
    return GapRecord(site.file_path, site.first_line, site.last_line, times)


def _stacks(
    iteration: MeasuredIteration, call: int, table: SiteTable
) -> tuple[Stack, Stack] | None:
    """Return the stacks of the previous call and of `call`; None if a pass ends in between."""
    after = table.stack(int(iteration.sites[call]))
    if call == 0:
        return ((), after) if iteration.begins_with_forward else None
    if call in iteration.optimizer_steps or any(
        one.calls_before == call for one in iteration.passes
    ):
        return None  # a forward pass begins
    before = table.stack(int(iteration.sites[call - 1]))
    # Code outside the model may have loaded data in between.
    return (before, after) if before or iteration.begins_with_forward else None


def _record(one: SelectedCalls, whole: IterationTimes | None, *, matched: bool) -> IterationRecord:
    iteration = one.iteration
    forward = _forward_spans(iteration, one.calls)
    backward = _backward_spans(iteration)
    total_ms = iteration.total_ms
    forward_ms = sum((end - start for start, end in forward), 0.0) if forward else None
    backward_ms = sum(each.ms for each in iteration.passes) if backward else None
    if whole is not None:
        total_ms, backward_ms = whole.total_ms, whole.backward_ms
        if whole.forward_ms is not None:
            forward_ms = whole.forward_ms
        elif forward_ms is not None:  # without a module it contains the time of tracking
            forward_ms = min(forward_ms, total_ms - (backward_ms or 0.0))
    waited_ms = iteration.waited_ms([(0.0, iteration.total_ms)])
    forward_waited_ms = iteration.waited_ms(forward) if forward else None
    backward_waited_ms = iteration.waited_ms(backward) if backward else None
    if whole is not None:
        waited_ms, backward_waited_ms = whole.waited_ms, whole.backward_waited_ms
        if whole.forward_ms is not None:
            forward_waited_ms = whole.forward_waited_ms
    return IterationRecord(
        total_ms=total_ms,
        forward_ms=forward_ms,
        backward_ms=backward_ms,
        peak_usage_bytes=None,
        matched=matched,
        waited_ms=waited_ms,
        forward_waited_ms=forward_waited_ms,
        backward_waited_ms=backward_waited_ms,
        cpu_ms=None if whole is None else whole.cpu_ms,
        forward_cpu_ms=None if whole is None else whole.forward_cpu_ms,
        backward_cpu_ms=None if whole is None else whole.backward_cpu_ms,
        parts_ms={} if whole is None else whole.parts_ms,
    )


def _backward_spans(iteration: MeasuredIteration) -> list[Span]:
    """Return the intervals in which the autograd engine ran."""
    end_ms = np.concatenate([[0.0], iteration.end_ms])
    starts = [float(end_ms[one.calls_before]) + one.after_ms for one in iteration.passes]
    return [(start, start + one.ms) for start, one in zip(starts, iteration.passes, strict=True)]


def _forward_spans(iteration: MeasuredIteration, kept: Sequence[int]) -> list[Span]:
    """Return the intervals of forward passes, from the first shown operation to the backward pass.

    A forward pass without a backward pass ends with its last shown operation.
    """
    end_ms = iteration.end_ms
    starts = zip(iteration.passes, _backward_spans(iteration), strict=True)
    ends: list[tuple[int, float | None]] = [(one.calls_before, start) for one, (start, _) in starts]
    ends += [(count, None) for count in iteration.optimizer_steps]
    ends.append((len(end_ms), None))
    ends.sort(key=lambda end: end[0])
    spans: list[Span] = []
    position = 0
    for count, backward_start in ends:
        first = position
        while position < len(kept) and kept[position] < count:
            position += 1
        if position > first:
            start = end_ms[kept[first]] - iteration.forward_ms[kept[first]]
            end = backward_start if backward_start is not None else end_ms[kept[position - 1]]
            spans.append((float(start), float(end)))
    return spans


def build_activations(
    iteration: MeasuredIteration, saved_bytes: dict[int, int], table: SiteTable
) -> tuple[tuple[ActivationRecord, ...], int]:
    """Return the bytes saved by each shown operation, and the total of all other operations.

    Only operations in the backward pass count; without one, all operations with autograd nodes.
    """
    records = []
    anything = not iteration.passes
    rest = dict(saved_bytes)
    for index, number in enumerate(iteration.sites.tolist()):
        site = table.site(number, with_setup=iteration.with_setup)
        in_graph = index in saved_bytes or (anything and iteration.made_nodes[index])
        if site.kept and in_graph:
            records.append(
                ActivationRecord(
                    operation_name=site.name,
                    module_path=site.module_path,
                    module_class=site.module_class,
                    size_bytes=rest.pop(index, 0),
                    frames=site.frames,
                    region=_region(iteration, index),
                )
            )
    return tuple(records), sum(rest.values())


def _difference(sequence: Sequence[Entry], reference: Sequence[Entry], among: str) -> str:
    for position, (one, other) in enumerate(zip(sequence, reference, strict=False)):
        if one != other:
            return f"operation {position} is {_say(one)}, in {among} {_say(other)}"
    return f"{len(sequence)} operations, in {among} {len(reference)}"


def _say(entry: Entry) -> str:
    site, in_backward = entry
    where = f" at {site.line}" if site.line else ""
    return f"{site.name}{where} {'with' if in_backward else 'without'} backward"
