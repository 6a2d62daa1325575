"""Puts the two halves of a folder together: FRAMEWORK/ and PROF_*."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.ascend_pt import folder as files
from unified_prof.decoders.ascend_pt import links, memory, tables
from unified_prof.decoders.ascend_pt.folder import AscendFolder, clock_of
from unified_prof.decoders.ascend_pt.frames import read_frames
from unified_prof.decoders.ascend_pt.host_times import epoch_ns
from unified_prof.decoders.ascend_pt.operators import Operators
from unified_prof.decoders.ascend_pt.queue import Queue
from unified_prof.decoders.ascend_pt.records import read_flat
from unified_prof.decoders.ascend_pt.texts import string_ids
from unified_prof.decoders.ascend_pt.watched import Watched
from unified_prof.decoders.prof.coverage import undecoded
from unified_prof.decoders.prof.raw.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.decoders.prof.stages import Stage
from unified_prof.errors import RawFormatError

_COLLECTION = np.dtype([("pid", "<u8"), ("start", "<u8"), ("end", "<u8")])


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the folder says of itself."""

    rank: int | None
    operators: int
    connections: int
    devices: tuple[int, ...]


def decode(path: Path, sink: Sink, stage: Stage = lambda _: nullcontext()) -> Decoded:
    """Write every table that the folder can feed.

    A part that cannot be decoded is counted as an anomaly and costs its own tables only.

    Raises:
        RawFormatError: the folder has neither part, or none that can be used.
    """
    folder = AscendFolder(path)
    watched = Watched(sink, folder.rank)
    prof = _decode_prof(folder, watched, stage)
    if prof is None:
        watched.write("RANK_DEVICE_MAP", {"rankId": [-1], "deviceId": [-1]})
    framework = _Framework(folder, prof, watched, stage)
    framework.decode()
    folder.write_metadata(sink)
    for name in folder.other_files():
        folder.problems.append(("undecoded_data", f"{files.FRAMEWORK}/{name}"))
    for name, told in folder.problems:
        sink.anomaly(name, 1, told)
    devices = () if prof is None else tuple(device.device_id for device in prof.devices)
    return Decoded(folder.rank, framework.operators, framework.connections, devices)


def _decode_prof(folder: AscendFolder, sink: Sink, stage: Stage) -> ProfDirectory | None:
    if folder.prof is None:
        if folder.has_framework:
            return None
        raise RawFormatError(
            f"{folder.path} has neither {files.FRAMEWORK}/ nor PROF_*",
            hint="the text export alone is taken as well: name ASCEND_PROFILER_OUTPUT",
            slug="incomplete-recording",
        )
    try:
        prof = ProfDirectory(folder.prof)
        for what in undecoded(prof):
            sink.anomaly("undecoded_data", 1, what)
        decode_recording(prof, sink, stage)
    except RawFormatError as err:
        if not folder.has_framework:
            raise
        sink.anomaly("undecoded_part", 1, f"PROF_*: {err}")
        return None
    return prof


class _Framework:
    """The host side of PyTorch, on its way into the tables."""

    def __init__(
        self, folder: AscendFolder, prof: ProfDirectory | None, sink: Watched, stage: Stage
    ) -> None:
        self._folder = folder
        self._sink = sink
        self._stage = stage
        self._device = prof.devices[0].device_id if prof and len(prof.devices) == 1 else None
        self.operators = 0
        self.connections = 0
        self._clock = folder.clock(None if prof is None else clock_of(prof))

    def decode(self) -> None:
        """Write the tables of torch_npu; what a file that cannot be read feeds is left out."""
        sink, stage = self._sink, self._stage
        with stage("operators of PyTorch"):
            operators = self._part(files.OPERATORS, Operators.read)
            if operators is None:
                operators = Operators.read(None, self._times, sink)
            self.operators = len(operators)
            names = string_ids(sink.strings, operators.names, operators.name)
            queue = self._part(files.MARKS, Queue.read)
            if queue is None:
                queue = Queue.read(None, self._times, sink)
        pid = self._process(operators, queue)
        if self._folder.has_framework:
            tables.write_types(sink)
        with stage("connections"):
            connections = links.operator_connections(
                operators, queue, sink.launches(), operators.pid, sink.marks()
            )
            self.connections = len(connections[0])
        with stage("tables of PyTorch"):
            used = tables.write_operators(operators, names, connections, pid, sink)
            tables.write_queue(queue, pid, used, sink)
            tables.write_steps(operators, sink)
        with stage("memory"):
            self._write_memory(operators, names, queue)
        del operators, queue, names
        with stage("Python calls"):
            self._part(files.CALLS, self._write_frames)
            self._part(files.COLLECTIONS, self._write_collections)

    def _part(self, name: str, read: Callable[[Path, Any, Sink], Any]) -> Any:
        path = self._folder.file(name)
        if path is None:
            return None
        try:
            return read(path, self._times, self._sink)
        except RawFormatError as err:
            self._sink.anomaly("undecoded_part", 1, f"{files.FRAMEWORK}: {err}")
            return None

    def _times(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        return epoch_ns(raw, self._clock)

    @staticmethod
    def _process(operators: Operators, queue: Queue) -> int:
        """Return the process of all rows, that of the first operator, as torch_npu takes it."""
        for part in (operators, queue.enqueues, queue.dequeues):
            if part.pid is not None:
                return part.pid
        return 0

    def _write_memory(self, operators: Operators, names: NDArray[np.int64], queue: Queue) -> None:
        sink = self._sink

        def read(path: Path, clock: Any, to: Sink) -> memory.Records:
            return memory.read_memory(path, clock, self._device, to)

        records = self._part(files.MEMORY, read)
        if records is None:
            records = memory.read_memory(None, self._times, self._device, sink)
        allocations = sink.allocations()
        memory.write_totals(records, allocations, sink)
        memory.write_allocations(records, operators, names, queue, sink)
        memory.write_cann_allocations(allocations, sink)

    def _write_frames(self, path: Path, clock: Any, sink: Sink) -> bool:
        tables.write_frames(
            read_frames(path, self._folder.file(files.CALL_NAMES), clock, sink), sink
        )
        return True

    def _write_collections(self, path: Path, clock: Any, sink: Sink) -> bool:
        records = read_flat(path, _COLLECTION, sink)
        tables.write_collections(
            clock(records["start"]),
            clock(records["end"]),
            records["pid"].astype(np.int64),
            sink,
        )
        return True
