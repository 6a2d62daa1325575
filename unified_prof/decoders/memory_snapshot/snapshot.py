"""How much memory of a device is in use, before its history and after every action.

Who asked for memory: call chains of allocations, and what they are named after.

The tables of a snapshot, written in batches.

What the allocator of one device did: its totals over time, and the life of every block.

Decodes one snapshot: its devices one after the other, and what it says of all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.base.columns import Sink
from unified_prof.base.text import NS_PER_US
from unified_prof.base.vocabulary import NOT_AVAILABLE
from unified_prof.decoders import compression
from unified_prof.decoders.gpu import host_tables
from unified_prof.decoders.gpu.call_chains import CallChains
from unified_prof.decoders.gpu.memory import DEVICE_COMPONENT
from unified_prof.decoders.memory_snapshot import pickle_reader
from unified_prof.decoders.memory_snapshot.pickle_reader import (
    ALIVE,
    NONE,
    blocks_of,
    mappings,
    stream_of,
    whole,
)
from unified_prof.errors import RawFormatError

_MOST_BYTES = 2**53
"""No memory has that many: such totals come of a damaged file, and are not known."""
_WAITING = ("active_awaiting_free", "active_pending_free")

# What each action does to what is allocated, reserved and active.
CHANGES = {
    "alloc": (1, 0, 1),
    "free_requested": (-1, 0, 0),
    "free_completed": (0, 0, -1),
    "segment_alloc": (0, 1, 0),
    "segment_map": (0, 1, 0),
    "segment_free": (0, -1, 0),
    "segment_unmap": (0, -1, 0),
}


@dataclass(slots=True)
class Totals:
    """Bytes of one device at one moment."""

    allocated: int
    reserved: int
    active: int

    def take(self, action: str, size: int) -> None:
        """Follow an action of `CHANGES`."""
        allocated, reserved, active = CHANGES[action]
        self.allocated += allocated * size
        self.reserved += reserved * size
        self.active += active * size

    def row(self) -> tuple[int | None, int | None, int | None]:
        """Return all three, None where it cannot be."""
        allocated, reserved, active = (
            total if total is not None and 0 <= total < _MOST_BYTES else None
            for total in (self.allocated, self.reserved, self.active)
        )
        return allocated, reserved, active


def totals_before(history: list[dict[Any, Any]], segments: list[dict[Any, Any]]) -> Totals:
    """Return what was in use before the first action: what is at the end, less all of them."""
    sums = [0, 0, 0]
    for segment in segments:
        sums[1] += max(0, whole(segment.get("total_size"), 0))
        for block, _ in blocks_of(segment):
            size, state = max(0, whole(block.get("size"), 0)), block.get("state")
            sums[0] += size if state == ALIVE else 0
            sums[2] += size if state == ALIVE or state in _WAITING else 0
    lowest, running = [0, 0, 0], [0, 0, 0]
    for entry in history:
        action = entry.get("action")
        size = whole(entry.get("size"), NONE)
        if not isinstance(action, str) or action not in CHANGES or size < 0:
            continue
        for at, sign in enumerate(CHANGES[action]):
            running[at] += sign * size
            lowest[at] = min(lowest[at], running[at])
    # At least what went away was there, should the end not be known or contradict the history.
    before = [end - change for end, change in zip(sums, running, strict=True)]
    return Totals(*(max(one, -low) for one, low in zip(before, lowest, strict=True)))


# Frames of these are what called the allocator, not what the program did.
_LIBRARY = ("/site-packages/", "/dist-packages/", "<")


class Callers:
    """The stacks of a snapshot, each of which is one list for all that share it."""

    def __init__(self, sink: Sink) -> None:
        self.no_name = sink.strings.intern(NOT_AVAILABLE)
        """String id of allocations of which no stack was kept."""
        self._sink = sink
        self._chains = CallChains(lambda frame: False)
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}
        self._used: set[int] = set()

    def of(self, frames: Any) -> tuple[int, int]:
        """Return the call chain of an allocation, and the string id of what it is named after."""
        if not isinstance(frames, list) or not frames:
            return NONE, self.no_name
        key = tuple(map(id, frames))
        found = self._known.get(key)
        if found is None:
            texts = [text for text in map(_frame_text, frames) if text is not None]
            chain = self._chains.of_stack(";".join(text.replace(";", ",") for text in texts))
            own = next((text for text in texts if _is_own(text)), None)
            name = own or (texts[0] if texts else None)
            number = self.no_name if name is None else self._sink.strings.intern(name)
            found = self._known[key] = (chain, number)
            if chain != NONE:
                self._used.add(chain)
        return found

    def write(self) -> None:
        """Write the call chains that were asked for."""
        if self._used:
            self._chains.write(self._sink, np.array(sorted(self._used), np.int64))


def frames_of(block: dict[Any, Any]) -> Any:
    """Return the stack of a block that is in use."""
    frames = block.get("frames")
    if not frames:  # before torch 2.1
        for one in mappings(block.get("history")):
            return one.get("frames")
    return frames


def _frame_text(frame: Any) -> str | None:
    """Write a frame the way Kineto does, `file.py(line): function`."""
    if not isinstance(frame, dict):
        return None
    name, file, line = (frame.get(key) for key in ("name", "filename", "line"))
    if not isinstance(name, str) or not name:
        return None
    if not isinstance(file, str) or file in ("", "??"):
        return name
    return f"{file}({line if isinstance(line, int) else 0}): {name}"


def _is_own(text: str) -> bool:
    return ".py(" in text and not any(part in text for part in _LIBRARY)


_BATCH_ROWS = 50_000

_MEMORY_COLUMNS = (
    *("component", "timestamp", "totalAllocated", "totalReserved", "totalActive"),
    *("streamPtr", "deviceId"),
)
_BLOCK_COLUMNS = (
    *("name", "size", "allocationTime", "releaseTime", "activeReleaseTime", "duration"),
    *("activeDuration", "allocationTotalAllocated", "allocationTotalReserved"),
    *("allocationTotalActive", "releaseTotalAllocated", "releaseTotalReserved"),
    *("releaseTotalActive", "streamPtr", "deviceId"),
)
_CHAIN_COLUMNS = ("deviceId", "address", "sizeBytes", "allocationNs", "releaseNs", "callchainId")
_EVENT_COLUMNS = ("startNs", "endNs", "category", "name", "process", "thread", "args")


class Tables:
    """All tables that the actions of an allocator become."""

    def __init__(self, sink: Sink) -> None:
        self._component = sink.strings.intern(DEVICE_COMPONENT)
        self._memory = Rows(sink, "MEMORY_RECORD", _MEMORY_COLUMNS)
        self.blocks = Rows(sink, "OP_MEMORY", _BLOCK_COLUMNS)
        self.places = Rows(sink, "UPROF_MEMORY_BLOCKS", _CHAIN_COLUMNS)
        self._events = Rows(sink, "UPROF_TRACE_EVENTS", _EVENT_COLUMNS)
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._intern = sink.strings.intern

    def see(self, now: int) -> None:
        """Take note of a moment: the recording's span holds it."""
        self.first_ns = now if self.first_ns is None else min(self.first_ns, now)
        self.last_ns = now if self.last_ns is None else max(self.last_ns, now)

    def total(
        self, now: int, totals: tuple[int | None, ...], stream: int | None, device: int
    ) -> None:
        """Write how much is in use from now on."""
        self._memory.add((self._component, now, *totals, stream, device))

    def instant(self, now: int, category: str, name: str, device: int, args: Any) -> None:
        """Write what happened at one moment; `device` below 0 is not known."""
        self.see(now)
        intern = self._intern
        place = f"device {device}" if device >= 0 else NOT_AVAILABLE
        self._events.add((now, None, intern(category), intern(name), place, "", json.dumps(args)))

    def flush(self) -> None:
        """Write what is left."""
        for rows in (self._memory, self.blocks, self.places, self._events):
            rows.flush()


class Rows:
    """Rows of one table, written in batches."""

    def __init__(self, sink: Sink, table: str, columns: tuple[str, ...]) -> None:
        self._sink = sink
        self._table = table
        self._columns = columns
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Take one row."""
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is left."""
        if self._rows:
            columns = (list(column) for column in zip(*self._rows, strict=True))
            self._sink.write(self._table, dict(zip(self._columns, columns, strict=True)))
            self._rows = []


MOST_US = 2**62 // NS_PER_US
_SILENT = frozenset({"snapshot", "workspace_snapshot"})
"""Actions without a size, of which nothing is made."""


@dataclass(slots=True)
class _Block:
    """One allocation, as far as it was seen."""

    address: int
    size: int
    stream: int | None
    chain: int
    name: int
    began_ns: int | None = None
    requested_ns: int | None = None
    """When the program gave it back."""
    ended_ns: int | None = None
    """When it could be used again."""
    at_begin: tuple[int | None, ...] = (None, None, None)
    at_request: tuple[int | None, ...] = (None, None, None)


class History:
    """Follows the allocator of one device.

    Args:
        device: Its number.
        sink: Told of what stands out.
        tables: Take the rows.
        callers: Know the stacks.
        odd: Counts what does not fit together, by name.
    """

    def __init__(
        self, device: int, sink: Sink, tables: Tables, callers: Callers, odd: Counter[str]
    ) -> None:
        self.actions: Counter[str] = Counter()
        self._device = device
        self._sink = sink
        self._tables = tables
        self._callers = callers
        self._odd = odd
        self._live: dict[int, _Block] = {}
        self._leaving: dict[int, _Block] = {}
        """Given back by the program, and not yet ready to be used again."""

    def follow(self, history: list[dict[Any, Any]], segments: list[dict[Any, Any]]) -> None:
        """Go through the actions of `history`, which ended with `segments`."""
        totals = totals_before(history, segments)
        has_times = any("time_us" in entry for entry in history)
        self._odd["no_times"] += 0 if has_times else len(history)
        for number, entry in enumerate(history):
            action = entry.get("action")
            if not isinstance(action, str):
                self._odd["malformed_entry"] += 1
                continue
            self.actions[action] += 1
            at_us = whole(entry.get("time_us"), NONE) if has_times else number
            size = whole(entry.get("size"), NONE)
            if not 0 <= at_us < MOST_US or (size < 0 and action not in _SILENT):
                self._odd["malformed_entry"] += 1
                continue
            now = at_us * NS_PER_US
            self._tables.see(now)
            if action in CHANGES:
                totals.take(action, size)
                if self._moves(action, now, size, entry, totals):
                    self._tables.total(now, totals.row(), stream_of(entry), self._device)
            elif action == "oom":
                self._out_of_memory(now, size, entry)
            elif action not in _SILENT:
                self._odd["unknown_action"] += 1
        for block in (*self._leaving.values(), *self._live.values()):
            self._finish(block)
        self._before(segments, self._live.keys() | self._leaving.keys())

    def _moves(
        self, action: str, now: int, size: int, entry: dict[Any, Any], totals: Totals
    ) -> bool:
        """Follow the block of an action; tell whether what is in use is known after it."""
        address = whole(entry.get("addr"), NONE)
        if action == "alloc":
            if address in self._live:
                self._odd["allocation_without_release"] += 1
                self._finish(self._live.pop(address))
            block = self._block(address, size, entry.get("frames"), entry)
            block.began_ns, block.at_begin = now, totals.row()
            self._live[address] = block
        elif action == "free_requested":
            given = self._live.pop(address, None)
            if given is None:
                self._odd["release_without_allocation"] += 1
                given = self._block(address, size, None, entry)
            given.requested_ns, given.at_request = now, totals.row()
            if address in self._leaving:
                self._finish(self._leaving.pop(address))
            self._leaving[address] = given
        elif action == "free_completed":
            left = self._leaving.pop(address, None)
            if left is None:
                self._odd["release_without_allocation"] += 1
                return False
            left.ended_ns = now
            self._finish(left)
        return True

    def _block(self, address: int, size: int, frames: Any, place: dict[Any, Any]) -> _Block:
        chain, name = self._callers.of(frames)
        return _Block(address, size, stream_of(place), chain, name)

    def _before(self, segments: list[dict[Any, Any]], known: set[int]) -> None:
        """Write blocks that are in use at the end, and began before the history."""
        for segment in segments:
            for block, address in blocks_of(segment):
                if block.get("state") == ALIVE and address not in known:
                    size = whole(block.get("size"), NONE)
                    if size < 0:
                        self._odd["malformed_entry"] += 1
                        continue
                    self._finish(self._block(address, size, frames_of(block), segment))

    def _finish(self, block: _Block) -> None:
        began, requested, ended = block.began_ns, block.requested_ns, block.ended_ns
        allocated, reserved, active = block.at_begin
        left_allocated, left_reserved, left_active = block.at_request
        duration = None if began is None or requested is None else requested - began
        active_for = None if began is None or ended is None else ended - began
        self._tables.blocks.add(
            (
                *(block.name, block.size, began, requested, ended, duration, active_for),
                *(allocated, reserved, active, left_allocated, left_reserved, left_active),
                *(block.stream, self._device),
            )
        )
        chain = None if block.chain == NONE else block.chain
        self._tables.places.add((self._device, block.address, block.size, began, requested, chain))

    def _out_of_memory(self, now: int, size: int, entry: dict[Any, Any]) -> None:
        free = whole(entry.get("device_free"), NONE)
        said = f"device {self._device}: {size:,} bytes asked for"
        said += f", {free:,} free" if free >= 0 else ""
        self._sink.anomaly("out_of_memory", 1, said)
        args = {"bytes": size, "free": free if free >= 0 else None}
        self._tables.instant(now, "oom", "out of memory", self._device, args)


NAME = "memory_snapshot"

_PICKLE = b"\x80"
_DEVICES = range(2**31)
_DETAILS = {
    "no_times": "torch before 2.2 records none: they are numbered, a microsecond each",
    "malformed_entry": "without a time, a size or an action, left out",
    "allocation_without_release": "allocated again before",
    "release_without_allocation": "allocated before the history",
    "unknown_action": "of the allocator, left out",
}


@dataclass(frozen=True, slots=True)
class DecodedSnapshot:
    """What was found in one snapshot."""

    entries: int
    """Actions of the allocator."""
    blocks: int
    """Allocations, those among them that were not seen to begin."""
    facts: Mapping[str, Any]
    """Provenance."""


def decode(
    path: Path, sink: Sink, *, progress: Callable[[str], None] = lambda message: None
) -> DecodedSnapshot:
    """Decode a snapshot, pickle or JSON; it is held in memory as a whole.

    Raises:
        RawFormatError: it is none, is damaged, or asks for more than plain data.
    """
    progress("reading the snapshot")
    snapshot = _read(path)
    if not isinstance(snapshot, dict) or not (
        isinstance(snapshot.get("device_traces"), list)
        or isinstance(snapshot.get("segments"), list)
    ):
        raise RawFormatError(
            f"{path} is no snapshot of PyTorch's allocator",
            hint="expected a mapping with segments and device_traces, as "
            "torch.cuda.memory._dump_snapshot() writes it",
            slug="not-a-recording",
        )
    progress("following allocations")
    return _decoded(snapshot, sink)


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            if file.read(1) == _PICKLE:
                return pickle_reader.load(path)
    except OSError as err:
        raise RawFormatError(
            f"{path}: cannot be read: {err.strerror or err}", slug="cannot-read"
        ) from err
    return compression.read(path)


def _decoded(snapshot: dict[Any, Any], sink: Sink) -> DecodedSnapshot:
    tables = Tables(sink)
    callers = Callers(sink)
    odd: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    segments, histories = _by_device(snapshot)
    devices = sorted(segments.keys() | histories.keys())
    for device in devices:
        history = History(device, sink, tables, callers, odd)
        history.follow(histories.get(device, []), segments.get(device, []))
        actions += history.actions
    _annotations(snapshot.get("external_annotations"), tables, odd)
    tables.flush()
    callers.write()
    if not histories:
        sink.anomaly(
            "no_history",
            1,
            "only what was in use at the end is known; call "
            "torch.cuda.memory._record_memory_history() before",
        )
    for name, count in (+odd).items():
        sink.anomaly(name, count, _DETAILS.get(name, ""))
    host_tables.write(
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
    snapshot: dict[Any, Any],
) -> tuple[dict[int, list[dict[Any, Any]]], dict[int, list[dict[Any, Any]]]]:
    """Return segments and histories, each by the number of the device."""
    segments: dict[int, list[dict[Any, Any]]] = {}
    for segment in mappings(snapshot.get("segments")):
        device = whole(segment.get("device"), 0)
        if device in _DEVICES:
            segments.setdefault(device, []).append(segment)
    traces = snapshot.get("device_traces")
    histories = {
        device: list(mappings(trace))
        for device, trace in enumerate(traces if isinstance(traces, list) else ())
        if isinstance(trace, list) and trace
    }
    return segments, histories


def _annotations(annotations: Any, tables: Tables, odd: Counter[str]) -> None:
    for one in mappings(annotations):
        at_us, name = whole(one.get("time_us"), NONE), one.get("name")
        if 0 <= at_us < MOST_US and isinstance(name, str):
            device = whole(one.get("device"), NONE)
            args = {"stage": str(one.get("stage"))}
            tables.instant(at_us * NS_PER_US, "annotation", name, device, args)
        else:
            odd["malformed_entry"] += 1


def _settings(settings: Any) -> str | None:
    if not isinstance(settings, dict):
        return None
    plain = {
        str(name): value
        for name, value in settings.items()
        if isinstance(value, bool | int | float | str)
    }
    return json.dumps(plain, sort_keys=True)[:2000]
