"""Breakdowns of the call table by the labels it carries, and what all breakdowns share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from unified_prof.analysis.calls import KINDS, UNKNOWN, Calls, Ints, group
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


def by_label(calls: Calls, by: By) -> Breakdown:
    """Break the calls down by operation, module or line.

    The detail of an operation is its line, of a line its operation: where there are several, the
    one that took most of the time. The detail of a module is its class.
    """
    texts = calls.labels.texts
    if by == "operation":
        # A weight called `linear` is not an operation `linear`: the kind is part of the key.
        key = calls.name.astype(np.int64) * len(KINDS) + calls.kind
        names = [text for text in texts for _ in KINDS]
        return finish(by, group(calls, key, names, _main_label(calls, key, calls.line)))
    label = calls.module if by == "module" else calls.line
    assert label is not None, f"asked for {by}, which `available` does not offer"
    key = np.where(label == UNKNOWN, len(texts), label)
    if by == "line":
        rows = group(calls, key, [*texts, NO_LINE], _main_label(calls, key, calls.name))
    else:
        names = [*(text or ROOT_MODULE for text in texts), NO_MODULE]
        classes = {calls.labels.number(path): name for path, name in calls.module_class.items()}
        rows = group(calls, key, names, classes)
    return finish(by, [replace(row, kind=by) for row in rows])


def finish(by: By, rows: Iterable[Row]) -> Breakdown:
    """Return the rows as a breakdown whose percentages refer to their sum."""
    rows = tuple(rows)
    times = [row.total_ns for row in rows if row.total_ns is not None]
    sizes = [row.size_bytes for row in rows if row.size_bytes is not None]
    return Breakdown(by, rows, sum(times) if times else None, sum(sizes) if sizes else None)


def _main_label(calls: Calls, key: Ints, label: Ints | None) -> dict[int, str]:
    """Return for every key the label that weighs most, and how many others there are."""
    if label is None:
        return {}
    size = len(calls.labels.texts) + 1
    pairs, number = np.unique(key.astype(np.int64) * size + label + 1, return_inverse=True)
    weight = np.ones(len(pairs))
    for column in ("total_ns", "activation_bytes", "weight_bytes"):
        values = getattr(calls, column)
        if values is not None:
            weight += np.bincount(number, weights=np.maximum(values, 0), minlength=len(pairs))
    found: dict[int, list[tuple[float, int]]] = {}
    for pair, heavy in zip(pairs.tolist(), weight.tolist(), strict=True):
        if pair % size:
            found.setdefault(pair // size, []).append((heavy, pair % size - 1))
    details = {}
    for group_key, labels in found.items():
        text = calls.labels.texts[max(labels)[1]]
        details[group_key] = f"{text} (+{len(labels) - 1})" if len(labels) > 1 else text
    return details
