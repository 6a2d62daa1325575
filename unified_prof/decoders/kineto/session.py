"""Decodes one torch.profiler trace: collects and joins its events, and writes all tables.

The second half of a large trace is read in another process. Both processes look for the first end
of an event at or after the same byte. The other one collects rows in a file and has separate pools,
whose numbers are translated when rows are added. If the trace cannot be divided, or the second half
depends on events of the first, it is read here instead.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import MISSING, Column, Coverage, Ledger, Sink, ints
from unified_prof.base.process_tuning import processors
from unified_prof.base.redaction import MASK, is_secret_name, redact, redact_arguments
from unified_prof.decoders import compression
from unified_prof.decoders.gpu import host_tables, task_tables
from unified_prof.decoders.gpu.host_tables import NO_RANK, UNKNOWN_NAME
from unified_prof.decoders.gpu.pools import Collective
from unified_prof.decoders.gpu.rows import GpuRecording
from unified_prof.decoders.gpu.task_tables import NO_OPTIONS, Options
from unified_prof.decoders.kineto import collector, merged
from unified_prof.decoders.kineto.collector import Collector, Ranks
from unified_prof.decoders.kineto.events import Kind
from unified_prof.decoders.kineto.fields import to_int, to_int64
from unified_prof.decoders.kineto.slices import SLICE_BYTES, TraceReader
from unified_prof.decoders.spool import Spool, windows
from unified_prof.errors import RawFormatError

MIN_BYTES = 128 << 20  # Smaller traces are read before another process has started.

_LENGTH_BYTES = 8  # The other process writes rows, texts, a `Half`, and the length of that.

# Fields of rows that are numbers of pools.
_POOLS = {
    "thread": "threads",
    "signature": "signatures",
    "geometry": "geometries",
    "collective": "collectives",
    "stack": "chains",
    "frame": "frames",
    "place": "places",
} | dict.fromkeys(("name", "inputs", "module", "category", "syncs.kind"), "texts")
# Anomalies of numbers that are assigned in the order of events.
_DEPEND_ON_ORDER = ("process_id_replaced", "thread_id_replaced")


class _Strings(defaultdict[str, int]):
    """String pool of the other process."""

    def __init__(self) -> None:
        super().__init__(count().__next__)

    def intern(self, text: str) -> int:
        return self[text]

    def intern_all(self, texts: Iterable[str]) -> Ints:
        return ints(self[text] for text in texts)


@dataclass
class _Sink:
    """Sink of the other process, which writes no tables."""

    strings: _Strings = field(default_factory=_Strings)
    ledger: Ledger = field(default_factory=Ledger)

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        raise AssertionError(table)

    def anomaly(self, name: str, occurrences: int = 1, detail: str = "") -> None:
        self.ledger.add(name, detail, occurrences)


@dataclass(slots=True)
class Half:
    """Result of the other process: pools, figures, and the sizes of the rows in its file."""

    begin: int
    anomalies: dict[str, tuple[int, str]]
    texts: list[str]
    names: list[Any]
    threads: list[list[tuple[Any, Any]]]
    labels: tuple[dict[Any, str], dict[Any, str], dict[tuple[Any, Any], str]]
    signatures: list[tuple[bytes, bytes, bytes]]
    geometries: list[tuple[bytes, bytes]]
    collectives: list[Collective]
    frames: list[str]
    chains: tuple[list[int], list[int]]
    places: list[tuple[Any, Any]]
    figures: dict[str, Any]
    forward_of: dict[tuple[int, int], int]
    calling: set[int]
    reader: dict[str, Any]
    text_bytes: int
    blocks: list[tuple[str, int]] = field(default_factory=list)


_FIGURES = "counts skipped activity devices span max_correlation links_to_operations".split()
_FIGURES += ["has_memory_in_use", "unsupported", "id_blocks"]


def is_no_frame(_: str) -> bool:
    """Return False, for a trace whose frames are all of the program."""
    return False


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during the block; the millions of events contain no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect(
    path: Path, position: int, is_outside: Callable[[str], bool], file: IO[bytes]
) -> Half | None:
    """Collect the events after `position`, and write their rows; runs in the other process.

    Returns None if they depend on the events before.
    """
    sink = _Sink()
    reader = TraceReader(path, sink.anomaly)
    with no_garbage_collection(), Collector(sink, is_outside) as parts:
        begin = reader.skip_to(position)
        if begin is None:
            return None
        for events in reader.slices():
            parts.add(events)
        if parts.depends_on_order or any(name in sink.ledger for name in _DEPEND_ON_ORDER):
            return None
        half = Half(
            begin,
            {name: (n, what) for name, (n, what) in sink.ledger.items() if name != "cut_off"},
            list(sink.strings),
            list(parts.names),
            parts.threads.spellings,
            (parts.threads.process_names, parts.threads.process_labels, parts.threads.thread_names),
            list(parts.signatures),
            list(parts.geometries),
            parts.collectives.all,
            parts.chains.frames.texts,
            parts.chains.links,
            list(parts.places),
            {name: getattr(parts, name) for name in _FIGURES},
            parts.forward_of,
            parts.calling,
            reader.result(),
            parts.texts.size,
        )
        for name, spool in _spools(parts).items():
            for (rows,) in windows(spool):
                file.write(rows.tobytes())
                half.blocks.append((name, len(rows)))
        file.write(parts.texts.read(0, half.text_bytes))
    return half


def _spools(parts: Collector) -> dict[str, Spool]:
    return {name: value for name, value in vars(parts).items() if isinstance(value, Spool)}


_MAIN = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer);"
    "from unified_prof.decoders.kineto.session import main; main()"
)


def main() -> None:
    """Collect the second half that standard input describes; write it to standard output."""
    path, position, is_outside = pickle.load(sys.stdin.buffer)
    half = collect(path, position, is_outside, sys.stdout.buffer)
    message = pickle.dumps(half)
    sys.stdout.buffer.write(message + len(message).to_bytes(_LENGTH_BYTES, "little"))


class SecondHalf:
    """Second half of a trace that another process reads; use in a `with` block."""

    def __init__(self, path: Path, position: int, is_outside: Callable[[str], bool]) -> None:
        self.position = position
        task = pickle.dumps(sys.path) + pickle.dumps((path.absolute(), position, is_outside))
        self._file = tempfile.TemporaryFile(prefix="uprof-")  # noqa: SIM115
        self._process = subprocess.Popen(
            # Nothing is imported from the current directory, which may contain recordings.
            [sys.executable, "-I", "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=self._file,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(task)

    def __enter__(self) -> SecondHalf:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._file.close()

    def _result(self) -> Half | None:
        """Return what the other process read, None if it failed."""
        if self._process.wait():
            return None  # an error of the trace is found again when it is read here
        self._file.seek(-_LENGTH_BYTES, os.SEEK_END)
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        self._file.seek(-_LENGTH_BYTES - length, os.SEEK_END)
        half: Half | None = pickle.loads(self._file.read(length))
        return half

    def add_to(self, parts: Collector, reader: TraceReader) -> bool:
        """Add the second half to the first; return False if it has to be read here."""
        half = self._result()
        if half is None or half.begin != reader.position or parts.depends_on_order:
            return False
        numbers = _translate(parts, half)
        spools = _spools(parts)
        self._file.seek(sum(spools[name].dtype.itemsize * rows for name, rows in half.blocks))
        texts_at = parts.texts.append(self._file.read(half.text_bytes))
        self._file.seek(0)
        for name, length in half.blocks:
            rows = np.fromfile(self._file, spools[name].dtype, length)
            for column in rows.dtype.names or ():
                pool = _POOLS.get(column) or _POOLS.get(f"{name}.{column}")
                if pool is not None:
                    rows[column] = numbers[pool][rows[column]]
            if name == "other":
                rows["args_at"] += texts_at
            spools[name].append(rows)
        reader.add(half.reader)
        return True


def _translate(parts: Collector, half: Half) -> dict[str, Ints]:
    """Add pools and figures to `parts`; return the new numbers by pool, with MISSING at the end."""
    for name, (occurrences, detail) in half.anomalies.items():
        parts.sink.anomaly(name, occurrences, detail)
    texts = parts.sink.strings.intern_all(half.texts).tolist()
    for name in half.names:
        parts.names[name]
    threads = [max(parts.threads[key] for key in keys) for keys in half.threads]
    names = (parts.threads.process_names, parts.threads.process_labels, parts.threads.thread_names)
    for known, more in zip(names, half.labels, strict=True):
        known.update(more)
    frames = [parts.chains.frames[text] for text in half.frames]
    above, last = half.chains
    chains = parts.chains.extend_all(above, [MISSING] * len(above), [frames[one] for one in last])
    parts.add_figures(
        half.figures | {"activity": {threads[k]: n for k, n in half.figures["activity"].items()}}
    )
    parts.calling |= {threads[one] for one in half.calling}
    for (thread, start), forward in half.forward_of.items():
        parts.forward_of[threads[thread], start] = threads[forward]
    found: dict[str, Sequence[int]] = {
        "texts": texts,
        "threads": threads,
        "signatures": [parts.signatures[key] for key in half.signatures],
        "geometries": [parts.geometries[key] for key in half.geometries],
        "collectives": [parts.collectives.number(one) for one in half.collectives],
        "frames": frames,
        "chains": chains,
        "places": [parts.places.setdefault(key, len(parts.places)) for key in half.places],
    }
    return {pool: ints([*values, MISSING]) for pool, values in found.items()}


def second_half(
    path: Path, is_outside: Callable[[str], bool], from_bytes: int
) -> SecondHalf | None:
    """Start to read the second half of a trace of at least `from_bytes` in another process.

    Returns None if the trace is smaller, or if another process would not help or cannot start.
    """
    # A process that converts one of several recordings leaves the processors to the others.
    if multiprocessing.parent_process() is not None or processors() < 2:
        return None
    if not Path(sys.executable or "").name.startswith("python"):
        return None  # embedded in another program
    try:
        size = compression.expected_bytes(path)
        return SecondHalf(path, size // 2, is_outside) if size >= from_bytes else None
    except (OSError, pickle.PicklingError, AttributeError):
        return None


_WRITTEN_ELSEWHERE = frozenset({"deviceProperties", "baseTimeNanoseconds"})
# Keys of torch and Kineto, besides their versions.
_KNOWN_KEYS = frozenset(
    "schemaVersion traceName trace_id displayTimeUnit distributedInfo host_name record_shapes "
    "profile_memory with_stack with_flops with_modules INFO WARNING ERROR VERBOSE STAGE".split()
)
# Times before September 2001 are not times since 1970: torch.profiler did not exist.
_UNIX_TIMES_FROM_NS = 10**18
_VERSION = re.compile(r"[A-Za-z0-9_]{1,60}_version")
Count = Callable[[str, int, str], None]


def base_time_ns(
    metadata: dict[str, Any], span: tuple[int, int], count: Count, *, cut_off: bool
) -> int:
    """Return the nanoseconds to add to the trace's times to get Unix times.

    `span` contains the first and last time in the trace (ns). If `cut_off` is true, the end of the
    trace is missing, to which Kineto before 2.7 wrote the base time. `count` is called with an
    anomaly if the base time is invalid or lost.
    """
    given = metadata.get("baseTimeNanoseconds")
    if given is None:
        if cut_off and span[0] < _UNIX_TIMES_FROM_NS:
            count("base_time_lost", 1, "the end of the trace with the base time is missing")
        return 0
    base = to_int(given)
    if base is None or base < 0 or span[0] + base < 0 or span[1] + base >= 2**63:
        count("unusable_base_time", 1, f"{str(given)[:60]!r}: times are kept as in the trace")
        return 0
    return base


def _write_metadata(
    parts: Collector, metadata: dict[str, Any], listed: Mapping[str, tuple[str, Ranks]]
) -> dict[str, Any]:
    """Write the recording metadata; return rows of UPROF_RUN.

    `listed` contains title and ranks of each process group.
    """
    sink = parts.sink
    assert parts.span is not None
    properties = _device_properties(metadata)
    names = {device: str(p.get("name", UNKNOWN_NAME)) for device, p in properties.items()}
    rank = trace_rank(parts, metadata)
    host = metadata.get("host_name")
    start, end = parts.span
    host_tables.write_metadata(
        sink,
        start_ns=start + parts.base_ns,
        end_ns=end + parts.base_ns,
        host_name=redact(host) if isinstance(host, str) else None,
        device_names={device: names.get(device) for device in parts.devices},
        rank=rank,
    )
    known = {
        device: {name: value for name, value in values.items() if name != "id"}
        for device, values in properties.items()
    }
    host_tables.write_device_properties(sink, known)
    # In the format of torch_npu, from which readers take the names of process groups.
    groups = {
        redact(name): {
            "group_name": redact(title),
            "group_rank": ranks.index(rank) if rank in ranks else NO_RANK,
            "global_ranks": list(ranks),
        }
        for name, (title, ranks) in listed.items()
    }
    if groups:
        sink.write("META_DATA", {"name": "parallel_group_info", "value": json.dumps(groups)})
    return {
        "decoder": "kineto",
        "device_kind": "gpu" if parts.devices or properties else "cpu",
        "device_vendor": _vendor(parts, [names.get(d, "") for d in parts.devices]),
        "base_time_ns": parts.base_ns,
        "events": dict(sorted(parts.counts.items())),
        "rank": rank if rank != NO_RANK else None,
        **_metadata_facts(metadata),
    }


_MAX_DEPTH = 20  # Maximum nesting of metadata; that of the profiler has 4 levels.


def _metadata_facts(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the trace with secrets removed.

    A program can add any key with `torch.profiler.add_metadata`, for example its environment with
    access tokens. For keys of the program only the names are kept; in values of the profiler,
    strings that look like secrets are masked.
    """
    known, others = {}, []
    for key, value in metadata.items():
        if key in _KNOWN_KEYS or _VERSION.fullmatch(key):
            known[key] = _redacted(value)
        elif key not in _WRITTEN_ELSEWHERE:
            others.append(key)
    facts: dict[str, Any] = {"trace_metadata": known}
    if others:
        facts["trace_metadata_left_out"] = sorted(others)
    return facts


def _redacted(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return a JSON value with masked secrets; null in place of what is nested too deeply."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | dict) and not depth:
        return None
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return list(redact_arguments(value))  # may be a command
        return [_redacted(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {
            name: MASK if is_secret_name(name) and item else _redacted(item, depth - 1)
            for name, item in value.items()
        }
    return value


def distributed_info(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return `distributedInfo` of a trace, {} if it is missing."""
    distributed = metadata.get("distributedInfo")
    return distributed if isinstance(distributed, dict) else {}


def trace_rank(parts: Collector, metadata: dict[str, Any]) -> int:
    """Return the rank of the trace, NO_RANK if it is unknown or if several ranks were merged."""
    if len(parts.labels.texts) > 1:
        return NO_RANK
    rank = rank_of(metadata)
    return NO_RANK if rank is None else rank


def rank_of(metadata: dict[str, Any]) -> int | None:
    """Return the rank in `distributedInfo`, or None."""
    distributed = distributed_info(metadata)
    rank = int(to_int64([distributed.get("rank")], missing=NO_RANK)[0][0])
    return rank if rank >= 0 else None


def _device_properties(metadata: dict[str, Any]) -> dict[int, dict[str, Any]]:
    listed = metadata.get("deviceProperties")
    found: dict[int, dict[str, Any]] = {}
    for properties in listed if isinstance(listed, list) else ():
        if isinstance(properties, dict) and isinstance(properties.get("id"), int):
            found[properties["id"]] = _redacted(properties)
    return found


def _vendor(parts: Collector, device_names: list[str]) -> str | None:
    calls = [name for name in parts.names if isinstance(name, str)]
    if any("NVIDIA" in name or "Tesla" in name for name in device_names):
        return "NVIDIA"
    if any("AMD" in name for name in device_names) or any(n.startswith("hip") for n in calls):
        return "AMD"
    if any(name.startswith(("cuda", "cuLaunch")) for name in calls):
        return "NVIDIA"
    return None


NAME = "kineto"


def decode(
    path: Path,
    sink: Sink,
    options: Options = NO_OPTIONS,
    *,
    is_outside: Callable[[str], bool] | None = None,
    slice_bytes: int = SLICE_BYTES,
    divided_from_bytes: int = MIN_BYTES,
) -> GpuRecording:
    """Decode a torch.profiler trace, compressed or not, in bounded memory.

    `is_outside` returns True for a Python frame (`file.py(line): function`) of the program that ran
    the workload; this frame and its callers are omitted from call chains. `slice_bytes` of JSON are
    decoded at a time. Another process reads the second half of traces of at least
    `divided_from_bytes`, if there are two processors.

    Raises:
        RawFormatError: not a trace, truncated before the first event, or too damaged to read.
    """
    is_outside = is_outside or is_no_frame
    reader = TraceReader(path, sink.anomaly, slice_bytes)
    with no_garbage_collection(), Collector(sink, is_outside) as parts:
        options.progress("reading events")
        with ExitStack() as stack:
            second = second_half(path, is_outside, divided_from_bytes)
            position = None if second is None else stack.enter_context(second).position
            for events in reader.slices(before=position):
                parts.add(events)
            if not reader.is_finished and not (second and second.add_to(parts, reader)):
                for events in reader.slices():
                    parts.add(events)
        parts.finish()
        span = _require_events(path, parts, cut_off=reader.cut_off)
        torch_events = (parts.host, parts.frames, parts.calls, parts.gpu, parts.allocations)
        if not any(spool.rows for spool in torch_events):
            detail = "the trace has no operations, calls or kernels of torch"
            sink.anomaly("no_torch_events", 1, detail)
        parts.base_ns = base_time_ns(reader.metadata, span, sink.anomaly, cut_off=reader.cut_off)
        merged.separate(parts, parts.calling, parts.labels)
        listed = collector.complete_collectives(
            parts.collectives.all,
            collector.listed_groups(distributed_info(reader.metadata)),
            trace_rank(parts, reader.metadata),
            sink.anomaly,
        )
        if parts.allocations.rows and not parts.has_memory_in_use:  # torch before 1.10
            parts.adds_up_allocations = True
            sink.anomaly("memory_added_up", 1, "memory in use was not recorded; computed from 0")
        joined = task_tables.write(parts, options)
        facts = _write_metadata(parts, reader.metadata, listed)
        coverage = Coverage()
        coverage.add("trace", "bytes", reader.size_bytes, skipped=reader.skipped_bytes)
        parts.add_coverage(coverage)
        coverage.write(sink)
        return GpuRecording(
            events=reader.events_read,
            counts=dict(parts.counts),
            tasks=parts.gpu.rows,
            tasks_joined=joined,
            operations=parts.counts[Kind.OPERATION.value],
            rank=rank_of(reader.metadata),
            facts=facts,
        )


def _require_events(path: Path, parts: Collector, *, cut_off: bool) -> tuple[int, int]:
    """Return the time span of all events; raise RawFormatError if there are none."""
    spools = (parts.host, parts.frames, parts.calls, parts.gpu, parts.allocations, parts.other)
    if parts.span is not None and any(spool.rows for spool in spools):
        return parts.span
    if cut_off:
        raise RawFormatError(
            f"{path}: has no complete event: it is cut off, damaged or not a trace",
            hint="copy the file again, or record again and wait until the trace is written",
            slug="damaged-recording",
        )
    raise RawFormatError(
        f"{path}: has no event that torch.profiler records",
        hint="expected operations, runtime calls or kernels with ph, cat, ts and dur",
        slug="empty-recording",
    )
