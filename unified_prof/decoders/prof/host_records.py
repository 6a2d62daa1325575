"""Reads compact and additional records of the host, with keys that sort by thread, then time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Ints, Pool
from unified_prof.base.columns import Sink
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.slices import RawFile
from unified_prof.decoders.spool import Rows, Spool
from unified_prof.errors import RawFormatError

Keys = NDArray[np.uint64]

_TIME_BITS = 48
_TIME_MASK = np.uint64((1 << _TIME_BITS) - 1)
_BEFORE_START = 1 << 46
_MAX_THREADS = 1 << (64 - _TIME_BITS)


class Timeline:
    """Packs (thread, host counter) into sortable keys: thread in the high bits, time below.

    With a counter of 100 MHz, times may be up to about 8 days before and 24 days after the start of
    the recording; with a counter in ns, a tenth of that.
    """

    def __init__(self, origin_ticks: int) -> None:
        self.base = max(0, origin_ticks - _BEFORE_START)
        self.threads = Pool()
        # Differences of unsigned times wrap: times before the base are above this.
        self._max_relative = np.uint64(min(int(_TIME_MASK), (1 << 64) - 1 - self.base))

    def fits(self, ticks: NDArray[np.uint64]) -> Bools:
        """Return a mask of the times that can be packed."""
        return np.asarray(ticks - np.uint64(self.base) <= self._max_relative)

    def pack(self, thread_id: NDArray[Any], ticks: NDArray[np.uint64]) -> Keys:
        """Return the keys of times; times that do not fit are clipped.

        Raises:
            RawFormatError: there are more threads than supported.
        """
        rank = self.threads.index_of(thread_id).astype(np.uint64)
        if len(self.threads) > _MAX_THREADS:
            message = f"records of more than {_MAX_THREADS} threads"
            raise RawFormatError(message, slug="damaged-recording")
        return rank << np.uint64(_TIME_BITS) | self._relative(ticks)

    def move(self, keys: Keys, ticks: NDArray[np.uint64]) -> Keys:
        """Return keys with the threads of `keys` and other times."""
        return (keys & ~_TIME_MASK) | self._relative(ticks)

    def ticks(self, keys: Keys) -> NDArray[np.uint64]:
        """Return the times of keys."""
        return (keys & _TIME_MASK) + np.uint64(self.base)

    def thread_ids(self, keys: Keys) -> Ints:
        """Return the thread ids of keys."""
        ranks = keys >> np.uint64(_TIME_BITS)
        return np.asarray(self.threads.values[ranks], np.int64)

    def _relative(self, ticks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        base = np.uint64(self.base)
        relative = ticks - base
        if len(relative) and relative.max() > self._max_relative:
            relative = np.minimum(np.maximum(ticks, base) - base, _TIME_MASK)
        return np.asarray(relative, np.uint64)


def host_records(
    host: HostDirectory, envelope: str, kind: str, sink: Sink, *, prefix: str | None = None
) -> Iterator[Rows]:
    """Yield the valid records of one kind in chunks; records with a wrong magic number are counted.

    Args:
        host: directory of the host.
        envelope: `compact` or `additional`.
        kind: name of the file and the layout.
        sink: receives the anomalies.
        prefix: `unaging` (static) or `aging` to read only these files; by default both, in this
            order.
    """
    name = f"{envelope}.{kind}"
    file = host.data.host_file(name) if prefix is None else host.data.get(f"{prefix}.{name}")
    if file is not None:
        yield from valid_records(file, kind, sink)


def valid_records(file: RawFile, kind: str, sink: Sink) -> Iterator[Rows]:
    """Yield the records of a host file with the correct magic number; other records are counted.

    Slices of host files contain complete records. A slice that does not is truncated and is read
    separately.
    """
    record_bytes = record_type(kind).itemsize
    cut = [part for part in file.by_slice() if part.size_bytes % record_bytes]
    if cut:
        sink.anomaly("cut_slice", len(cut), f"{cut[0].paths[0]} ends inside a record")
    for part in file.by_slice() if cut else (file,):
        for piece in part.pieces(kind, magic=HOST_MAGIC):
            good = piece["magic"] == HOST_MAGIC
            if good.all():
                yield piece
            else:
                sink.anomaly(f"bad_magic_{kind}", int((~good).sum()), f"{file.name} records")
                yield piece[good]


def with_keys(records: Rows, kind: str, timeline: Timeline, sink: Sink) -> tuple[Rows, Keys]:
    """Return the records with a valid time, and their keys."""
    good = timeline.fits(records["timestamp"])
    if not good.all():
        sink.anomaly(f"impossible_time_{kind}", int((~good).sum()), f"{kind} records were skipped")
        records = records[good]
    return records, timeline.pack(records["thread_id"], records["timestamp"])


def read_sorted(
    host: HostDirectory, envelope: str, kind: str, timeline: Timeline, sink: Sink
) -> tuple[Rows, Keys]:
    """Return all records of a kind, sorted by time, with their keys; use only for rare kinds."""
    pieces = list(host_records(host, envelope, kind, sink))
    if not pieces:
        return np.zeros(0, record_type(kind)), np.zeros(0, np.uint64)
    records, keys = with_keys(concatenate(pieces), kind, timeline, sink)
    order = np.argsort(records["timestamp"], kind="stable")
    return records[order], keys[order]


def spool_records(
    host: HostDirectory,
    envelope: str,
    kind: str,
    timeline: Timeline,
    spool: Spool,
    sink: Sink,
    current: Callable[[Rows], Rows] = lambda records: records,
) -> None:
    """Append the records of a kind, converted to the `current` layout, and their keys."""
    for records in map(current, host_records(host, envelope, kind, sink)):
        records, key = with_keys(records, kind, timeline, sink)
        rows = np.empty(len(records), spool.dtype)
        rows["key"], rows["record"] = key, records
        spool.append(rows)


def concatenate(pieces: list[Rows]) -> Rows:
    """Concatenate records without repacking their fields."""
    raw = [piece.view(f"V{piece.dtype.itemsize}") for piece in pieces]
    return np.concatenate(raw).view(pieces[0].dtype)
