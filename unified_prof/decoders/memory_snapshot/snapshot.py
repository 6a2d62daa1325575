"""Decodes one snapshot: what the allocator did, for whom, and how much was in use after it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from unified_prof.columns import Sink
from unified_prof.decoders.gpu import description
from unified_prof.decoders.gpu.chains import CallChains
from unified_prof.decoders.gpu.memory import DEVICE_COMPONENT
from unified_prof.decoders.memory_snapshot import plain_pickle
from unified_prof.errors import RawFormatError
from unified_prof.units import NS_PER_US
from unified_prof.vocabulary import NOT_AVAILABLE

NAME = "memory_snapshot"

_NONE = -1
_PICKLE = b"\x80"
_BATCH_ROWS = 50_000
_MOST_US = 2**62 // NS_PER_US
_MOST_BYTES = 2**53
"""No memory has that many: such totals come of a damaged file, and are not known."""
_INT64 = range(-(2**63), 2**63)
_DEVICES = range(2**31)
_ALIVE = "active_allocated"
_WAITING = ("active_awaiting_free", "active_pending_free")
_GREW = frozenset({"segment_alloc", "segment_map"})
_SHRANK = frozenset({"segment_free", "segment_unmap"})
_SILENT = frozenset({"snapshot", "workspace_snapshot"})
# Frames of these are what called the allocator, not what the program did.
_LIBRARY = ("/site-packages/", "/dist-packages/", "<")

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


@dataclass(frozen=True, slots=True)
class DecodedSnapshot:
    """What was found in one snapshot."""

    entries: int
    """Actions of the allocator."""
    blocks: int
    """Allocations, those among them that were not seen to begin."""
    facts: Mapping[str, Any]
    """Provenance."""


@dataclass(slots=True)
class _Totals:
    """Bytes of one device at one moment."""

    allocated: int
    reserved: int
    active: int

    def add(self, allocated: int = 0, reserved: int = 0, active: int = 0) -> None:
        self.allocated += allocated
        self.reserved += reserved
        self.active += active

    def row(self) -> tuple[int | None, int | None, int | None]:
        allocated, reserved, active = (
            total if total is not None and 0 <= total < _MOST_BYTES else None
            for total in (self.allocated, self.reserved, self.active)
        )
        return allocated, reserved, active


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
        )
    progress("following allocations")
    return _Decoder(sink).decode(snapshot)


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            if file.read(1) == _PICKLE:
                return plain_pickle.load(path)
        return msgspec.json.decode(path.read_bytes())
    except OSError as err:
        raise RawFormatError(f"{path}: cannot be read: {err.strerror or err}") from err
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise RawFormatError(f"{path} is damaged or cut off as JSON: {err}") from err


class _Decoder:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._chains = CallChains(lambda frame: False)
        self._known_chains: dict[tuple[int, ...], tuple[int, int]] = {}
        self._used: set[int] = set()
        self._actions: Counter[str] = Counter()
        self._odd: Counter[str] = Counter()
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._memory = _Rows(sink, "MEMORY_RECORD", _MEMORY_COLUMNS)
        self._done = _Rows(sink, "OP_MEMORY", _BLOCK_COLUMNS)
        self._where = _Rows(sink, "UPROF_MEMORY_BLOCKS", _CHAIN_COLUMNS)
        self._events = _Rows(
            sink,
            "UPROF_TRACE_EVENTS",
            ("startNs", "endNs", "category", "name", "process", "thread", "args"),
        )
        self._component = sink.strings.intern(DEVICE_COMPONENT)
        self._no_name = sink.strings.intern(NOT_AVAILABLE)

    def decode(self, snapshot: dict[Any, Any]) -> DecodedSnapshot:
        segments: dict[int, list[dict[Any, Any]]] = {}
        for segment in _mappings(snapshot.get("segments")):
            device = _whole(segment.get("device"), 0)
            if device in _DEVICES:
                segments.setdefault(device, []).append(segment)
        traces = snapshot.get("device_traces")
        histories = {
            device: list(_mappings(trace))
            for device, trace in enumerate(traces if isinstance(traces, list) else ())
            if isinstance(trace, list) and trace
        }
        devices = sorted(segments.keys() | histories.keys())
        for device in devices:
            self._device(device, histories.get(device, []), segments.get(device, []))
        self._annotations(snapshot.get("external_annotations"))
        for rows in (self._memory, self._done, self._where, self._events):
            rows.flush()
        if self._used:
            import numpy as np

            self._chains.write(self._sink, np.array(sorted(self._used), np.int64))
        if not histories:
            self._sink.anomaly(
                "no_history",
                1,
                "only what was in use at the end is known; call "
                "torch.cuda.memory._record_memory_history() before",
            )
        for name, count in (+self._odd).items():
            self._sink.anomaly(name, count, _DETAILS.get(name, ""))
        description.write(
            self._sink,
            start_ns=self._first_ns or 0,
            end_ns=self._last_ns or 0,
            host_name=None,
            device_names=dict.fromkeys(devices),
            rank=None,
        )
        return DecodedSnapshot(
            entries=self._actions.total(),
            blocks=self._done.count,
            facts={
                "decoder": NAME,
                "device_kind": "gpu",
                "events": dict(sorted(self._actions.items())),
                "allocator_settings": _settings(snapshot.get("allocator_settings")),
            },
        )

    def _device(
        self, device: int, history: list[dict[Any, Any]], segments: list[dict[Any, Any]]
    ) -> None:
        totals = _totals_before(history, segments)
        live: dict[int, _Block] = {}
        leaving: dict[int, _Block] = {}
        has_times = any("time_us" in entry for entry in history)
        self._odd["no_times"] += 0 if has_times else len(history)
        for number, entry in enumerate(history):
            action = entry.get("action")
            if not isinstance(action, str):
                self._odd["malformed_entry"] += 1
                continue
            self._actions[action] += 1
            at_us = _whole(entry.get("time_us"), _NONE) if has_times else number
            now = at_us * NS_PER_US if 0 <= at_us < _MOST_US else None
            address = _whole(entry.get("addr"), _NONE)
            size = _whole(entry.get("size"), _NONE)
            if now is None or (size < 0 and action not in _SILENT):
                self._odd["malformed_entry"] += 1
                continue
            self._see(now)
            stream = _stream(entry)
            if action == "alloc":
                totals.add(allocated=size, active=size)
                if address in live:
                    self._odd["allocation_without_release"] += 1
                    self._finish(device, live.pop(address))
                chain, name = self._chain(entry.get("frames"))
                live[address] = _Block(
                    address, size, stream, chain, name, began_ns=now, at_begin=totals.row()
                )
            elif action == "free_requested":
                totals.add(allocated=-size)
                block = live.pop(address, None)
                if block is None:
                    self._odd["release_without_allocation"] += 1
                    block = _Block(address, size, stream, _NONE, self._no_name)
                block.requested_ns = now
                block.at_request = totals.row()
                if address in leaving:
                    self._finish(device, leaving.pop(address))
                leaving[address] = block
            elif action == "free_completed":
                totals.add(active=-size)
                block = leaving.pop(address, None)
                if block is None:
                    self._odd["release_without_allocation"] += 1
                    continue
                block.ended_ns = now
                self._finish(device, block)
            elif action in _GREW:
                totals.add(reserved=size)
            elif action in _SHRANK:
                totals.add(reserved=-size)
            elif action == "oom":
                self._out_of_memory(device, now, size, entry)
                continue
            elif action in _SILENT:
                continue
            else:
                self._odd["unknown_action"] += 1
                continue
            self._memory.add((self._component, now, *totals.row(), stream, device))
        for block in (*leaving.values(), *live.values()):
            self._finish(device, block)
        self._before(device, segments, live.keys() | leaving.keys())

    def _before(self, device: int, segments: list[dict[Any, Any]], known: set[int]) -> None:
        """Write blocks that are in use at the end, and began before the history."""
        for segment in segments:
            for block, address in _blocks(segment):
                if block.get("state") == _ALIVE and address not in known:
                    size = _whole(block.get("size"), _NONE)
                    if size < 0:
                        self._odd["malformed_entry"] += 1
                        continue
                    chain, name = self._chain(_frames_of(block))
                    stream = _stream(segment)
                    self._finish(device, _Block(address, size, stream, chain, name))

    def _finish(self, device: int, block: _Block) -> None:
        began, requested, ended = block.began_ns, block.requested_ns, block.ended_ns
        allocated, reserved, active = block.at_begin
        left_allocated, left_reserved, left_active = block.at_request
        duration = None if began is None or requested is None else requested - began
        active_for = None if began is None or ended is None else ended - began
        self._done.add(
            (
                *(block.name, block.size, began, requested, ended, duration, active_for),
                *(allocated, reserved, active, left_allocated, left_reserved, left_active),
                *(block.stream, device),
            )
        )
        chain = None if block.chain == _NONE else block.chain
        self._where.add((device, block.address, block.size, began, requested, chain))

    def _out_of_memory(self, device: int, now: int, size: int, entry: dict[Any, Any]) -> None:
        free = _whole(entry.get("device_free"), _NONE)
        said = f"device {device}: {size:,} bytes asked for"
        said += f", {free:,} free" if free >= 0 else ""
        self._sink.anomaly("out_of_memory", 1, said)
        args = {"bytes": size, "free": free if free >= 0 else None}
        self._instant(now, "oom", "out of memory", device, args)

    def _annotations(self, annotations: Any) -> None:
        for one in _mappings(annotations):
            at_us, name = _whole(one.get("time_us"), _NONE), one.get("name")
            if 0 <= at_us < _MOST_US and isinstance(name, str):
                device = _whole(one.get("device"), _NONE)
                args = {"stage": str(one.get("stage"))}
                self._instant(at_us * NS_PER_US, "annotation", name, device, args)
            else:
                self._odd["malformed_entry"] += 1

    def _instant(self, now: int, category: str, name: str, device: int, args: Any) -> None:
        self._see(now)
        intern = self._sink.strings.intern
        place = f"device {device}" if device >= 0 else NOT_AVAILABLE
        self._events.add((now, None, intern(category), intern(name), place, "", json.dumps(args)))

    def _see(self, now: int) -> None:
        self._first_ns = now if self._first_ns is None else min(self._first_ns, now)
        self._last_ns = now if self._last_ns is None else max(self._last_ns, now)

    def _chain(self, frames: Any) -> tuple[int, int]:
        """Return the call chain of an allocation, and the string id of what it is named after."""
        if not isinstance(frames, list) or not frames:
            return _NONE, self._no_name
        key = tuple(map(id, frames))
        found = self._known_chains.get(key)
        if found is None:
            texts = [text for text in map(_frame_text, frames) if text is not None]
            chain = self._chains.of_stack(";".join(text.replace(";", ",") for text in texts))
            own = next((text for text in texts if _is_own(text)), None)
            name = own or (texts[0] if texts else None)
            number = self._no_name if name is None else self._sink.strings.intern(name)
            found = self._known_chains[key] = (chain, number)
            if chain != _NONE:
                self._used.add(chain)
        return found


_DETAILS = {
    "no_times": "torch before 2.2 records none: they are numbered, a microsecond each",
    "malformed_entry": "without a time, a size or an action, left out",
    "allocation_without_release": "allocated again before",
    "release_without_allocation": "allocated before the history",
    "unknown_action": "of the allocator, left out",
}


class _Rows:
    """Rows of one table, written in batches."""

    def __init__(self, sink: Sink, table: str, columns: tuple[str, ...]) -> None:
        self._sink = sink
        self._table = table
        self._columns = columns
        self._rows: list[tuple[Any, ...]] = []
        self.count = 0

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            columns = (list(column) for column in zip(*self._rows, strict=True))
            self._sink.write(self._table, dict(zip(self._columns, columns, strict=True)))
            self._rows = []


def _totals_before(history: list[dict[Any, Any]], segments: list[dict[Any, Any]]) -> _Totals:
    """Return what was in use before the first action: what is at the end, less all of them."""
    changes = {"alloc": (1, 0, 1), "free_requested": (-1, 0, 0), "free_completed": (0, 0, -1)}
    changes |= dict.fromkeys(_GREW, (0, 1, 0)) | dict.fromkeys(_SHRANK, (0, -1, 0))
    sums = [0, 0, 0]
    for segment in segments:
        sums[1] += max(0, _whole(segment.get("total_size"), 0))
        for block, _ in _blocks(segment):
            size, state = max(0, _whole(block.get("size"), 0)), block.get("state")
            sums[0] += size if state == _ALIVE else 0
            sums[2] += size if state == _ALIVE or state in _WAITING else 0
    lowest, running = [0, 0, 0], [0, 0, 0]
    for entry in history:
        action = entry.get("action")
        size = _whole(entry.get("size"), _NONE)
        if not isinstance(action, str) or action not in changes or size < 0:
            continue
        for at, sign in enumerate(changes[action]):
            running[at] += sign * size
            lowest[at] = min(lowest[at], running[at])
    # At least what went away was there, should the end not be known or contradict the history.
    before = [end - change for end, change in zip(sums, running, strict=True)]
    return _Totals(*(max(one, -low) for one, low in zip(before, lowest, strict=True)))


def _blocks(segment: dict[Any, Any]) -> Iterable[tuple[dict[Any, Any], int]]:
    """Yield the blocks of a segment, each with its address, which old versions leave out."""
    at = _whole(segment.get("address"), _NONE)
    for block in _mappings(segment.get("blocks")):
        address = _whole(block.get("address"), at)
        yield block, address
        at = address + max(0, _whole(block.get("size"), 0))


def _frames_of(block: dict[Any, Any]) -> Any:
    frames = block.get("frames")
    if not frames:  # before torch 2.1
        for one in _mappings(block.get("history")):
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


def _stream(entry: dict[Any, Any]) -> int | None:
    stream = _whole(entry.get("stream"), _NONE)
    return stream if stream >= 0 else None


def _whole(value: Any, missing: int) -> int:
    return value if type(value) is int and value in _INT64 else missing


def _mappings(values: Any) -> Iterable[dict[Any, Any]]:
    return (one for one in values if isinstance(one, dict)) if isinstance(values, list) else ()


def _settings(settings: Any) -> str | None:
    if not isinstance(settings, dict):
        return None
    plain = {
        str(name): value
        for name, value in settings.items()
        if isinstance(value, bool | int | float | str)
    }
    return json.dumps(plain, sort_keys=True)[:2000]
