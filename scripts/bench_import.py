"""Measure `uprof convert`: events per second and memory, also of other tools.

    python scripts/bench_import.py                       # a synthetic 500 MB trace
    python scripts/bench_import.py --peer PYTHON         # also with HolisticTraceAnalysis
    python scripts/bench_import.py --peer PYTHON TRACE...
    python scripts/bench_import.py --kernels 1000000     # an export of Nsight Systems

PYTHON is the interpreter of an environment with HolisticTraceAnalysis. Every measurement is a
separate process and tools alternate; prints medians of CPU time and peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

MB = 1 << 20
PID, BACKWARD_TID = 4242, 4343
_LAYERS = 24
_COUNTERS = {"rank": 0, "world_size": 8}

_UPROF = """
import sys
from pathlib import Path
from unified_prof.pipeline.convert import convert
convert(Path(sys.argv[1]), Path(sys.argv[2]), force=True)
"""

_HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())
"""


class Clock:
    """Host and device time of the synthetic run in ns, and counters for ids."""

    def __init__(self) -> None:
        self.host = 4_458_676_416_431_397
        self.device = self.host
        self.external = self.correlation = self.sequence = 0

    def advance(self, ns: int) -> int:
        """Advance host time by `ns` and return the previous time."""
        before = self.host
        self.host += ns
        return before


def us(ns: int) -> str:
    """Format ns as microseconds, like Kineto."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def operation(name: str, tid: int, start: int, end: int, external: int, extra: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {PID}, "tid": {tid},\n'
        f'    "ts": {us(start)}, "dur": {us(end - start)},\n    "args": {{\n'
        f'      "External id": {external},"Record function id": {external}, {extra}"Ev Idx": '
        f"{external}\n    }}\n  }}"
    )


def launch(clock: Clock, tid: int, kernel: str, ns: int, stream: int) -> Iterator[str]:
    """Return the events of a runtime call, its kernel, and the flow between them."""
    clock.correlation += 1
    start = clock.advance(4_000)
    begin = max(clock.device, start + 5_000)
    clock.device = begin + ns
    c = clock.correlation
    yield (
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {PID}, '
        f'"tid": {tid},\n    "ts": {us(start)}, "dur": {us(3_100)},\n    "args": {{\n'
        f'      "External id": {clock.external}, "cbid": 211, "correlation": {c}\n    }}\n  }}'
    )
    flow = f'"id": {c}, "pid": {{}}, "tid": {{}}, "ts": {{}},\n    "cat": "ac2g", "name": "ac2g"'
    yield '  {\n    "ph": "s", ' + flow.format(PID, tid, us(start)) + "\n  }"
    yield (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": {stream},\n'
        f'    "ts": {us(begin)}, "dur": {us(ns)},\n    "args": {{\n'
        f'      "External id": {clock.external}, "queued": 0, "device": 0, "context": 1,\n'
        f'      "stream": {stream}, "correlation": {c},\n      "registers per thread": 40,\n'
        '      "shared memory": 400,\n      "blocks per SM": 4.740741,\n'
        '      "warps per SM": 75.851852,\n      "grid": [512, 1, 1],\n'
        '      "block": [128, 1, 1],\n      "est. achieved occupancy %": 75\n    }\n  }'
    )
    yield '  {\n    "ph": "f", ' + flow.format(0, stream, us(begin)) + ', "bp": "e"\n  }'


def step(clock: Clock, number: int) -> Iterator[str]:
    """Return the events of a training step: forward pass, backward pass, optimizer."""
    begin = clock.host
    kernels = [
        f"void at::native::vectorized_elementwise_kernel<{i}, at::native::CUDAFunctor_add<float>, "
        f"at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)"
        for i in range(8)
    ]
    forward = []
    for layer in range(_LAYERS):
        clock.external += 1
        clock.sequence += 1
        outer, started = clock.external, clock.advance(2_000)
        shapes = (
            f'"Sequence number": {clock.sequence}, "Fwd thread id": 0, '
            f'"Input type": ["float", "float"], "Input Dims": [[32, {layer + 64}], [{layer}, 64]], '
        )
        clock.external += 1
        inner, inner_start = clock.external, clock.advance(1_000)
        yield from launch(clock, PID, kernels[layer % 8], 9_000, 7)
        inner_end = clock.host
        yield operation("aten::addmm", PID, inner_start, inner_end, inner, shapes)
        clock.advance(500)
        yield operation("aten::linear", PID, started, clock.host, outer, shapes)
        forward.append(clock.sequence)
    for sequence in reversed(forward):
        clock.external += 1
        outer, started = clock.external, clock.advance(1_500)
        extra = f'"Sequence number": {sequence}, "Fwd thread id": 1, '
        clock.external += 1
        inner, inner_start = clock.external, clock.advance(700)
        yield from launch(clock, BACKWARD_TID, kernels[sequence % 8], 14_000, 7)
        yield operation("AddmmBackward0", BACKWARD_TID, inner_start, clock.host, inner, extra)
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        clock.advance(300)
        yield operation(name, BACKWARD_TID, started, clock.host, outer, extra)
    yield from launch(clock, PID, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 30_000, 20)
    clock.advance(10_000)
    yield (
        f'  {{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", '
        f'"pid": {PID}, "tid": {PID},\n    "ts": {us(begin)}, "dur": {us(clock.host - begin)},\n'
        f'    "args": {{\n      "External id": {number}\n    }}\n  }}'
    )


def write_trace(path: Path, size: int) -> int:
    """Write a trace of about `size` bytes; return its number of events."""
    clock, events, written = Clock(), 0, 0
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA Synthetic", "numSms": 108}],
        "distributedInfo": _COUNTERS,
    }
    with path.open("w", encoding="utf-8") as out:
        out.write(json.dumps(head)[:-1] + ',\n "traceEvents": [\n')
        number = 0
        while written < size:
            parts = list(step(clock, number))
            events += len(parts)
            text = ("" if number == 0 else ",\n") + ",\n".join(parts)
            written += out.write(text)
            number += 1
        out.write('\n  ],\n  "baseTimeNanoseconds": 1711964646000000000\n}\n')
    return events


def measure(command: list[str]) -> tuple[float, float]:
    """Run a process; return its CPU seconds and peak memory in MB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wrapper = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr);"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", wrapper, *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, int(done.stderr.split()[-1]) / 1024


def compare(trace: Path, events: int | None, peer: str | None, runs: int) -> None:
    """Print a line for each tool on `trace`."""
    competitors = {"uprof convert": [sys.executable, "-c", _UPROF]}
    if peer:
        competitors["HTA parse"] = [peer, "-c", _HTA]
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in competitors}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            for name, command in competitors.items():
                report = Path(folder) / "report.db"
                figures[name].append(measure([*command, str(trace), str(report)]))
    print(f"{trace.name}: {trace.stat().st_size / MB:,.0f} MB, median of {runs}")
    for name, runs_of in figures.items():
        cpu = statistics.median(cpu for cpu, _ in runs_of)
        peak = statistics.median(peak for _, peak in runs_of)
        rate = f"  {events / cpu:>9,.0f} events/s" if events else ""
        print(f"  {name:14} {cpu:7.2f} s CPU  {peak:7.0f} MB peak{rate}", flush=True)


_DRIVER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
    cursor = db.execute("SELECT * FROM " + table)
    while cursor.fetchmany(16384):
        pass
"""
_KERNEL = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
    *("demangledName", "shortName", "registersPerThread", "gridX", "gridY", "gridZ", "blockX"),
    *("blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "graphNodeId", "graphId"),
)
_CALL = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue")


def write_export(path: Path, kernels: int) -> None:
    """Write a synthetic export of Nsight Systems with kernels and their launches."""
    process = 1 << 48 | PID << 24
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        names = [(i, f"void at::native::elementwise_kernel<{i}, float>(int)") for i in range(200)]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (200, "cudaLaunchKernel")])
        for table, columns in (("KERNEL", _KERNEL), ("RUNTIME", _CALL)):
            listed = ", ".join(f'"{name}" INTEGER' for name in columns)
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} ({listed})")
        db.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(_KERNEL))})",
            (
                (
                    *(at, at + 2_000 + i % 500, 0, 1, 7, i + 1, process, i % 200, i % 200, 40),
                    *(i % 37 + 1, 1, 1, 128, 1, 1, 0, 400, None, None),
                )
                for i, at in ((i, 1_005_000 + 3_000 * i) for i in range(kernels))
            ),
        )
        db.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({', '.join('?' * len(_CALL))})",
            (
                (1_000_000 + 3_000 * i, 1_002_000 + 3_000 * i, 0, process | PID, i + 1, 200, 0)
                for i in range(kernels)
            ),
        )


def compare_export(export: Path, runs: int) -> None:
    """Compare the import of an export with Python's SQLite driver reading all rows."""
    report = export.with_suffix(".db")
    figures: dict[str, list[tuple[float, float]]] = {"uprof convert": [], "the driver alone": []}
    for _ in range(runs):
        figures["uprof convert"].append(
            measure([sys.executable, "-c", _UPROF, str(export), str(report)])
        )
        figures["the driver alone"].append(measure([sys.executable, "-c", _DRIVER, str(export)]))
    for name, found in figures.items():
        cpu = statistics.median(one[0] for one in found)
        memory = statistics.median(one[1] for one in found)
        print(f"{name:<18} {cpu:6.2f} s CPU  {memory:6.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path, help="instead of a synthetic trace")
    parser.add_argument("--mb", type=int, default=500, help="size of the synthetic trace")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer", help="Python interpreter with HolisticTraceAnalysis")
    parser.add_argument(
        "--length", action="store_true", help="also measure a tenth of the size, to compare memory"
    )
    parser.add_argument("--kernels", type=int, help="size of an export of Nsight Systems, instead")
    options = parser.parse_args()
    if options.kernels:
        with tempfile.TemporaryDirectory() as folder:
            export = Path(folder) / "synthetic.sqlite"
            write_export(export, options.kernels)
            compare_export(export, options.runs)
        return
    for trace in options.traces:
        compare(trace, None, options.peer, options.runs)
    if options.traces:
        return
    with tempfile.TemporaryDirectory() as folder:
        for size in (options.mb // 10, options.mb) if options.length else (options.mb,):
            trace = Path(folder) / f"synthetic_{size}.json"
            compare(trace, write_trace(trace, size * MB), options.peer, options.runs)
            trace.unlink()


if __name__ == "__main__":
    main()
