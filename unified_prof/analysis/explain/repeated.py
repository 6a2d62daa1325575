"""Sequences that come again and again in a row of things: of kernels, what could be one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def repeated(
    token: Ints, segment: Ints, *, shortest: int, longest: int, more_than: int
) -> Iterator[tuple[int, Ints, Ints]]:
    """Find the sequences of some lengths that occur more often than a number of times.

    Args:
        token: what each thing of the row is.
        segment: the part of the row that each is in, in rising order; no sequence leaves its part.
        shortest: things in a sequence, at least.
        longest: at most.
        more_than: how often a sequence occurs at least, and once more.

    Yields:
        The length, and where sequences of that length begin, and which of them each is. They may
        overlap.
    """
    if not len(token):
        return
    code = np.unique(token, return_inverse=True)[1].astype(np.int64)
    until = np.searchsorted(segment, segment, side="right")
    many = int(code.max()) + 1
    place, number = np.arange(len(token)), code
    for length in range(1, longest + 1):
        if length > 1:
            inside = place + length <= until[place]
            place, number = place[inside], number[inside]
            longer = number * many + code[place + length - 1]
            number = np.unique(longer, return_inverse=True)[1].astype(np.int64)
        if not len(place):
            return
        # A sequence that is rare makes no longer one that is not.
        often = np.bincount(number)[number] > more_than
        place, number = place[often], number[often]
        if length >= shortest and len(place):
            yield length, place, number


def period(sequence: Sequence[int]) -> int:
    """Return after how many things a sequence begins anew; its length if it does not."""
    size = len(sequence)
    return next((one for one in range(1, size) if sequence[one:] == sequence[: size - one]), size)


def first_rotation(sequence: Sequence[int]) -> tuple[int, ...]:
    """Return the rotation of a sequence that all its rotations have in common."""
    turned = [(*sequence[at:], *sequence[:at]) for at in range(len(sequence))]
    return min(turned)


def apart(begins: Ints, length: int) -> Ints:
    """Return which of some sequences (numbers in rising `begins`) overlap none chosen before."""
    if not len(begins) or int(np.diff(begins).min(initial=length)) >= length:
        return np.arange(len(begins))
    chosen, free = [], 0
    for at, begin in enumerate(begins.tolist()):
        if begin >= free:
            chosen.append(at)
            free = begin + length
    return np.array(chosen, np.int64)
