"""Device work by what it computes: matmuls, attention, normalisation, casts, collectives...

Classes are those of `explain.classes`, which comparisons of devices use too: told from names of
kernels and of the operations around them, so that two vendors' recordings have the same rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import UNKNOWN, sort_rows
from unified_prof.analysis.explain.classes import CLASSES, classes_of
from unified_prof.analysis.model import Breakdown, Row
from unified_prof.analysis.read.framework import OTHER_PASS
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.breakdowns import finish
from unified_prof.analysis.views.pieces import Pieces
from unified_prof.analysis.ways import Way

Ints = NDArray[np.int64]


def _offered(recording: Recording) -> bool:
    return recording.clock == "device"


def _made(recording: Recording) -> Breakdown:
    work = recording.work
    _ = work.kernel_numbers, work.operator_numbers
    count, total = np.zeros(len(CLASSES), np.int64), np.zeros(len(CLASSES), np.int64)
    time_of: dict[tuple[int, int], int] = {}
    for one in work.windows():
        called, duration = work.called(one), one.duration_ns.astype(np.int64)
        found = classes_of(
            work.labels,
            one.kind.astype(np.int64),
            one.kernel.astype(np.int64),
            one.operator.astype(np.int64),
            called,
            _in_optimizer(recording, one),
        )
        np.add.at(count, found, 1)
        np.add.at(total, found, duration)
        # What most of a class is: an operation, or where none is known a kernel.
        said = np.where(called != UNKNOWN, called, one.kernel)
        size = len(work.labels.texts)
        pairs, number = np.unique(found * size + said, return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, number, duration)
        for pair, time in zip(pairs.tolist(), sums.tolist(), strict=True):
            key = divmod(pair, size)
            time_of[key] = time_of.get(key, 0) + time
    texts = work.labels.texts
    most: dict[int, tuple[int, str]] = {}
    for (place, said_of), time in time_of.items():
        most[place] = max(most.get(place, (-1, "")), (time, texts[said_of]))
    rows = [
        Row(
            name=CLASSES[place],
            kind="class",
            count=int(count[place]),
            total_ns=int(total[place]),
            detail=most[place][1],
        )
        for place in np.flatnonzero(count).tolist()
    ]
    return finish("class", sort_rows(rows))


def _in_optimizer(recording: Recording, some: Pieces) -> Ints:
    """Tell which pieces an optimizer's step launched."""
    if recording.framework is None:
        return np.zeros(len(some), np.int64)
    result: Ints = (recording.work.launches[1][some.rows] == OTHER_PASS).astype(np.int64)
    return result


WAYS = {"class": Way(_offered, _made)}
