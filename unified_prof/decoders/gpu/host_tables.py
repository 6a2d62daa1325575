"""Writes what ran on the host: operations, annotations, steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.nesting import NONE
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.numbers import MISSING, Int64s, known, null_where
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.rows import Rows
from unified_prof.vocabulary import (
    API_NAMES,
    API_OPERATION,
    NO_CATEGORY,
    NO_MARK_CONNECTION,
    NOT_AVAILABLE,
)

RANGE_EVENT = 2
"""ENUM_MSTX_EVENT_TYPE `start/end`: the type whose statistics msprof-analyze computes."""

_PENDING = np.dtype([("row", r.HOST), ("number", "i8"), ("chain", "i8"), ("called", "i1")])


def _mark(pending: NDArray[Any], called: Int64s) -> None:
    """Set `called` for the operations of these numbers."""
    called = called[called != NONE]
    operations = np.flatnonzero(pending["number"] != NONE)
    if len(called) and len(operations):
        # Numbers ascend, so the place of each is found by bisection.
        at = np.searchsorted(pending["number"][operations], called)
        pending["called"][operations[at]] = 1


class HostTables:
    """Writes operations once nothing more can happen inside of them."""

    def __init__(self, parts: Parts, base_ns: int) -> None:
        self._parts = parts
        self._sink = parts.sink
        self._base_ns = base_ns
        self._no_text = parts.sink.strings.intern(NOT_AVAILABLE)
        self._domain = parts.names["default"]
        self._pending = np.empty(0, dtype=_PENDING)
        self._used_chains: list[Int64s] = []
        self._wrote_operations = False

    def take(self, rows: Rows, numbers: Int64s, chains: Int64s, called: Int64s, bound: int) -> None:
        """Take operations and annotations of one window.

        Args:
            rows: Of dtype HOST.
            numbers: Number of each operation, `NONE` for annotations.
            chains: Number of each one's call chain, or `NONE`.
            called: Numbers of operations that made runtime calls in this window.
            bound: Whatever comes later starts later than this, ns.
        """
        new = np.empty(len(rows), dtype=_PENDING)
        new["row"], new["number"], new["chain"], new["called"] = rows, numbers, chains, 0
        pending = np.concatenate((self._pending, new)) if len(self._pending) else new
        _mark(pending, called)
        closed = pending["row"]["end"] <= bound
        self._write(pending, closed)
        self._pending = pending[~closed]

    def finish(self) -> None:
        """Write what was still open, and the call chains that operations refer to."""
        self._write(self._pending, np.ones(len(self._pending), dtype=bool))
        self._pending = self._pending[:0]
        if self._used_chains:
            self._parts.chains.write(self._sink, np.unique(np.concatenate(self._used_chains)))
        if self._wrote_operations:
            names = [API_NAMES[API_OPERATION]]
            self._sink.write("ENUM_API_TYPE", {"id": [API_OPERATION], "name": names})

    def _write(self, pending: NDArray[Any], chosen: NDArray[np.bool_]) -> None:
        is_operation = pending["number"] != NONE
        operations, annotations = chosen & is_operation, chosen & ~is_operation
        if operations.any():
            self._write_operations(pending[operations])
        if annotations.any():
            self._write_annotations(pending["row"][annotations])

    def _write_operations(self, pending: NDArray[Any]) -> None:
        rows = pending["row"]
        self._wrote_operations = True
        global_tids = np.array(self._parts.threads.global_tids)[rows["thread"]]
        chains = pending["chain"]
        self._sink.write(
            "PYTORCH_API",
            {
                "startNs": rows["start"] + self._base_ns,
                "endNs": rows["end"] + self._base_ns,
                "globalTid": global_tids,
                "connectionId": null_where(pending["called"] == 0, pending["number"]),
                "name": rows["name"],
                "sequenceNumber": rows["sequence"],
                "fwdThreadId": np.maximum(rows["forward_thread"], 0),
                "inputDtypes": self._of_signature(self._parts.signatures.types, rows),
                "inputShapes": self._of_signature(self._parts.signatures.shapes, rows),
                "callchainId": null_where(chains == NONE, chains),
                "type": API_OPERATION,
            },
        )
        used = np.unique(chains[chains != NONE])
        if len(used):
            self._used_chains = [np.unique(np.concatenate((*self._used_chains, used)))]
        self._write_inputs(rows, global_tids)

    def _write_inputs(self, rows: Rows, global_tids: Int64s) -> None:
        """Write the details of inputs that PYTORCH_API has no column for."""
        detailed = (rows["inputs"] != MISSING) | (rows["module"] != MISSING)
        if not detailed.any():
            return
        rows, global_tids = rows[detailed], global_tids[detailed]
        self._sink.write(
            "UPROF_OPERATION_INPUTS",
            {
                "startNs": rows["start"] + self._base_ns,
                "globalTid": global_tids,
                "name": rows["name"],
                "externalId": known(rows["external"]),
                "inputStrides": self._of_signature(self._parts.signatures.strides, rows),
                "concreteInputs": self._or_no_text(rows["inputs"]),
                "moduleHierarchy": self._or_no_text(rows["module"]),
            },
        )

    def _write_annotations(self, rows: Rows) -> None:
        steps = self._parts.names.steps
        if steps:
            is_step = np.isin(rows["name"], list(steps)) & (rows["finished"] != 0)
            if is_step.any():
                self._sink.write(
                    "STEP_TIME",
                    {
                        "id": [steps[name] for name in rows["name"][is_step].tolist()],
                        "startNs": rows["start"][is_step] + self._base_ns,
                        "endNs": rows["end"][is_step] + self._base_ns,
                    },
                )
        global_tids = np.array(self._parts.threads.global_tids)[rows["thread"]]
        self._sink.write(
            "MSTX_EVENTS",
            {
                "startNs": rows["start"] + self._base_ns,
                "endNs": rows["end"] + self._base_ns,
                "eventType": RANGE_EVENT,
                "rangeId": NO_CATEGORY,
                "category": NO_CATEGORY,
                "message": rows["name"],
                "globalTid": global_tids,
                "endGlobalTid": global_tids,
                "domainId": self._domain,
                "connectionId": NO_MARK_CONNECTION,
            },
        )

    def _of_signature(self, texts: list[int], rows: Rows) -> Int64s:
        ids: Int64s = np.array([*texts, self._no_text])[rows["signature"]]  # MISSING: the last
        return ids

    def _or_no_text(self, ids: Int64s) -> Int64s:
        return np.where(ids != MISSING, ids, self._no_text)
