"""Decodes one trace into a sink: collects events, joins them, writes the tables."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from unified_prof.columns import Sink
from unified_prof.decoders.gpu import tables
from unified_prof.decoders.gpu.found import Found
from unified_prof.decoders.gpu.task_tables import HasColumn
from unified_prof.decoders.kineto import groups, merged, session
from unified_prof.decoders.kineto.collector import Collector
from unified_prof.decoders.kineto.kinds import Kind
from unified_prof.decoders.kineto.slices import SLICE_BYTES, TraceReader
from unified_prof.errors import RawFormatError

NAME = "kineto"


def decode(
    path: Path,
    sink: Sink,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    is_outside: Callable[[str], bool] = lambda frame: False,
    slice_bytes: int = SLICE_BYTES,
    progress: Callable[[str], None] = lambda message: None,
) -> Found:
    """Decode a torch.profiler trace, compressed or not, in memory that its length does not change.

    Args:
        path: The trace.
        sink: Takes the rows of the msprof tables and of those of torch_npu and uprof.
        has_column: Whether the revision being written has (table, column); what it lacks and
            uprof keeps in tables of its own is not written twice.
        data_types: ENUM_HCCL_DATA_TYPE of that revision, name -> id.
        is_outside: Whether a Python frame, `file.py(line): function`, belongs to what ran the
            program: it and what called it are left out of call chains.
        slice_bytes: How much JSON is decoded at a time.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: not a trace, cut off before its first event, or damaged beyond reading.
    """
    reader = TraceReader(path, sink.anomaly, slice_bytes)
    with _no_garbage_collection(), Collector(sink, is_outside) as parts:
        progress("reading events")
        for events in reader.slices():
            parts.take(events)
        parts.finish()
        span = _require_events(path, parts, cut_off=reader.cut_off)
        base_ns = session.base_time_ns(reader.metadata, span, sink.anomaly, cut_off=reader.cut_off)
        merged.settle(parts, parts.calling, parts.labels)
        listed = groups.complete(
            parts.collectives.all,
            groups.of_session(session.distributed_info(reader.metadata)),
            session.own_rank(parts, reader.metadata),
            sink.anomaly,
        )
        if parts.allocations.rows and not parts.says_memory_in_use:  # torch before 1.10
            parts.adds_up_allocations = True
            sink.anomaly("memory_added_up", 1, "no event says what was in use: 0 at the beginning")
        joined = tables.write(
            parts, base_ns, has_column=has_column, data_types=data_types, progress=progress
        )
        facts = session.write(parts, reader.metadata, base_ns, listed)
        return Found(
            events=reader.events_read,
            counts=dict(parts.counts),
            tasks=parts.gpu.rows,
            tasks_joined=joined,
            operations=parts.counts[Kind.OPERATION.value],
            rank=session.rank_of(reader.metadata),
            facts=facts,
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Hold off the collector of cycles: millions of events pass by and none is part of one."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _require_events(path: Path, parts: Collector, *, cut_off: bool) -> tuple[int, int]:
    """Return the span of all events, if there are some that mean anything."""
    meaningful = (parts.host, parts.frames, parts.calls, parts.gpu, parts.allocations, parts.other)
    if parts.span is None or not any(spool.rows for spool in meaningful):
        raise RawFormatError(
            f"{path}: is cut off before the first whole event"
            if cut_off
            else f"{path}: holds no event that torch.profiler records",
            hint="copy the file again, or record again and wait until the profiler has written it"
            if cut_off
            else "expected operations, runtime calls or kernels with ph, cat, ts and dur",
            slug="damaged-recording" if cut_off else "empty-recording",
        )
    return parts.span
