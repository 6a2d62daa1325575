"""Reads compact and additional records of the host, with (thread, time) keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unified_prof.base.columns import Sink
from unified_prof.decoders.prof.clocks import Keys, Timeline
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.slices import RawFile, Records
from unified_prof.decoders.spool import Spool


def host_records(
    host: HostDirectory, envelope: str, kind: str, sink: Sink, *, prefix: str | None = None
) -> Iterator[Records]:
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
    if file is None:
        return
    yield from valid_records(file, kind, sink)


def valid_records(file: RawFile, kind: str, sink: Sink) -> Iterator[Records]:
    """Yield the records of a host file with the correct magic number; other records are counted.

    Slices of host files contain complete records. A slice that does not is truncated and is read
    separately.
    """
    record = record_type(kind)
    cut = [part for part in file.by_slice() if part.size_bytes % record.itemsize]
    if cut:
        sink.anomaly("cut_slice", len(cut), f"{cut[0].paths[0]} ends inside a record")
    for part in file.by_slice() if cut else (file,):
        for piece in part.pieces(record, magic=HOST_MAGIC):
            good = piece["magic"] == HOST_MAGIC
            if good.all():
                yield piece
            else:
                sink.anomaly(f"bad_magic_{kind}", int((~good).sum()), f"{file.name} records")
                yield piece[good]


def with_keys(records: Records, kind: str, timeline: Timeline, sink: Sink) -> tuple[Records, Keys]:
    """Return the records with a valid time, and their keys."""
    good = timeline.fits(records["timestamp"])
    if not good.all():
        sink.anomaly(f"impossible_time_{kind}", int((~good).sum()), f"{kind} records were skipped")
        records = records[good]
    return records, timeline.pack(records["thread_id"], records["timestamp"])


def read_sorted(
    host: HostDirectory, envelope: str, kind: str, timeline: Timeline, sink: Sink
) -> tuple[Records, Keys]:
    """Return all records of a kind, sorted by time, with their keys; use only for rare kinds."""
    pieces = list(host_records(host, envelope, kind, sink))
    if not pieces:
        return np.zeros(0, record_type(kind)), np.zeros(0, np.uint64)
    records, keys = with_keys(concatenate(pieces), kind, timeline, sink)
    order = np.argsort(records["timestamp"], kind="stable")
    return records[order], keys[order]


def spool_records(
    host: HostDirectory, envelope: str, kind: str, timeline: Timeline, spool: Spool, sink: Sink
) -> None:
    """Append the records of a kind and their keys to `spool`."""
    for records in host_records(host, envelope, kind, sink):
        records, key = with_keys(records, kind, timeline, sink)
        rows = np.empty(len(records), spool.dtype)
        rows["key"], rows["record"] = key, records
        spool.append(rows)


def concatenate(pieces: list[Records]) -> Records:
    """Concatenate records without repacking their fields."""
    raw = [piece.view(f"V{piece.dtype.itemsize}") for piece in pieces]
    return np.concatenate(raw).view(pieces[0].dtype)
