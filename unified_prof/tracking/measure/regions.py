"""From the regions of a whole run to those that its report shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from unified_prof.runs.records import ActivationRecord, OperationRecord, RegionRecord
from unified_prof.tracking.watch.calls import NO_REGION
from unified_prof.tracking.watch.measured import Measured
from unified_prof.tracking.watch.regions import Regions

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
