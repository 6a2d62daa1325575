"""Classes of device tasks (matmul, cast...) by names, whose patterns are in `recording.names`.

The same model runs different kernels on the devices of different vendors; classes make them
comparable. High-level operations such as attention keep all their kernels, so that a fused kernel
is compared with the unfused ones of the other device. Casts, layout changes and copies are always
separate, because devices differ in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import AnyInts, Ints
from unified_prof.recording import names
from unified_prof.recording.breakdowns import finish
from unified_prof.recording.calls import COMMUNICATION, COPY, UNKNOWN, Labels, sort_rows
from unified_prof.recording.framework import OTHER_PASS
from unified_prof.recording.model import Breakdown, BreakdownSpec, Row
from unified_prof.recording.operators import numbered
from unified_prof.recording.task_order import TaskWindow

if TYPE_CHECKING:
    from unified_prof.recording.recording import Recording

CLASSES: Final = (
    names.MATMUL,
    names.CONVOLUTION,
    names.ATTENTION,
    names.NORMALIZATION,
    names.ELEMENT_WISE,
    names.REDUCTION,
    names.EMBEDDING,
    names.OPTIMIZER,
    names.CAST,
    names.COPIES,
    names.COLLECTIVES,
    names.REST,
)

# Operations of these classes include all kernels that they launch, except casts.
_KEEP_THEIR_KERNELS: Final = frozenset(
    {names.CONVOLUTION, names.ATTENTION, names.NORMALIZATION, names.EMBEDDING, names.OPTIMIZER}
)

# Kernels of these classes keep their class within any operation.
_KEEP_THEIR_NAMES: Final = frozenset({names.COLLECTIVES, names.CAST, names.COPIES})

_NODE: Final = re.compile(r"Backward\d*$")


@lru_cache(maxsize=1 << 16)
def class_of(
    kind: int,
    kernel: str | None,
    operator: str | None = None,
    operation: str | None = None,
    *,
    in_optimizer: bool = False,
) -> str:
    """Return the class of a device task, one of CLASSES.

    Args:
        kind: Index in `calls.KINDS`.
        kernel: Name of the kernel.
        operator: Operator type of the vendor, or innermost framework operation.
        operation: Outermost framework operation.
        in_optimizer: True if an optimizer step launched it.
    """
    if kind == COMMUNICATION:
        return names.COLLECTIVES
    if kind == COPY:
        return names.COPIES
    # As in recordings of GPUs.
    of_framework = operator is not None and bool("::" in operator or _NODE.search(operator))
    # The vendor's type decides over the kernel's name.
    pattern = None if of_framework else names.class_of_kernel(operator)
    own = pattern or names.class_of_kernel(kernel)
    if own in _KEEP_THEIR_NAMES:
        return own
    if in_optimizer:
        return names.OPTIMIZER
    around = (
        names.class_of_operation(operator) if of_framework else None,
        names.class_of_operation(operation),
    )
    for result in around:
        if result in _KEEP_THEIR_KERNELS:
            return result
    return own or around[0] or around[1] or names.REST


def classes_of(
    labels: Labels,
    kind: AnyInts,
    kernel: AnyInts,
    operator: AnyInts,
    operation: AnyInts,
    in_optimizer: NDArray[Any],
) -> Ints:
    """Return `class_of` for many tasks, as indices in CLASSES; names are numbers in `labels`."""
    columns = (kind, kernel, operator, operation, in_optimizer)
    number = numbered(*columns)
    some = np.zeros(int(number.max(initial=-1)) + 1, np.int64)  # A row of each combination.
    some[number] = np.arange(len(number))
    classes = [
        CLASSES.index(
            class_of(place, *map(labels.text, (name, of_type, called)), in_optimizer=bool(is_step))
        )
        for place, name, of_type, called, is_step in zip(
            *(column[some].tolist() for column in columns), strict=True
        )
    ]
    return np.array(classes, np.int64)[number]


def classes_of_work(recording: Recording) -> NDArray[np.int8]:
    """Return the class of each row of `Recording.work`, as index in CLASSES."""
    result = np.zeros(len(recording.work), np.int8)
    for window, found, _ in _windows(recording):
        result[window.rows] = found
    return result


def _windows(recording: Recording) -> Iterator[tuple[TaskWindow, Ints, Ints]]:
    """Yield windows of tasks, the class of each, and the number of the operation's name."""
    work = recording.work
    _ = work.kernel_numbers, work.operator_numbers
    for window in work.windows():
        called = work.called(window)
        found = classes_of(
            work.labels,
            *(window.kind, window.kernel, window.operator, called),
            in_optimizer(recording, window.rows),
        )
        yield window, found, called


def _breakdown(recording: Recording) -> Breakdown:
    work = recording.work
    count, total = np.zeros(len(CLASSES), np.int64), np.zeros(len(CLASSES), np.int64)
    time_of: dict[tuple[int, int], int] = {}
    for window, found, called in _windows(recording):
        duration = window.duration_ns.astype(np.int64)
        np.add.at(count, found, 1)
        np.add.at(total, found, duration)
        # The longest operation of a class, or its kernel if unknown, is shown as detail.
        pattern = np.where(called != UNKNOWN, called, window.kernel)
        size = len(work.labels.texts)
        pairs, number = np.unique(found * size + pattern, return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, number, duration)
        for pair, time in zip(pairs.tolist(), sums.tolist(), strict=True):
            key = divmod(pair, size)
            time_of[key] = time_of.get(key, 0) + time
    texts = work.labels.texts
    most: dict[int, tuple[int, str]] = {}
    for (place, label), time in time_of.items():
        most[place] = max(most.get(place, (-1, "")), (time, texts[label]))
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


def in_optimizer(recording: Recording, rows: NDArray[np.integer] | slice) -> NDArray[np.bool_]:
    """Return a mask of rows of `Recording.work` that an optimizer step launched."""
    if recording.framework is None:
        return np.zeros(len(recording.work), bool)[rows]
    result: NDArray[np.bool_] = recording.work.launches.passes[rows] == OTHER_PASS
    return result


BREAKDOWNS = {"class": BreakdownSpec(lambda recording: recording.clock == "device", _breakdown)}
