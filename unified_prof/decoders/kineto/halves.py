"""Reads the second half of a large trace in another process and adds it to the first half.

Both processes look for the first end of an event at or after the same byte. The other one collects
rows in a file and has separate pools, whose numbers are translated when rows are added. If the
trace cannot be divided, or the second half depends on events of the first, it is read here instead.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np

from unified_prof.arrays.grouping import Ints
from unified_prof.base.columns import MISSING, Column, Ledger, ints
from unified_prof.decoders import compression
from unified_prof.decoders.gpu.collectives import Collective
from unified_prof.decoders.kineto.collector import Collector
from unified_prof.decoders.kineto.slices import TraceReader
from unified_prof.decoders.spool import Spool, windows

# Smaller traces are read before another process has started.
MIN_BYTES = 128 << 20

# The other process writes rows, texts, a `Half`, and the length of that.
_LENGTH_BYTES = 8

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
_FIGURES += ["has_memory_in_use", "unsupported"]


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
            (
                parts.threads.process_names,
                parts.threads.process_labels,
                parts.threads.thread_names,
            ),
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
    "from unified_prof.decoders.kineto.halves import main; main()"
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
    if multiprocessing.parent_process() is not None or _processors() < 2:
        return None
    if not Path(sys.executable or "").name.startswith("python"):
        return None  # embedded in another program
    try:
        size = compression.expected_bytes(path)
        return SecondHalf(path, size // 2, is_outside) if size >= from_bytes else None
    except (OSError, pickle.PicklingError, AttributeError):
        return None


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
