"""Which kernels follow one another under an operation, and how often: what could be one kernel.

As HolisticTraceAnalysis finds them: all work that a call of an outermost operation launched, in
order of its start, where that are three pieces or more. Backward is an operation of its own. The
names of an Ascend's kernels number its operators, so there it is their types that follow one
another.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import sort_rows
from unified_prof.analysis.model import THEN, Breakdown, Row
from unified_prof.analysis.read.framework import NONE
from unified_prof.analysis.recording import Recording
from unified_prof.analysis.views.breakdowns import finish
from unified_prof.analysis.ways import Way

Ints = NDArray[np.int64]

SHORTEST = 3
"""Pieces of work that make a sequence."""


def _offered(recording: Recording) -> bool:
    return recording.clock == "device" and recording.framework is not None


def _breakdown(recording: Recording) -> Breakdown:
    framework, work = recording.framework, recording.work
    assert framework is not None
    start, lasted = work.start_ns.whole(), work.duration_ns.whole().astype(np.int64)
    # Names of an Ascend's kernels number the operators of a program: types are what comes again.
    kernel = work.operator if _is_ascend(recording) else work.kernel
    call = framework.outermost(work.connection.whole())
    order = np.lexsort((start, call))
    order = order[call[order] != NONE]
    call, start, lasted, kernel = call[order], start[order], lasted[order], kernel[order]
    first = np.flatnonzero(np.append(True, call[1:] != call[:-1])[: len(call)])
    size = np.diff(np.append(first, len(call)))
    texts, name = framework.names(call[first])
    found: dict[tuple[int, bytes], list[int]] = {}
    chosen = np.flatnonzero(size >= SHORTEST)
    for number in chosen.tolist():
        own = slice(int(first[number]), int(first[number] + size[number]))
        sums = found.setdefault((int(name[number]), kernel[own].tobytes()), [0, 0, 0, 0])
        at = call[first[number] : first[number] + 1]
        sums[0] += 1
        sums[1] += int(lasted[own].sum())
        sums[2] += int((start[own] + lasted[own]).max() - start[own][0])
        sums[3] += int((framework.end_ns[at] - framework.start_ns[at])[0])
    rows = []
    for (operation, sequence), (count, time, elapsed, host) in found.items():
        labels = np.frombuffer(sequence, kernel.dtype).tolist()
        rows.append(
            Row(
                name=texts[operation],
                kind="sequence",
                count=count,
                total_ns=time,
                detail=in_words(work.labels.texts[label] for label in labels),
                extra={"kernels": len(labels), "elapsed_ns": elapsed, "host_ns": host},
            )
        )
    return finish("sequence", sort_rows(rows))


def _is_ascend(recording: Recording) -> bool:
    return any("Ascend" in name for name in recording.devices)


def in_words(kernels: Iterable[str]) -> str:
    """Return the names of kernels in their order, of the same ones in a row how many there are."""
    runs = [(name, len(list(own))) for name, own in groupby(kernels)]
    return THEN.join(name if count == 1 else f"{name} x{count}" for name, count in runs)


WAYS = {"sequence": Way(_offered, _breakdown)}
