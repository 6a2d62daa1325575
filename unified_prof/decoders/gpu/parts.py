"""The parts of one recording of GPUs, read but not yet joined."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from unified_prof.columns import Sink
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.gpu.chains import CallChains
from unified_prof.decoders.gpu.collectives import Collectives, is_communication
from unified_prof.decoders.gpu.counters import Counters
from unified_prof.decoders.gpu.memory import DEVICE_COMPONENT
from unified_prof.decoders.gpu.numbers import Bools, Int64s
from unified_prof.decoders.gpu.pools import Geometries, Names, Signatures, Threads
from unified_prof.decoders.rows import Rows
from unified_prof.decoders.scratch import Scratch
from unified_prof.decoders.spool import Spool

RUN_BYTES = 4 << 20
"""Rows kept in memory before they are sorted and put away, of each kind."""

Own = TypeVar("Own", bound="Parts")


class Parts:
    """Rows of every kind, each kind in a spool, and the pools that they refer to.

    A decoder appends rows; `tables.write` reads them back. A context manager.
    """

    collectives: Collectives

    def __init__(self, sink: Sink, is_outside: Callable[[str], bool] = lambda frame: False) -> None:
        self.sink = sink
        self.names = Names(sink.strings)
        self.threads = Threads(sink.anomaly)
        self.signatures = Signatures(sink.strings)
        self.geometries = Geometries()
        self.collectives = Collectives()
        self.chains = CallChains(is_outside)
        self.counters = Counters()

        def spool(dtype: np.dtype[Any], key: str = "start") -> Spool:
            return Spool(dtype, key, run_rows=max(1, RUN_BYTES // dtype.itemsize), by_column=True)

        self.host = spool(r.HOST)
        self.frames = spool(r.FRAME)
        self.calls = spool(r.CALL)
        self.gpu = spool(r.GPU_TASK, "correlation")
        self.allocations = spool(r.ALLOCATION)
        self.gpu_annotations = spool(r.GPU_ANNOTATION)
        self.syncs = spool(r.SYNC)
        self.collections = spool(r.COLLECTION)
        self.other = spool(r.OTHER)
        self.new_spool = spool
        self.texts = Scratch()
        self.span: tuple[int, int] | None = None
        """First start and last end of all events, ns."""
        self.counts: dict[str, int] = defaultdict(int)
        """Events by kind."""
        self.activity: Counter[int] = Counter()
        """What each thread did on the host, by its number."""
        self._communication: dict[int, bool] = {}
        self.max_correlation = 0
        self.links_to_operations = False
        """Whether `external` of a device's tasks names an operation."""
        self.memory_component = DEVICE_COMPONENT
        """Who gave out the device's memory, as MEMORY_RECORD calls it."""
        self.adds_up_allocations = False
        """Whether the memory in use has to be worked out, as no allocation says it."""
        self.devices: set[int] = set()
        self.places: dict[tuple[Any, Any], int] = {}
        """(pid, tid) of events outside the host's threads."""

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for value in vars(self).values():
            if isinstance(value, Spool):
                value.__exit__(kind, error, traceback)
        self.texts.close()

    @property
    def main_process(self) -> int:
        """Id of the process that did most on the host, 0 if none did anything."""
        by_process: Counter[int] = Counter()
        for thread, count in self.activity.items():
            by_process[self.threads.process_ids[thread]] += count
        return by_process.most_common(1)[0][0] if by_process else 0

    def see(self, first_ns: int, last_ns: int) -> None:
        """Take note that something happened from `first_ns` to `last_ns`."""
        if self.span is not None:
            first_ns, last_ns = min(first_ns, self.span[0]), max(last_ns, self.span[1])
        self.span = first_ns, last_ns

    def see_correlations(self, rows: Rows) -> None:
        """Take note of correlation ids, beyond which fresh ids begin."""
        if len(rows):
            self.max_correlation = max(self.max_correlation, int(rows["correlation"].max()))

    def are_communication(self, names: Int64s) -> Bools:
        """Tell which kernels, by their names, are those of collectives."""
        known = self._communication
        distinct, inverse = np.unique(names, return_inverse=True)
        new = [number for number in distinct.tolist() if number not in known]
        if new:
            texts = {number: str(name) for name, number in self.names.items()}
            known.update((number, is_communication(texts[number])) for number in new)
        return np.array([known[number] for number in distinct.tolist()], dtype=bool)[inverse]
