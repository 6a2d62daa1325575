"""What msprof takes on this machine: asked of msprof itself, else read in the table of chips.

`msprof --help` starts nothing and lists the options of the chip that its driver sees, of this very
release, with the counters of `--aic-metrics`. Nothing of it is needed: what is not known is tried,
and left out when msprof refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from unified_prof.backends import cann, npu_chips
from unified_prof.backends.npu_chips import Chip

_OPTION = re.compile(r"^\s*--([a-z][a-z0-9-]*)\s+<(?:Optional|Mandatory)>", re.MULTILINE)
_METRICS = re.compile(r"\binclude:?\s+([A-Za-z0-9,\s]+?)\s*\.")
_UPPER_LIMIT = re.compile(r"\b\d+ ?~ ?(\d+)\b")
_QUOTED = re.compile(r"'([a-z0-9]+)'")
_BRACKETED = re.compile(r"\bin range \[([a-z0-9, ]+)\]")
_ALWAYS_THERE = frozenset({"output", "ascendcl", "task-time"})
"""Without these a text is not the help of msprof, or not the whole of it."""
_WITH_VALUES = ("task-time", "task-block")
_WITH_LIMIT = "sys-hardware-mem-freq"


@dataclass(frozen=True, slots=True)
class Offer:
    """Options and their values; whatever is not known is taken to be possible."""

    chip: str | None = None
    """What the chip is called by those who were asked."""
    place: str = "here"
    """Where it is so, as a message says it: `on a 310P`."""
    refused: frozenset[str] = frozenset()
    """Options that end msprof at once."""
    options: frozenset[str] | None = None
    """All that msprof has; None: not known."""
    metrics: tuple[str, ...] | None = None
    """What `--aic-metrics` may be; None: not known."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    custom_events: int | None = None

    def takes(self, flag: str) -> bool:
        """Return whether msprof takes the option `--FLAG`, as far as is known."""
        return flag not in self.refused and (self.options is None or flag in self.options)

    def without(self, flag: str) -> Offer:
        """Return what is offered when `--FLAG` was refused."""
        return replace(self, refused=self.refused | {flag})


def learn(chip_name: str | None = None) -> Offer:
    """Return what msprof takes here, or on the chip that the user names.

    Raises:
        UsageError: there is no chip of that name.
    """
    if chip_name is not None:
        chip = npu_chips.named(chip_name)
        return replace(of_chip(chip) if chip else Offer(), chip=chip_name)
    full_name = cann.chip()
    chip = npu_chips.by_full_name(full_name)
    base = replace(of_chip(chip) if chip else Offer(), chip=full_name)
    return of_help(cann.msprof_help() or "", base) or base


def of_chip(chip: Chip) -> Offer:
    """Return what msprof takes on `chip`."""
    return Offer(
        place=f"on a {chip.name}",
        refused=chip.refuses,
        metrics=chip.metrics,
        values=chip.values,
        limits=chip.limits,
        custom_events=chip.custom_events,
    )


def of_help(text: str, base: Offer) -> Offer | None:
    """Return what the help of msprof lists, or None where `text` is no such help.

    Args:
        text: What `msprof --help` printed.
        base: What else is known; of it is kept what the help does not tell.
    """
    starts = [*_OPTION.finditer(text)]
    bounds = [*(start.start() for start in starts), len(text)]
    details = {
        start[1]: text[start.end() : end] for start, end in zip(starts, bounds[1:], strict=True)
    }
    if not details.keys() >= _ALWAYS_THERE:
        return None
    values = {
        name: found for name in _WITH_VALUES if len(found := _values_in(details.get(name, ""))) > 1
    }
    limits = [int(one) for one in _UPPER_LIMIT.findall(details.get(_WITH_LIMIT, ""))]
    return replace(
        base,
        refused=frozenset(),
        options=frozenset(details),
        metrics=_metrics_in(details.get("aic-metrics", "")) or base.metrics,
        values={**base.values, **values},
        limits={**base.limits, **({_WITH_LIMIT: max(limits)} if limits else {})},
    )


def _values_in(detail: str) -> tuple[str, ...]:
    if found := _BRACKETED.search(detail):
        return tuple(one.strip() for one in found[1].split(","))
    return tuple(dict.fromkeys(_QUOTED.findall(detail)))


def _metrics_in(detail: str) -> tuple[str, ...]:
    found = _METRICS.search(detail)
    names = [one.strip() for one in found[1].split(",")] if found else []
    return tuple(names) if names and all(map(str.isalnum, names)) else ()
