"""Decodes one memory snapshot: the allocator's totals and the lifetime of each block, per device.

The history of a device is replayed from the memory in use before its first action. Each block is
written with the times of its allocation and free, the totals at these times, and the call chain
that allocated it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from unified_prof.base.columns import NOT_AVAILABLE, Coverage, Sink
from unified_prof.base.text import NS_PER_US
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu.rows import DEVICE_COMPONENT, CallChains
from unified_prof.decoders.memory_snapshot import pickle_reader
from unified_prof.decoders.memory_snapshot.pickle_reader import (
    ALIVE,
    NONE,
    blocks_of,
    integer_or,
    mappings,
    stream_of,
)
from unified_prof.errors import RawFormatError

_MAX_BYTES = 2**53  # Totals beyond this come from a damaged file and are written as unknown.
# States of a block that was freed but is still in use by a stream.
_AWAITING_FREE = ("active_awaiting_free", "active_pending_free")

# Signs with which each action changes the allocated, reserved and active bytes.
CHANGES = {
    "alloc": (1, 0, 1),
    "free_requested": (-1, 0, 0),
    "free_completed": (0, 0, -1),
    "segment_alloc": (0, 1, 0),
    "segment_map": (0, 1, 0),
    "segment_free": (0, -1, 0),
    "segment_unmap": (0, -1, 0),
}


def _plausible_totals(totals: list[int]) -> tuple[int | None, ...]:
    """Return the allocated, reserved and active bytes; None if a value is impossible."""
    return tuple(total if 0 <= total < _MAX_BYTES else None for total in totals)


def totals_before(history: list[dict[Any, Any]], segments: list[dict[Any, Any]]) -> list[int]:
    """Return the allocated, reserved and active bytes before the first action.

    They are those of the final state minus all actions.
    """
    sums = [0, 0, 0]
    for segment in segments:
        sums[1] += max(0, integer_or(segment.get("total_size"), 0))
        for block, _ in blocks_of(segment):
            size, state = max(0, integer_or(block.get("size"), 0)), block.get("state")
            sums[0] += size if state == ALIVE else 0
            sums[2] += size if state == ALIVE or state in _AWAITING_FREE else 0
    lowest, running = [0, 0, 0], [0, 0, 0]
    for entry in history:
        action = entry.get("action")
        size = max(0, integer_or(entry.get("size"), 0))
        for at, sign in enumerate(CHANGES.get(action, ()) if isinstance(action, str) else ()):
            running[at] += sign * size
            lowest[at] = min(lowest[at], running[at])
    # If the final state is missing or contradicts the history, totals still never fall below 0.
    before = [end - change for end, change in zip(sums, running, strict=True)]
    return [max(total, -low) for total, low in zip(before, lowest, strict=True)]


# Python files that belong to libraries and not to the user's program.
_LIBRARY = re.compile(r"<|.*/(?:site|dist)-packages/")
# C++ frames of the stack recorder, the allocator and tensor factories, which name no operation.
_ALLOCATING_FRAME = re.compile(
    r"torch::unwind|CapturedTraceback|gather_with_cpp|Allocator|\b(?:at|c10)::detail::|\bempty"
)
_MAX_NAME_CHARACTERS = 1024  # Maximum characters of a file name and of a function name in a frame.


class CallStacks:
    """Call chains of allocations; a stack shared by several allocations is decoded once."""

    def __init__(self, sink: Sink) -> None:
        # Chain and name of allocations without a recorded stack.
        self.unknown = NONE, sink.strings.intern(NOT_AVAILABLE)
        self._sink = sink
        self._chains = CallChains(lambda frame: False)
        # `id()` of a stack -> chain and name; the snapshot keeps the stacks alive.
        self._decoded: dict[int, tuple[int, int]] = {}
        self._texts: dict[int, str | None] = {}
        self._used: set[int] = set()

    def decode(self, frames: Any) -> tuple[int, int]:
        """Return the call chain of an allocation and the string id of its name.

        `frames` are mappings with name, filename and line, innermost first. The name is the
        innermost frame in a Python file of the user; if there is none, in any Python file; if there
        is none, the innermost C++ frame outside the allocator.
        """
        if type(frames) is not list or not frames:
            return self.unknown
        decoded = self._decoded.get(id(frames))
        if decoded is None:
            texts = [text for text in map(self._text, frames) if text is not None]
            chain = self._chains.innermost(texts[::-1])
            name = _allocation_name(texts)
            number = self.unknown[1] if name is None else self._sink.strings.intern(name)
            decoded = self._decoded[id(frames)] = (chain, number)
            if chain != NONE:
                self._used.add(chain)
        return decoded

    def _text(self, frame: Any) -> str | None:
        if id(frame) not in self._texts:
            self._texts[id(frame)] = _frame_text(frame)
        return self._texts[id(frame)]

    def write(self) -> None:
        """Write the call chains of all decoded stacks."""
        if self._used:
            self._chains.write(self._sink, np.array(sorted(self._used), np.int64))


def frames_of(block: dict[Any, Any]) -> Any:
    """Return the stack of a block that is in use."""
    frames, history = block.get("frames"), block.get("history")
    if not frames and isinstance(history, list) and history:  # before torch 2.1
        return history[0].get("frames") if isinstance(history[0], dict) else None
    return frames


def _frame_text(frame: Any) -> str | None:
    """Return a frame as Kineto writes it: `file.py(line): function`."""
    if not isinstance(frame, dict):
        return None
    name, file = frame.get("name"), frame.get("filename")
    if not isinstance(name, str) or not name.strip():
        return None
    name = name[:_MAX_NAME_CHARACTERS].replace(";", ",").strip()
    if not isinstance(file, str) or file in ("", "??"):
        return name
    file = file[-_MAX_NAME_CHARACTERS:].replace(";", ",").strip()
    return f"{file}({integer_or(frame.get('line'), 0)}): {name}"


def _allocation_name(texts: list[str]) -> str | None:
    """Return the frame that gives an allocation its name, None if there is none."""
    python = [text for text in texts if ".py(" in text]
    own = (text for text in python if not _LIBRARY.match(text))
    significant = (text for text in texts if not _ALLOCATING_FRAME.search(text))
    return next(own, None) or next(iter(python), None) or next(significant, None)


_BATCH_ROWS = 50_000  # Rows of one table that are written together.

_MEMORY_COLUMNS = (
    "component timestamp totalAllocated totalReserved totalActive streamPtr deviceId"
).split()
_BLOCK_COLUMNS = (
    "name size allocationTime releaseTime activeReleaseTime duration activeDuration"
    " allocationTotalAllocated allocationTotalReserved allocationTotalActive releaseTotalAllocated"
    " releaseTotalReserved releaseTotalActive streamPtr deviceId"
).split()
_CHAIN_COLUMNS = "deviceId address sizeBytes allocationNs releaseNs callchainId".split()
_SEGMENT_COLUMNS = (
    "deviceId address sizeBytes allocatedBytes freeBytes largestFreeBytes blocks kind streamPtr"
).split()
_EVENT_COLUMNS = "startNs endNs category name process thread args".split()


class SnapshotTables:
    """Writes the tables of allocator actions."""

    def __init__(self, sink: Sink) -> None:
        self._component = sink.strings.intern(DEVICE_COMPONENT)
        self._memory = RowBatch(sink, "MEMORY_RECORD", _MEMORY_COLUMNS)
        self.blocks = RowBatch(sink, "OP_MEMORY", _BLOCK_COLUMNS)
        self.chains = RowBatch(sink, "UPROF_MEMORY_BLOCKS", _CHAIN_COLUMNS)
        self.segments = RowBatch(sink, "UPROF_MEMORY_SEGMENTS", _SEGMENT_COLUMNS)
        self._events = RowBatch(sink, "UPROF_TRACE_EVENTS", _EVENT_COLUMNS)
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._intern = sink.strings.intern

    def add_segment(self, segment: dict[Any, Any], device: int) -> bool:
        """Write the use of a segment at the end; return False if its sizes are impossible."""
        allocated = awaiting = largest = used = 0
        for block, _ in blocks_of(segment):
            size, state = max(0, integer_or(block.get("size"), 0)), block.get("state")
            if state == ALIVE:
                allocated += size
                used += 1
            elif state in _AWAITING_FREE:
                awaiting += size
            else:
                largest = max(largest, size)
        total = integer_or(segment.get("total_size"), NONE)
        free = total - allocated - awaiting
        if total >= _MAX_BYTES or not 0 <= largest <= free:
            return False
        kind = segment.get("segment_type")
        kind = kind if kind in ("small", "large") else NOT_AVAILABLE
        kind = f"{kind}, expandable" if segment.get("is_expandable") is True else kind
        row = (device, integer_or(segment.get("address"), NONE), total, allocated, free, largest)
        self.segments.add((*row, used, self._intern(kind), stream_of(segment)))
        return True

    def extend_session(self, now: int) -> None:
        """Extend the time span of the session to `now`."""
        self.first_ns = now if self.first_ns is None else min(self.first_ns, now)
        self.last_ns = now if self.last_ns is None else max(self.last_ns, now)

    def add_totals(
        self, now: int, totals: tuple[int | None, ...], stream: int | None, device: int
    ) -> None:
        """Write the bytes in use at `now`."""
        self._memory.add((self._component, now, *totals, stream, device))

    def add_instant(self, now: int, category: str, name: str, device: int, args: Any) -> None:
        """Write an instant event; a negative `device` means unknown."""
        self.extend_session(now)
        intern = self._intern
        place = f"device {device}" if device >= 0 else NOT_AVAILABLE
        self._events.add((now, None, intern(category), intern(name), place, "", json.dumps(args)))

    def flush(self) -> None:
        """Write the remaining rows of all tables."""
        for rows in (self._memory, self.blocks, self.chains, self.segments, self._events):
            rows.flush()


class RowBatch:
    """Rows of one table, written in batches."""

    def __init__(self, sink: Sink, table: str, columns: list[str]) -> None:
        self._sink, self._table, self._columns = sink, table, columns
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Add one row."""
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the remaining rows."""
        if self._rows:
            columns = (list(column) for column in zip(*self._rows, strict=True))
            self._sink.write(self._table, dict(zip(self._columns, columns, strict=True)))
            self._rows = []


MAX_US = 2**62 // NS_PER_US  # Largest time whose nanoseconds fit into 64 bits.
# Actions without a size, which become no rows.
# Anomalies of actions that are skipped, and of actions without a table.
_LOST = ("malformed_entry", "unknown_action")
_IGNORED_ACTIONS = frozenset({"snapshot", "workspace_snapshot"})


class _Block(Struct):
    """One allocation; times are None if the event is not in the history."""

    address: int
    size: int
    stream: int | None
    chain: int
    name: int
    allocated_ns: int | None = None
    freed_ns: int | None = None  # Time when the program freed it.
    reusable_ns: int | None = None  # Time when its memory became available again.
    totals_at_allocation: tuple[int | None, ...] = (None, None, None)
    totals_at_free: tuple[int | None, ...] = (None, None, None)


class Replay:
    """Replays the allocator actions of one device.

    Inconsistent entries are counted in `anomalies` by the name of the anomaly; `sink` receives
    those that have a detail.
    """

    def __init__(
        self,
        device: int,
        sink: Sink,
        tables: SnapshotTables,
        stacks: CallStacks,
        anomalies: Counter[str],
        coverage: Coverage,
    ) -> None:
        self.coverage = coverage
        self.actions: Counter[str] = Counter()
        self._device, self._sink, self._tables, self._stacks = device, sink, tables, stacks
        self._anomalies = anomalies
        self._live: dict[int, _Block] = {}
        self._awaiting_free: dict[int, _Block] = {}

    def run(self, history: list[dict[Any, Any]], segments: list[dict[Any, Any]]) -> None:
        """Replay `history`; `segments` is the final state of the allocator."""
        totals = totals_before(history, segments)
        has_times = any("time_us" in entry for entry in history)
        malformed, unknown = (self._anomalies[name] for name in _LOST)
        self._anomalies["no_times"] += 0 if has_times else len(history)
        for number, entry in enumerate(history):
            action = entry.get("action")
            if not isinstance(action, str):
                self._anomalies["malformed_entry"] += 1
                continue
            self.actions[action] += 1
            at_us = integer_or(entry.get("time_us"), NONE) if has_times else number
            size = integer_or(entry.get("size"), NONE)
            if not 0 <= at_us < MAX_US or (size < 0 and action not in _IGNORED_ACTIONS):
                self._anomalies["malformed_entry"] += 1
                continue
            now = at_us * NS_PER_US
            self._tables.extend_session(now)
            if action in CHANGES:
                for at, sign in enumerate(CHANGES[action]):
                    totals[at] += sign * size
                if self._apply(action, now, size, entry, totals):
                    self._tables.add_totals(
                        now, _plausible_totals(totals), stream_of(entry), self._device
                    )
            elif action == "oom":
                self._out_of_memory(now, size, entry)
            elif action not in _IGNORED_ACTIONS:
                self._anomalies["unknown_action"] += 1
        self.coverage.add(
            "actions",
            "events",
            len(history),
            skipped=self._anomalies[_LOST[0]] - malformed,
            without_table=self._anomalies[_LOST[1]] - unknown,
        )
        for block in (*self._awaiting_free.values(), *self._live.values()):
            self._write(block)
        self._write_older_blocks(segments, self._live.keys() | self._awaiting_free.keys())

    def _apply(
        self, action: str, now: int, size: int, entry: dict[Any, Any], totals: list[int]
    ) -> bool:
        """Apply an action to its block; return False if the totals after it are unknown."""
        address = integer_or(entry.get("addr"), NONE)
        if action == "alloc":
            if address in self._live:
                self._anomalies["allocation_without_release"] += 1
                self._write(self._live.pop(address))
            block = self._block(address, size, entry.get("frames"), entry)
            block.allocated_ns, block.totals_at_allocation = now, _plausible_totals(totals)
            self._live[address] = block
        elif action == "free_requested":
            freed = self._live.pop(address, None)
            if freed is None:
                self._anomalies["release_without_allocation"] += 1
                freed = self._block(address, size, None, entry)
            freed.freed_ns, freed.totals_at_free = now, _plausible_totals(totals)
            if address in self._awaiting_free:
                self._write(self._awaiting_free.pop(address))
            self._awaiting_free[address] = freed
        elif action == "free_completed":
            released = self._awaiting_free.pop(address, None)
            if released is None:
                self._anomalies["release_without_allocation"] += 1
                return False
            released.reusable_ns = now
            self._write(released)
        return True

    def _block(self, address: int, size: int, frames: Any, owner: dict[Any, Any]) -> _Block:
        chain, name = self._stacks.decode(frames)
        return _Block(address, size, stream_of(owner), chain, name)

    def _write_older_blocks(self, segments: list[dict[Any, Any]], known: set[int]) -> None:
        """Write the segments, and the blocks in use in them that the history does not allocate."""
        for segment in segments:
            if not self._tables.add_segment(segment, self._device):
                self._anomalies["impossible_segment"] += 1
            for block, address in blocks_of(segment):
                if block.get("state") == ALIVE and address not in known:
                    size = integer_or(block.get("size"), NONE)
                    if size < 0:
                        self._anomalies["malformed_entry"] += 1
                        continue
                    self._write(self._block(address, size, frames_of(block), segment))

    def _write(self, block: _Block) -> None:
        begin, freed, reusable = block.allocated_ns, block.freed_ns, block.reusable_ns
        allocated, reserved, active = block.totals_at_allocation
        left_allocated, left_reserved, left_active = block.totals_at_free
        duration = None if begin is None or freed is None else freed - begin
        active_for = None if begin is None or reusable is None else reusable - begin
        self._tables.blocks.add(
            (
                *(block.name, block.size, begin, freed, reusable, duration, active_for),
                *(allocated, reserved, active, left_allocated, left_reserved, left_active),
                *(block.stream, self._device),
            )
        )
        chain = None if block.chain == NONE else block.chain
        self._tables.chains.add((self._device, block.address, block.size, begin, freed, chain))

    def _out_of_memory(self, now: int, size: int, entry: dict[Any, Any]) -> None:
        free = integer_or(entry.get("device_free"), NONE)
        detail = f"device {self._device}: {size:,} bytes requested"
        detail += f", {free:,} free" if free >= 0 else ""
        self._sink.anomaly("out_of_memory", 1, detail)
        args = {"bytes": size, "free": free if free >= 0 else None}
        self._tables.add_instant(now, "oom", "out of memory", self._device, args)


NAME = "memory_snapshot"
_DEVICES = range(2**31)
_ANOMALY_DETAILS = {
    "no_times": "torch before 2.2 records no times: actions are numbered by microseconds",
    "malformed_entry": "skipped: no time, size or action",
    "allocation_without_release": "allocated again without a free",
    "release_without_allocation": "allocated before the history",
    "impossible_segment": "skipped: its blocks are larger than the segment, or it has no size",
    "unknown_action": "skipped: unknown action of the allocator",
}


class DecodedSnapshot(Struct, frozen=True):
    """Counts and facts of one snapshot."""

    entries: int  # Number of allocator actions.
    blocks: int  # Number of allocations, including those before the history.
    facts: Mapping[str, Any]  # Rows of UPROF_RUN.


def decode(
    path: Path, sink: Sink, *, progress: Callable[[str], None] = lambda message: None
) -> DecodedSnapshot:
    """Decode a snapshot (pickle or JSON, compressed or not); loads all of it into memory.

    Raises RawFormatError if the file is not a snapshot, is damaged, or contains more than plain
    data.
    """
    progress("reading the snapshot")
    snapshot = pickle_reader.load(path)
    if not isinstance(snapshot, dict) or not (
        isinstance(snapshot.get("device_traces"), list)
        or isinstance(snapshot.get("segments"), list)
    ):
        raise RawFormatError(
            f"{path} is not a snapshot of PyTorch's allocator",
            hint="expected a mapping with segments and device_traces, as "
            "torch.cuda.memory._dump_snapshot() writes it",
            slug="not-a-recording",
        )
    progress("replaying allocations")
    segments, histories = _by_device(snapshot, path)
    tables = SnapshotTables(sink)
    stacks = CallStacks(sink)
    anomalies: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    coverage = Coverage()
    devices = sorted(segments.keys() | histories.keys())
    for device in devices:
        replay = Replay(device, sink, tables, stacks, anomalies, coverage)
        replay.run(histories.get(device, []), segments.get(device, []))
        actions += replay.actions
    _write_annotations(snapshot.get("external_annotations"), tables, anomalies)
    tables.flush()
    stacks.write()
    coverage.write(sink)
    if not histories:
        detail = (
            "only the memory in use at the end is known; call "
            "torch.cuda.memory._record_memory_history() first"
        )
        sink.anomaly("no_history", 1, detail)
    for name, count in (+anomalies).items():
        sink.anomaly(name, count, _ANOMALY_DETAILS.get(name, ""))
    host_tables.write_metadata(
        sink,
        start_ns=tables.first_ns or 0,
        end_ns=tables.last_ns or 0,
        host_name=None,
        device_names=dict.fromkeys(devices),
        rank=None,
    )
    return DecodedSnapshot(
        entries=actions.total(),
        blocks=tables.blocks.count,
        facts={
            "decoder": NAME,
            "device_kind": "gpu",
            "events": dict(sorted(actions.items())),
            "allocator_settings": _settings(snapshot.get("allocator_settings")),
        },
    )


def _by_device(
    snapshot: dict[Any, Any], path: Path
) -> tuple[dict[int, list[dict[Any, Any]]], dict[int, list[dict[Any, Any]]]]:
    """Return device number -> (segments, history).

    Raises:
        RawFormatError: several segments or devices refer to the same list. This occurs only in
            crafted files, and reading the list repeatedly could take very long.
    """
    all_segments, traces = list(mappings(snapshot.get("segments"))), snapshot.get("device_traces")
    traces = traces if isinstance(traces, list) else []
    lists = [segment.get("blocks") for segment in all_segments] + traces
    identities = [id(value) for value in lists if isinstance(value, list) and value]
    if len(set(identities)) < len(identities):
        raise RawFormatError(
            f"{path} is not a memory snapshot: several segments or devices share one list",
            slug="not-a-recording",
        )
    segments: dict[int, list[dict[Any, Any]]] = {}
    for segment in all_segments:
        device = integer_or(segment.get("device"), 0)
        if device in _DEVICES:
            segments.setdefault(device, []).append(segment)
    histories = {
        device: list(mappings(trace))
        for device, trace in enumerate(traces)
        if isinstance(trace, list) and trace
    }
    return segments, histories


def _write_annotations(annotations: Any, tables: SnapshotTables, anomalies: Counter[str]) -> None:
    for annotation in mappings(annotations):
        at_us, name = integer_or(annotation.get("time_us"), NONE), annotation.get("name")
        if 0 <= at_us < MAX_US and isinstance(name, str):
            device, stage = integer_or(annotation.get("device"), NONE), annotation.get("stage")
            args = {"stage": stage if isinstance(stage, str) else None}
            tables.add_instant(at_us * NS_PER_US, "annotation", name, device, args)
        else:
            anomalies["malformed_entry"] += 1


def _settings(settings: Any) -> str | None:
    if not isinstance(settings, dict):
        return None
    plain = {
        name: value
        for name, value in settings.items()
        if isinstance(name, str)
        and (isinstance(value, bool | float | str) or value == integer_or(value, 0))
    }
    return json.dumps(plain, sort_keys=True)[:2000]
