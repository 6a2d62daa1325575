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


def memory(ts: object, size: int, address: int, total: int, device: int = 0) -> Event:
    """Return an allocation or a release; device -1: on the host."""
    args = {"Total Reserved": 4096, "Total Allocated": total, "Bytes": size, "Addr": address}
    args |= {"Device Id": device, "Device Type": 1 if device >= 0 else 0}
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": ts}
    return event | {"pid": PID, "tid": TID, "args": args}


def label(name: str, tid: int, value: str) -> Event:
    return {"ph": "M", "name": name, "ts": 1, "pid": PID, "tid": tid, "args": {"name": value}}


def all_kinds() -> list[Event]:
    """Return events of every kind, each kind 100 us after the one before."""
    shapes = {
        "External id": 1,
        "Input type": ["float", "c10::Half", "Scalar"],
        "Input Dims": [[8, 3, 4, 4], [2, 3], []],
        "Input Strides": [[48, 1, 12, 3], [3, 1], []],
    }
    memset = {"pid": 0, "tid": 7, "args": {"correlation": 9, "bytes": 64}}
    hip_copy = call(401, 1, 15, args={"correlation": 15, "size": "2560", "kind": "1"})
    hip_launch = {"correlation": 16, "grid": [4, 1, 1], "block": [64, 1, 1], "shared memory": 0}
    task = {"device": 2, "stream": 0}
    wait = {"cuda_sync_kind": "Stream Wait Event", "stream": 20, "correlation": 12, "device": 0}
    wait |= {"context": 1, "wait_on_stream": 7, "wait_on_cuda_event_id": 3}
    first_shape = {"Input Dims": [[12, 10]], "Input type": ["float"]}
    older, oldest = "AllReduce_TREE_LL128_Sum_float", "AllReduce_RING_LL_Sum_float"
    other = {"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 1220}
    unfinished = {"finished": False}
    return [
        operation("aten::mm", 10, 20, args=shapes),
        call(15, 5, 77),
        kernel(40.125, 2.5, 77),
        # The innermost operation of the launching thread.
        operation("aten::linear", 100, 100),
        operation("aten::addmm", 110, 50),
        operation("aten::other_thread", 112, 10, tid=TID + 1),
        complete("user_annotation", "my range", 111, 20),
        *(call(ts, 5, number) for ts, number in ((115, 1), (170, 2), (250, 3))),
        *(kernel(120, 1, 1), kernel(180, 1, 2), kernel(260, 1, 3, args={"External id": 99})),
        *(call(300 + 2 * number, 1, number) for number in range(5, 10)),
        copy(330, 2, 5, "Memcpy HtoD (Pinned -> Device)", 4096),
        copy(340, 2, 6, "Memcpy DtoH (Device -> Pageable)", 16),
        copy(350, 2, 7, "Memcpy PtoP (Device -> Device)", 8),
        copy(360, 2, 8, "Memcpy XtoX (Unknown)", 4),
        complete("gpu_memset", "Memset (Device)", 370, 1, **memset),
        hip_copy | {"name": "hipMemcpyWithStream"},
        call(403, 1, 16, args=hip_launch) | {"name": "hipLaunchKernel"},
        complete("gpu_memcpy", "Memcpy HtoD", 405, 1, args=task | {"correlation": 15}),
        complete("kernel", "Cijk_Alik", 409, 1, args=task | {"correlation": 16}),
        call(515, 5, 17),
        kernel(530, 10, 17, name=NCCL, args=PARAMETERS | {"Src Rank": 4}),
        operation("record_param_comms", 610, 20, args=PARAMETERS | {"External id": 4}),
        operation("aten::inner", 612, 10),
        call(615, 5, 18),
        kernel(630, 10, 18, name=f"ncclKernel_{older}(ncclDevComm*)"),
        operation("record_param_comms", 709, 30, args={"External id": 5}),
        complete("user_annotation", "nccl:all_reduce", 710, 20, args=first_shape),
        call(715, 5, 19),
        kernel(730, 10, 19, name=f"ncclKernel_{oldest}(ncclDevComm*)"),
        kernel(750, 10, 20, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        complete("user_annotation", "ProfilerStep#41", 810, 50),
        complete("user_annotation", "## forward ##", 820, 5),
        complete("gpu_user_annotation", "## forward ##", 830, 5, pid=0, tid=7),
        call(901, 1, 12),
        complete("cuda_sync", "Stream Wait Event", 905, 2, pid=0, tid=20, args=wait),
        operation("aten::empty", 1010, 20),
        memory(1015, 512, 1000, 512),
        memory(1040, -512, 1000, 0),
        memory(1050, 64, 1000, 64),
        memory(1060, -32, 7777, 32),
        memory(1065, 0, 7777, 32),
        memory(1070, 16, 1000, 16, device=-1),
        complete("overhead", "Activity Buffer Request", 1101, 2, pid=-1, tid=0, args={}),
        complete("cuda_profiler_range", "gemm", 1105, 6, pid=0, tid=1, args={"a.sum": 12}),
        other,
        complete("brand_new", "thing", 1109, 1),
        *(label("process_name", 0, "python3"), label("thread_name", -5, "pt_autograd_0")),
        operation("aten::on_autograd_thread", 1301, 1, tid=-5),
        complete("user_annotation", "ProfilerStep#42", 1310, 5, args=unfinished),
        operation("aten::cut", 1312, 3, args=unfinished),
    ]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
PARAMETERS = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 8,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "dp_0",
    "Process Group Description": "data parallel",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}


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
