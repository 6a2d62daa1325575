"""Breakdowns of the call table by the labels it carries, and what all breakdowns share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KINDS, UNKNOWN, Calls, Ints, SomeCalls, Sums
from unified_prof.analysis.kinds import By
from unified_prof.analysis.model import Breakdown, Row

NO_MODULE = "(outside any module)"
NO_LINE = "(no source line)"
ROOT_MODULE = "(root)"


def module_parts(path: str) -> list[str]:
    """Return the modules on the way to the one at `path`, itself included."""
    return path.split(".") if path else [ROOT_MODULE]


def available(calls: Calls, *, steps: bool, regions: bool = False) -> tuple[By, ...]:
    """Return the breakdowns that the calls of a tracked workload can give."""
    result: list[By] = []
    if len(calls):
        result.append("operation")
        if calls.module is not None:
            result.append("module")
        if calls.line is not None:
            result.append("line")
    if regions:
        result.append("annotation")
    if steps:
        result.append("step")
    return tuple(result)


def by_label(calls: SomeCalls, by: By) -> Breakdown:
    """Break the calls down by operation, module or line.

    The detail of an operation is its line, of a line its operation: where there are several, the
    one that took most of the time. The detail of a module is its class.
    """
    texts = calls.labels.texts
    if by == "operation":
        # A weight called `linear` is not an operation `linear`: the kind is part of the key.
        names = [text for text in texts for _ in KINDS]
        return finish(
            by,
            _rows(
                calls,
                names,
                lambda some: some.name.astype(np.int64) * len(KINDS) + some.kind,
                _MainLabels(texts, "line"),
            ),
        )
    assert calls.has(by), f"asked for {by}, which `available` does not offer"

    # Texts may come to them while calls are summed up: paths of classes that no call has.
    untold = len(texts)

    def label(some: Calls) -> Ints:
        own: Ints = getattr(some, by)
        return np.where(own == UNKNOWN, untold, own)

    if by == "line":
        rows = _rows(calls, [*texts, NO_LINE], label, _MainLabels(texts, "name"))
    else:
        names = [*(text or ROOT_MODULE for text in texts), NO_MODULE]
        classes = {calls.labels.number(path): name for path, name in calls.module_class.items()}
        rows = _rows(calls, names, label, classes)
    return finish(by, [replace(row, kind=by) for row in rows])


def _rows(
    calls: SomeCalls,
    names: Sequence[str],
    key_of: Callable[[Calls], Ints],
    details: _MainLabels | Mapping[int, str],
) -> list[Row]:
    """Return one row for each key 0..len(names)-1 that occurs."""
    sums = Sums(len(names))
    for some in calls.windows(least=len(names)):
        key = key_of(some)
        sums.add(some, key)
        if isinstance(details, _MainLabels):
            details.add(some, key)
    return sums.rows(names, details.found() if isinstance(details, _MainLabels) else details)


def finish(by: By, rows: Iterable[Row]) -> Breakdown:
    """Return the rows as a breakdown whose percentages refer to their sum."""
    rows = tuple(rows)
    times = [row.total_ns for row in rows if row.total_ns is not None]
    sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
    return Breakdown(by, rows, sum(times) if times else None, sum(sizes) if sizes else None)


class _MainLabels:
    """Finds for every key the label that weighs most, and how many others there are."""

    def __init__(self, texts: Sequence[str], column: str) -> None:
        self._texts, self._column = texts, column
        self._size = len(texts) + 1
        self._pairs: list[Ints] = []
        self._weights: list[NDArray[np.float64]] = []

    def add(self, calls: Calls, key: Ints) -> None:
        """Take more calls with their keys."""
        label: Ints | None = getattr(calls, self._column)
        if label is None:
            return
        pairs, number = np.unique(
            key.astype(np.int64) * self._size + label + 1, return_inverse=True
        )
        weight = np.zeros(len(pairs))
        for column in ("total_ns", "activation_bytes", "weight_bytes"):
            values = getattr(calls, column)
            if values is not None:
                weight += np.bincount(number, weights=np.maximum(values, 0), minlength=len(pairs))
        self._pairs.append(pairs)
        self._weights.append(weight)

    def found(self) -> dict[int, str]:
        """Return key -> label in words."""
        if not self._pairs:
            return {}
        (pairs, *more), weight = self._pairs, self._weights[0]
        if more:
            pairs, number = np.unique(np.concatenate(self._pairs), return_inverse=True)
            weight = np.bincount(number, np.concatenate(self._weights)).astype(np.float64)
        weight = weight + 1
        found: dict[int, list[tuple[float, int]]] = {}
        for pair, heavy in zip(pairs.tolist(), weight.tolist(), strict=True):
            if pair % self._size:
                found.setdefault(pair // self._size, []).append((heavy, pair % self._size - 1))
        details = {}
        for key, labels in found.items():
            text = self._texts[max(labels)[1]]
            details[key] = f"{text} (+{len(labels) - 1})" if len(labels) > 1 else text
        return details
