"""Values that lie near the ones before them: held as how far, which takes fewer bytes still.

Times of what follows one another, rows that were put in order by thread, ids that count: such
values differ by little from their neighbours and by much in all. The few that do not are held by
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_ASKED: Final = 61
"""Every so manieth step is looked at to see how wide most of them are; what takes turns often
does so by an even number."""
_FAR: Final = 64
"""At most one of so many steps may be held by itself, in twelve bytes."""
_LIMITS: Final = ((0, None), (255, np.uint8), (65_535, np.uint16))
"""How far steps of a width may lie apart."""
_WIDEST: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Values as the first one and the steps between them."""

    first: int
    least: int
    """What is to be added to every step."""
    above: NDArray[Any] | None
    """How far each step lies above that; None: all are alike."""
    far: NDArray[np.int32]
    """Which steps are something else..."""
    far_steps: Ints
    """...namely these."""

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return (0 if self.above is None else self.above.nbytes) + 12 * len(self.far)

    def into(self, result: NDArray[Any], low: int, high: int) -> None:
        """Write the values of rows low to high."""
        if self.above is None and not len(self.far):
            begin = self.first + low * self.least
            if self.least:
                result[:] = np.arange(begin, begin + (high - low) * self.least, self.least)
            else:
                result[:] = begin
            return
        whole = low == 0 and result.dtype == np.int64
        steps = result if whole else np.empty(high, np.int64)
        steps[0] = self.first
        if self.above is None:
            steps[1:] = self.least
        else:
            above = self.above[: high - 1]
            np.add(above, self.least, out=steps[1:], dtype=np.int64, casting="unsafe")
        near = int(np.searchsorted(self.far, high - 1))
        steps[1:][self.far[:near]] = self.far_steps[:near]
        np.cumsum(steps, out=steps)
        if not whole:
            result[:] = steps[low:]


def in_steps(values: Ints, span: int, below: int) -> Steps | None:
    """Return values by their steps, None where these do not take fewer than so many bytes each.

    Args:
        values: what is to be held.
        span: how far they lie apart.
        below: bytes that each takes in another way.
    """
    if len(values) < _FAR or span > _WIDEST:
        return None
    step = np.diff(values)
    some = np.sort(step[::_ASKED])
    edge = len(some) // _FAR // 2
    least, most = int(some[edge]), int(some[-1 - edge])
    for limit, width in _LIMITS:
        size = 0 if width is None else np.dtype(width).itemsize
        if size >= below:
            return None
        if most - least > limit:
            continue
        # What was not looked at lies around what was.
        low = least - (limit - (most - least)) // 2
        # Steps below that are beyond all limits as numbers without a sign.
        beyond = (step - low).view(np.uint64)
        far = np.flatnonzero(beyond > limit)
        if len(far) * _FAR > len(step):
            continue
        above = None if width is None else beyond.astype(width)
        return Steps(int(values[0]), low, above, far.astype(np.int32), step[far])
    return None
