"""Classes of device tasks (matmul, normalization, cast...) by names of kernels and operations.

The same model runs different kernels on the devices of different vendors; classes make them
comparable. High-level operations such as attention keep all their kernels, so that a fused kernel
is compared with the unfused ones of the other device. Casts, layout changes and copies are always
separate, because devices differ in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints
from unified_prof.recording.breakdowns import finish
from unified_prof.recording.calls import COMMUNICATION, COPY, UNKNOWN, Labels, sort_rows
from unified_prof.recording.framework import OTHER_PASS
from unified_prof.recording.model import Breakdown, Row
from unified_prof.recording.names import (
    ATTENTION,
    CAST,
    COLLECTIVES,
    CONVOLUTION,
    COPIES,
    ELEMENT_WISE,
    EMBEDDING,
    MATMUL,
    NORMALISATION,
    OPTIMIZER,
    REDUCTION,
    REST,
    class_of_kernel,
    class_of_operation,
)
from unified_prof.recording.recording import BreakdownSpec, Recording
from unified_prof.recording.task_order import TaskWindow

CLASSES: Final = (
    MATMUL,
    CONVOLUTION,
    ATTENTION,
    NORMALISATION,
    ELEMENT_WISE,
    REDUCTION,
    EMBEDDING,
    OPTIMIZER,
    CAST,
    COPIES,
    COLLECTIVES,
    REST,
)

# Operations of these classes include all kernels that they launch, except casts.
_KEEP_THEIR_KERNELS: Final = (CONVOLUTION, ATTENTION, NORMALISATION, EMBEDDING, OPTIMIZER)

# Kernels of these classes keep their class within any operation.
_KEEP_THEIR_NAMES: Final = (COLLECTIVES, CAST, COPIES)

_NODE: Final = re.compile(r"Backward\d*$")


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
        return COLLECTIVES
    if kind == COPY:
        return COPIES
    of_framework = _is_of_framework(operator)
    # The vendor's type decides over the kernel's name.
    pattern = None if of_framework else class_of_kernel(operator)
    own = pattern or class_of_kernel(kernel)
    if own in _KEEP_THEIR_NAMES:
        return own
    if in_optimizer:
        return OPTIMIZER
    around = (class_of_operation(operator) if of_framework else None, class_of_operation(operation))
    for result in around:
        if result in _KEEP_THEIR_KERNELS:
            return result
    return own or around[0] or around[1] or REST


def classes_of(
    labels: Labels, kind: Ints, kernel: Ints, operator: Ints, operation: Ints, in_optimizer: Ints
) -> NDArray[np.int64]:
    """Return `class_of` for many tasks, as indices in CLASSES; names are numbers in `labels`."""
    cache = _class_caches.setdefault(labels, _ClassCache(labels))
    of_framework = cache.lookup(operator, _is_of_framework) == 1
    kernels = cache.lookup(kernel, _place_of_kernel)
    types = cache.lookup(operator, _place_of_kernel)
    inner = cache.lookup(operator, _place_of_operation)
    inner[~of_framework] = UNKNOWN
    outer = cache.lookup(operation, _place_of_operation)
    own = np.where(of_framework | (types == UNKNOWN), kernels, types)
    result = np.full(len(kind), CLASSES.index(REST), np.int64)
    # From the weakest evidence to the strongest.
    for found in (outer, inner, own):
        result = np.where(found != UNKNOWN, found, result)
    keeping = [CLASSES.index(one) for one in _KEEP_THEIR_KERNELS]
    for found in (outer, inner):
        result = np.where(np.isin(found, keeping), found, result)
    result[in_optimizer != 0] = CLASSES.index(OPTIMIZER)
    named = np.isin(own, [CLASSES.index(one) for one in _KEEP_THEIR_NAMES])
    result = np.where(named, own, result)
    result[kind == COPY] = CLASSES.index(COPIES)
    result[kind == COMMUNICATION] = CLASSES.index(COLLECTIVES)
    return result


class _ClassCache:
    """Classes of names, each determined once."""

    def __init__(self, labels: Labels) -> None:
        self._texts = labels.texts
        self._found: dict[Callable[[str], int | None], NDArray[np.int8]] = {}

    def lookup(self, numbers: Ints, classify: Callable[[str], int | None]) -> NDArray[np.int8]:
        """Return the class of each name by a function of its text; UNKNOWN if there is none."""
        result = self._found.get(classify, np.full(1, UNKNOWN, np.int8))
        if len(result) <= len(self._texts):
            # The value for UNKNOWN is last, as for an index of -1.
            more = np.full(len(self._texts) + 1 - len(result), _NOT_CACHED, np.int8)
            result = np.concatenate((result[:-1], more, result[-1:]))
            self._found[classify] = result
        missing = np.unique(numbers[result[numbers] == _NOT_CACHED])
        for number in missing.tolist():
            place = classify(self._texts[number])
            result[number] = UNKNOWN if place is None else place
        return result[numbers]


_NOT_CACHED: Final = -2
_class_caches: WeakKeyDictionary[Labels, _ClassCache] = WeakKeyDictionary()


def _place_of_kernel(name: str) -> int | None:
    result = class_of_kernel(name)
    return None if result is None else CLASSES.index(result)


def _place_of_operation(name: str) -> int | None:
    result = class_of_operation(name)
    return None if result is None else CLASSES.index(result)


def _is_of_framework(operator: str | None) -> bool:
    """Return True if an operator type is a framework operation, as in recordings of GPUs."""
    return operator is not None and bool("::" in operator or _NODE.search(operator))


def _is_available(recording: Recording) -> bool:
    return recording.clock == "device"


def classes_of_work(recording: Recording) -> NDArray[np.int8]:
    """Return the class of each row of `Recording.work`, as index in CLASSES."""
    result = np.zeros(len(recording.work), np.int8)
    for window, found, _ in _windows(recording):
        result[window.rows] = found
    return result


def _windows(recording: Recording) -> Iterator[tuple[TaskWindow, NDArray[np.int64], Ints]]:
    """Yield windows of tasks, the class of each, and the number of the operation's name."""
    work = recording.work
    _ = work.kernel_numbers, work.operator_numbers
    for window in work.windows():
        called = work.called(window)
        found = classes_of(
            work.labels,
            window.kind.astype(np.int64),
            window.kernel.astype(np.int64),
            window.operator.astype(np.int64),
            called,
            _in_optimizer(recording, window),
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


def _in_optimizer(recording: Recording, some: TaskWindow) -> Ints:
    """Return 1 for tasks that an optimizer step launched."""
    if recording.framework is None:
        return np.zeros(len(some), np.int64)
    result: Ints = (recording.work.launches.passes[some.rows] == OTHER_PASS).astype(np.int64)
    return result


BREAKDOWNS = {"class": BreakdownSpec(_is_available, _breakdown)}
