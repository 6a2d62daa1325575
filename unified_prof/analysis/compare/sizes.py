"""Weights and activations whose size changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unified_prof.analysis.compare.comparable import Place, Sized, pair

SizeStatus = Literal["new", "gone", "bigger", "smaller"]


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A weight or an activation whose size changed."""

    place: Place
    status: SizeStatus
    base_bytes: int | None
    new_bytes: int | None

    @property
    def delta_bytes(self) -> int:
        """New size less base size."""
        return (self.new_bytes or 0) - (self.base_bytes or 0)


def resized(base: Sequence[Sized], new: Sequence[Sized]) -> list[SizeChange]:
    """Return what has another size, is new or gone, by the size of the change."""
    first, second = pair([one.place for one in base], [one.place for one in new])
    paired_base, paired_new = set(first.tolist()), set(second.tolist())
    changes = []
    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        before, after = base[i].size_bytes, new[j].size_bytes
        if before != after:
            status: SizeStatus = "bigger" if after > before else "smaller"
            changes.append(SizeChange(new[j].place, status, before, after))
    changes += [
        SizeChange(one.place, "new", None, one.size_bytes)
        for j, one in enumerate(new)
        if j not in paired_new
    ]
    changes += [
        SizeChange(one.place, "gone", one.size_bytes, None)
        for i, one in enumerate(base)
        if i not in paired_base
    ]
    return sorted(changes, key=lambda change: -abs(change.delta_bytes))
