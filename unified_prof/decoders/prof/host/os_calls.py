"""OSRT_API: calls of the operating system, host_syscall.data and host_pthreadcall.data (text)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.host.os_call_names import SYSTEM_CALLS
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import HostDirectory
from unified_prof.decoders.prof.raw.slices import RawFile

# perf trace: `<ms> (<ms> ms): command/tid name(args...`
_SYSTEM_CALL = re.compile(
    r"\s*(\d{1,12}(?:\.\d{1,9})?)\s+\(\s*(\d{1,12}(?:\.\d{1,9})?)\s*ms\s*\):"
    r"\s.*?/(\d{1,10})\s+(\w+)\("
)
# ltrace: `[pid T] <s> program->name(args) = result <s>`
_THREAD_CALL = re.compile(r"\s*\[pid\s+(\d{1,10})\]\s+(\d{1,12}(?:\.\d{1,9})?)\s+\S*?->(\w+)\(")
_THREAD_CALL_DURATION = re.compile(r"(\d{1,9}\.\d{1,9})>\s*")
# A call that another thread's line interrupted has no start or no end; signals and the exits of
# threads are no calls.
_NO_START = re.compile(r"\s*\??\s*\(")
_NO_CALL = ("<unfinished ...>", " resumed>", "+++", "---")
_NOT_LISTED = frozenset({"pthread_once"})
_US_PER_MS = 1_000
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    thread_id: int
    start_us: float
    duration_us: float


def decode(host: HostDirectory, sink: Sink) -> None:
    """Write OSRT_API: one row a call.

    The files count time from an origin of their own; their first line is taken for the start of
    the session. The arithmetic is float64 on microseconds, as the exporter's: genuine databases
    have its quarter-microsecond steps.
    """
    for kind, parse in (("host_syscall", _system_call), ("host_pthreadcall", _thread_call)):
        file = host.data.get(kind)
        if file is not None:
            _decode(host, sink, file, parse)


def _decode(
    host: HostDirectory, sink: Sink, file: RawFile, parse: Callable[[str], _Call | None]
) -> None:
    start_monotonic_ns = host.session.start_ns - int(host.clocks.monotonic.offset_ns)
    origin_us: float | None = None
    process_id = host.info.integer("pid") or 0
    for calls in _calls(host, sink, file, parse):
        if origin_us is None:
            origin_us = calls[0].start_us - start_monotonic_ns / 1000
        listed = [call for call in calls if _is_listed(call.name)]
        if len(listed) < len(calls):
            sink.anomaly(
                "os_call_not_listed",
                len(calls) - len(listed),
                f"{host.data.path}/{file.name}.data: names that are no call of the system",
            )
        if not listed:
            continue
        start_us = np.array([call.start_us for call in listed]) - origin_us
        end_us = start_us + np.array([call.duration_us for call in listed])
        thread_id = np.array([call.thread_id for call in listed], np.int64)
        columns = {
            "name": sink.strings.intern_all(call.name for call in listed),
            "globalTid": (process_id << 32 | thread_id),
            "startNs": _since_1970(host, start_us),
            "endNs": _since_1970(host, end_us),
        }
        sampling.write_samples(sink, "OSRT_API", host, columns, time_column="startNs")


def _since_1970(host: HostDirectory, monotonic_us: NDArray[np.float64]) -> NDArray[np.int64]:
    return host.clocks.monotonic.to_ns(sampling.whole_ns(monotonic_us * 1000))


def _calls(
    host: HostDirectory, sink: Sink, file: RawFile, parse: Callable[[str], _Call | None]
) -> Iterator[list[_Call]]:
    """Yield the calls of the file in batches that are not empty."""
    damaged = unfinished = 0
    for lines in sampling.text_lines(file):
        calls = []
        for line in lines:
            call = parse(line)
            if call is not None:
                calls.append(call)
            elif _NO_START.match(line) or any(mark in line for mark in _NO_CALL):
                unfinished += 1
            else:
                damaged += 1
        if calls:
            yield calls
    sampling.count_damaged(sink, host, f"{file.name}.data", damaged)
    if unfinished:
        sink.anomaly("os_call_unfinished", unfinished, f"{host.data.path}/{file.name}.data")


def _system_call(line: str) -> _Call | None:
    match = _SYSTEM_CALL.match(line)
    if match is None:
        return None
    start_ms, duration_ms, thread_id, name = match.groups()
    return _Call(
        name, int(thread_id), float(start_ms) * _US_PER_MS, float(duration_ms) * _US_PER_MS
    )


def _thread_call(line: str) -> _Call | None:
    match = _THREAD_CALL.match(line)
    duration = _THREAD_CALL_DURATION.fullmatch(line[line.rfind("<") + 1 :])
    if match is None or duration is None:
        return None
    thread_id, start_s, name = match.groups()
    return _Call(name, int(thread_id), float(start_s) * _US_PER_S, float(duration[1]) * _US_PER_S)


def _is_listed(name: str) -> bool:
    if name in _NOT_LISTED:
        return False
    return name in SYSTEM_CALLS or name.startswith(("pthread_", "sem_"))
