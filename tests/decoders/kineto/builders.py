"""Builders of Kineto traces, and a sink that collects the decoded rows."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.base.columns import Column
from unified_prof.decoders import kineto
from unified_prof.sqlite.batches import StringPool

Event = dict[str, Any]
Row = dict[str, Any]

PID, TID = 100, 101


def complete(cat: str, name: str, ts: object, dur: object, **more: Any) -> Event:
    """Return a complete event on the host's main thread; `more` replaces its keys."""
    event = {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": TID, "ts": ts, "dur": dur}
    return event | {"args": {}} | more


def operation(name: str, ts: object, dur: object, **more: Any) -> Event:
    return complete("cpu_op", name, ts, dur, **more)


def call(ts: object, dur: object, correlation: object, **more: Any) -> Event:
    args = {"External id": 1, "cbid": 211, "correlation": correlation}
    return complete("cuda_runtime", "cudaLaunchKernel", ts, dur, **({"args": args} | more))


def kernel(ts: object, dur: object, correlation: object, **more: Any) -> Event:
    """Return a kernel on stream 7 of device 0; keyword `args` adds to its arguments."""
    args = {
        "External id": 1,
        "device": 0,
        "context": 1,
        "stream": 7,
        "correlation": correlation,
        "grid": [2, 3, 1],
        "block": [128, 1, 1],
    } | more.pop("args", {})
    event = complete("kernel", "gemm_kernel", ts, dur, pid=0, tid=7)
    return event | more | {"args": args}


def copy(ts: object, dur: object, correlation: object, name: str, size: object) -> Event:
    args = {"device": 0, "stream": 7, "correlation": correlation, "bytes": size}
    return complete("gpu_memcpy", name, ts, dur, pid=0, tid=7, args=args)


def write(path: Path, events: Iterable[Event] | str, **metadata: Any) -> Path:
    """Write a trace with these events, or with this text as its events."""
    text = events if isinstance(events, str) else ",\n".join(map(json.dumps, events))
    head = json.dumps({"schemaVersion": 1} | metadata)[:-1]
    path.write_text(f'{head}, "traceEvents": [\n{text}\n]}}', encoding="utf-8")
    return path


class RowSink:
    """Collects rows by table and resolves string ids on request."""

    def __init__(self) -> None:
        self.strings = StringPool()
        self.tables: dict[str, list[Row]] = {}
        self.anomalies: dict[str, int] = {}
        self.details: dict[str, str] = {}

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        lists: dict[str, list[Any]] = {}
        for name, column in columns.items():
            if isinstance(column, np.ndarray):
                lists[name] = column.tolist()  # masked values become None
            elif isinstance(column, list | tuple):
                lists[name] = list(column)
        count = len(next(iter(lists.values()))) if lists else 1
        assert {len(values) for values in lists.values()} <= {count}
        for index in range(count):
            row = {n: lists[n][index] if n in lists else c for n, c in columns.items()}
            self.tables.setdefault(table, []).append(row)
        return count

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        if count:
            self.anomalies[name] = self.anomalies.get(name, 0) + count
            self.details.setdefault(name, detail)

    def text(self, number: int) -> str:
        """Return the text of a string id."""
        return [text for _, texts in self.strings.batches(1 << 30) for text in texts][number]

    def rows(self, table: str, *columns: str, texts: Iterable[str] = ()) -> list[tuple[Any, ...]]:
        """Return these columns of a table; those in `texts` are resolved from string ids."""
        found = []
        for row in self.tables.get(table, ()):
            values = [self.text(row[c]) if c in texts else row[c] for c in columns]
            found.append(tuple(values))
        return found


def decode(path: Path, **options: Any) -> RowSink:
    sink = RowSink()
    kineto.decode(path, sink, **options)
    return sink


def decode_events(tmp_path: Path, *events: Event, **metadata: Any) -> RowSink:
    return decode(write(tmp_path / "trace.json", events, **metadata))
