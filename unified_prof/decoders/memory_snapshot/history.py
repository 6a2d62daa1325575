"""What the allocator of one device did: its totals over time, and the life of every block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from unified_prof.columns import Sink
from unified_prof.decoders.memory_snapshot.callers import Callers, frames_of
from unified_prof.decoders.memory_snapshot.rows import Tables
from unified_prof.decoders.memory_snapshot.totals import CHANGES, Totals, totals_before
from unified_prof.decoders.memory_snapshot.values import ALIVE, NONE, blocks_of, stream_of, whole
from unified_prof.units import NS_PER_US

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
