"""What several rules ask of a device's work: where it ran, what bounds it."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain import classes
from unified_prof.analysis.explain.advice.case import Case, Flags
from unified_prof.analysis.recording import Recording
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING

_AI_CPU = re.compile(r"ai_?cpu", re.IGNORECASE)
_PARTS = 1_000_000


def on_ai_cpu(case: Case) -> Flags:
    """Tell which kernels ran on an AI CPU."""
    tasks, pieces = case.recording.tasks, case.pieces
    slow = np.array([bool(_AI_CPU.search(text or "")) for text in [*tasks.type_texts, ""]])
    task = case.recording.work.task[pieces.row]
    found: Flags = (pieces.kind == KERNEL) & (task >= 0) & slow[np.append(tasks.type, -1)[task]]
    return found


def computing(case: Case) -> Flags:
    """Tell which kernels are bound by computation: products, convolutions and attention."""
    texts = case.recording.work.labels.texts
    bound = (classes.MATMUL, classes.CONVOLUTION, classes.ATTENTION)
    pairs, number = np.unique(np.stack([case.kernel, case.operator]), axis=1, return_inverse=True)
    told = [
        classes.class_of(KERNEL, texts[kernel], texts[operator]) in bound
        for kernel, operator in pairs.T.tolist()
    ]
    found: Flags = np.array(told, bool)[number.reshape(-1)]
    found &= case.pieces.kind == KERNEL
    return found


_kept: WeakKeyDictionary[Recording, dict[str, NDArray[np.int64]]] = WeakKeyDictionary()
_MOST_KEPT = 500_000
"""Rows that are kept for the next rule: of more, reading them again costs less than their room."""


def _counters(recording: Recording) -> dict[str, NDArray[np.int64]]:
    if (kept := _kept.get(recording)) is not None:
        return kept
    found: dict[str, NDArray[np.int64]] = recording.source.integers(
        "TASK_PMU_INFO",
        {"id": "globalTaskId", "name": "name", "value": f"CAST(value * {_PARTS} AS INTEGER)"},
    )
    if len(found["id"]) <= _MOST_KEPT:
        _kept[recording] = found
    return found


def highest_ratio(case: Case, counters: re.Pattern[str]) -> NDArray[np.float64]:
    """Return the highest of some ratios of pipes of each piece; NaN where none was recorded."""
    found = _counters(case.recording)
    ids = np.unique(found["name"])
    texts = case.recording.strings.texts(ids.tolist())
    ratios = ids[[bool(counters.match(text or "")) for text in texts]]
    chosen = np.isin(found["name"], ratios) & (found["value"] != MISSING)
    identity, value = found["id"][chosen], found["value"][chosen]
    pieces, tasks = case.pieces, case.recording.tasks
    if not len(identity):
        return np.full(len(pieces), np.nan)
    keys, number = np.unique(identity, return_inverse=True)
    top = np.zeros(len(keys), np.int64)
    np.maximum.at(top, number, value)
    task = case.recording.work.task[pieces.row]
    place = np.where(task >= 0, Lookup(keys).rows(np.append(tasks.identity, -1)[task]), -1)
    ratio: NDArray[np.float64] = np.where(place >= 0, top[place] / _PARTS, np.nan)
    return ratio
