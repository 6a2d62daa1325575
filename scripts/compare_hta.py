#!/usr/bin/env python
"""Compare uprof's figures of torch.profiler traces with HolisticTraceAnalysis 0.5.0.

    HTA_PYTHON=/envs/hta/bin/python python scripts/compare_hta.py TRACE.json.gz ...

HTA runs in a separate environment, given by HTA_PYTHON. Both read the same copy of a trace: times
are relative to its start (HTA keeps them as float64), and steps are removed (HTA drops kernels that
were launched after the last step). HTA's rounding to microseconds is switched off. Differences that
are explained by a known property of HTA are listed with that reason; any other difference makes the
exit code 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Calls in HTA's launch statistics.
_HTA_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
_HTA_QUEUED = (*_HTA_LAUNCHES, "cuLaunchKernel", "hipLaunchKernel", "hipMemcpyAsync")
# Number of operations whose kernel sequences are compared.
_OPERATIONS = 5

_CLIENT = r"""
import json, re, sys, tempfile, warnings
warnings.filterwarnings("ignore")
import logging; logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
from hta.common.trace_call_stack import CallStackGraph
path, output, operations = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
ns = lambda us: int(round(float(us) * 1000))
results = {}
analysis = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
def tell(name):
    def keep(function):
        try:
            results[name] = function()
        except Exception as err:
            results[name] = {"error": f"{type(err).__name__}: {err}"[:200]}
    return keep
frame = analysis.t.get_trace(0)
names = analysis.t.symbol_table.get_sym_table()
@tell("launch")
def _():
    found = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    call, work, delay = found.cpu_duration, found.gpu_duration, found.launch_delay
    return {"count": len(found), "calls_ns": ns(call.sum()), "work_ns": ns(work.sum()),
            "short_kernels": int(((call <= 50) & (work < call)).sum()),
            "slow_calls": int((call > 50).sum()),
            "late_kernels": int((delay.round(3) > 100).sum())}
@tell("queue")
def _():
    series = analysis.get_queue_length_time_series()[0]
    result = {}
    for stream, own in series.groupby("stream"):
        own = own.groupby("ts", as_index=False).queue_length.last()
        time = [ns(one) for one in own.ts]; length = own.queue_length.tolist()
        parts = [(after - at, size) for at, after, size in zip(time, time[1:], length)]
        result[str(int(stream))] = {
            "longest": int(max(length)), "window_ns": time[-1] - time[0],
            "empty_ns": sum(part for part, size in parts if size == 0),
            "area": sum(part * size for part, size in parts)}
    return result
@tell("copies")
def _():
    series = analysis.get_memory_bw_time_series()[0]
    result = {}
    for kind, own in series.groupby("name"):
        own = own.groupby("ts", as_index=False).memory_bw_gbps.last()
        ts, rate = own.ts.tolist(), own.memory_bw_gbps.tolist()
        moved = sum((after - at) * max(one, 0) * 1000 for at, after, one in zip(ts, ts[1:], rate))
        result[str(kind)] = {"bytes": moved, "peak": max(rate) * 1e9}
    return result
@tell("annotation")
def _():
    found = analysis.get_gpu_user_annotation_breakdown(visualize=False, num_kernels=10**9)
    return {} if found is None else {
        one["name"]: ns(one.get("sum (us)", one.get("sum"))) for one in found.to_dict("records")}
@tell("kernel")
def _():
    _, found = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**9)
    return {one["name"]: [ns(one["sum (us)"]), ns(one["min (us)"]), ns(one["max (us)"]),
                          None if one["stddev"] != one["stddev"] else one["stddev"] * 1000]
            for one in found.to_dict("records")}
@tell("time")
def _():
    one = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return {key: ns(one[key + "(us)"]) for key in
            ("idle_time", "compute_time", "non_compute_time", "kernel_time")}
@tell("overlap")
def _():
    return float(analysis.get_comm_comp_overlap(visualize=False).iloc[0].comp_comm_overlap_pctg)
results["sequence"] = {}
for operation in operations:
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = analysis.get_frequent_cuda_kernel_sequences(
                operator_name=operation, output_dir=folder, visualize=False, top_k=1)
            results["sequence"][operation] = [
                [one["pattern"], one["count"], ns(one["GPU kernel duration (us)"]),
                 ns(one["CPU op duration (us)"])] for one in found.to_dict("records")]
        except Exception as err:
            results["sequence"][operation] = {"error": f"{type(err).__name__}: {err}"[:200]}
json.dump(results, open(output, "w"))
"""


@dataclass(frozen=True)
class Cost:
    """CPU time and memory of a process."""

    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class Verdict:
    """Result of comparing one analysis."""

    analysis: str
    # Number of compared figures.
    compared: int
    differing: tuple[str, ...] = ()
    # Known property of HTA that explains differences, or a missing comparison.
    reason: str = ""

    def __str__(self) -> str:
        if self.differing and not self.reason:
            return f"{self.analysis}: DIFFERS: " + "; ".join(self.differing[:4])
        if self.differing:
            count = f"{len(self.differing)} of {self.compared}"
            return f"{self.analysis}: {count} differ: {self.reason}"
        if not self.compared:
            return f"{self.analysis}: not compared: {self.reason or 'no figures'}"
        return f"{self.analysis}: equal ({self.compared} figures)" + (
            f", remaining figures: {self.reason}" if self.reason else ""
        )


def main() -> int:
    """Compare the given traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours is not None:
        arguments.ours.write_text(json.dumps(_ours(arguments.traces[0])), encoding="utf-8")
        return 0
    client = os.environ.get("HTA_PYTHON")
    if client is None:
        sys.exit("set HTA_PYTHON to the Python of an environment with HolisticTraceAnalysis==0.5.0")
    bad = False
    for trace in arguments.traces:
        verdicts, costs = compare(trace, client)
        print(f"{trace.name}")
        for verdict in verdicts:
            print(f"  {verdict}")
            bad |= bool(verdict.differing and not verdict.reason)
        line = ", ".join(
            f"{who} {cost.cpu_s:.2f} CPU s {cost.peak_mb:.0f} MB" for who, cost in costs
        )
        print(f"  cost: {line}")
    return int(bad)


def compare(trace: Path, client: str) -> tuple[list[Verdict], list[tuple[str, Cost]]]:
    """Return the results for one trace, and the cost of each side."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy, facts = _copy(trace, folder / "trace.json")
        ours_at, theirs_at = folder / "ours.json", folder / "theirs.json"
        ours_cost = _run([sys.executable, __file__, str(copy), "--ours", str(ours_at)])
        ours = json.loads(ours_at.read_text(encoding="utf-8"))
        operations = list(dict.fromkeys(one[0] for one in ours["sequence"]))[:_OPERATIONS]
        theirs_cost = _run(
            [client, "-c", _CLIENT, str(copy), str(theirs_at), json.dumps(operations)],
            HTA_DISABLE_NS_ROUNDING="1",
        )
        theirs = json.loads(theirs_at.read_text(encoding="utf-8"))
    return list(_verdicts(ours, theirs, facts)), [("uprof", ours_cost), ("HTA", theirs_cost)]


def _copy(trace: Path, target: Path) -> tuple[Path, dict[str, Any]]:
    """Write the trace with relative times and without steps; return its path and properties."""
    packed = trace.read_bytes()
    document = json.loads(gzip.decompress(packed) if trace.suffix == ".gz" else packed)
    events = [
        one
        for one in document["traceEvents"]
        if not str(one.get("name", "")).startswith("ProfilerStep")
    ]
    begin = int(min(one["ts"] for one in events if one.get("ph") == "X" and one.get("ts"))) - 1000
    for event in events:
        if "ts" in event:
            event["ts"] = round(float(event["ts"]) - begin, 3)
    document["traceEvents"] = events
    target.write_text(json.dumps(document), encoding="utf-8")
    of_device = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    calls: dict[Any, list[Any]] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            calls.setdefault((event.get("args") or {}).get("correlation"), []).append(event)
    names = {one["name"] for found in calls.values() for one in found}
    return target, {
        "streamed": any(
            one.get("cat") == "cpu_op" and "stream" in (one.get("args") or {}) for one in events
        ),
        "syncs": any(one.get("cat") == "cuda_sync" for one in events),
        "unlaunched": any(one["args"].get("correlation") not in calls for one in of_device),
        "calls": names,
        "instant": any(not one.get("dur") for one in of_device),
        "several": len(of_device) != len({one["args"].get("correlation") for one in of_device}),
    }


def _run(command: list[str], **environment: str) -> Cost:
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]} failed:\n{said[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _ours(trace: Path) -> dict[str, Any]:
    """Return uprof's figures of a trace."""
    from unified_prof.cli.app import app
    from unified_prof.explain.api import open_analyses

    with tempfile.TemporaryDirectory() as folder:
        app(["import", str(trace), "-o", folder, "--quiet"], standalone_mode=False)
        with open_analyses(folder) as (analysis,):
            kernels = analysis.statistics("kernel")
            available = analysis.summary.available

            def rows(by: str) -> list[Any]:
                try:
                    return list(analysis.breakdown(by).rows)
                except Exception:
                    return []

            return {
                "launch": [
                    {"name": row.name, "count": row.count, "calls_ns": row.total_ns} | row.extra
                    for row in rows("launch")
                ],
                "queue": {
                    row.name.rpartition(" ")[2]: {
                        "longest": row.extra["longest"],
                        "window_ns": row.extra["window_ns"],
                        "empty_ns": row.extra["empty_ns"],
                        "area": (row.extra["mean_length"] or 0) * row.extra["window_ns"],
                    }
                    for row in rows("queue")
                },
                "copies": {
                    one.name: {
                        "bytes": float(
                            (one.value[:-1] * (one.time_ns[1:] - one.time_ns[:-1])).sum()
                        )
                        / 1e9,
                        "peak": float(one.value.max()),
                    }
                    for one in analysis.counter_series()
                    if one.unit == "B/s"
                },
                "annotation": {
                    row.name: row.extra.get("window_ns")
                    for row in (rows("annotation") if "annotation" in available else [])
                    if row.detail is None
                },
                "kernel": {
                    row.name: [
                        row.total_ns,
                        kernels[row.name, row.kind]["min_ns"],
                        kernels[row.name, row.kind]["max_ns"],
                        kernels[row.name, row.kind]["stddev_ns"],
                    ]
                    for row in rows("kernel")
                    if row.kind == "kernel"
                },
                "sequence": [
                    [row.name, row.detail, row.count, row.total_ns, row.extra["host_ns"]]
                    for row in rows("sequence")
                ],
                "devices": [
                    {
                        "idle_time": one.idle_ns,
                        "compute_time": one.compute_ns,
                        "kernel_time": one.window_ns,
                        "communication": one.communication_ns,
                        "overlap": one.overlap_ns,
                    }
                    for one in analysis.summary.devices
                ],
            }


def _verdicts(
    ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]
) -> Iterable[Verdict]:
    yield _launches(ours, theirs, facts)
    yield _queues(ours, theirs, facts)
    yield _copies(ours, theirs, facts)
    yield _annotations(ours, theirs)
    yield _kernels(ours, theirs, facts)
    yield _sequences(ours, theirs, facts)
    yield _times(ours, theirs, facts)
    yield _overlap(ours, theirs)


def _failed(theirs: Any) -> str:
    return f"HTA fails: {theirs['error']}" if isinstance(theirs, dict) and "error" in theirs else ""


def _launches(ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]) -> Verdict:
    name = "kernel launch statistics"
    if failed := _failed(theirs["launch"]):
        return Verdict(name, 0, reason=failed)
    known = [row for row in ours["launch"] if row["name"] in _HTA_LAUNCHES]
    found = {key: sum(row[key] for row in known) for key in theirs["launch"]}
    differing = _differing(found, theirs["launch"])
    others = sorted(facts["calls"] & {row["name"] for row in ours["launch"]} - set(_HTA_LAUNCHES))
    reason = f"HTA leaves out {', '.join(others)}" if others else ""
    return Verdict(name, len(found) if known else 0, differing, "" if differing else reason)


def _queues(ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]) -> Verdict:
    name = "queue length"
    if failed := _failed(theirs["queue"]):
        return Verdict(name, 0, reason=failed)
    left_out = sorted({row["name"] for row in ours["launch"]} - {*_HTA_QUEUED})
    reason = f"HTA leaves out {', '.join(left_out)}" if left_out else ""
    pairs = {
        (stream, key): value for stream, one in ours["queue"].items() for key, value in one.items()
    }
    other = {
        (stream, key): value
        for stream, one in theirs["queue"].items()
        for key, value in one.items()
    }
    return Verdict(name, len(pairs), _differing(pairs, other), reason)


_ENGINE = "autograd::engine::evaluate_function: "
_SHALLOW = "HTA counts the outermost calls only"
_STREAMED = "HTA takes host operations with a stream, such as Triton's, for kernels"
_KINDS = {
    "memcpy host to device": "Memcpy HtoD",
    "memcpy device to host": "Memcpy DtoH",
    "memcpy device to device": "Memcpy DtoD",
    "MEMSET": "Memset",
}


def _copies(ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]) -> Verdict:
    name = "memory bandwidth"
    if failed := _failed(theirs["copies"]):
        return Verdict(name, 0, reason=failed)
    found = {
        (_KINDS.get(kind, kind), key): value
        for kind, one in ours["copies"].items()
        for key, value in one.items()
    }
    other = {
        (kind, key): value
        for kind, one in theirs["copies"].items()
        for key, value in one.items()
        if one["bytes"]  # no bandwidth was recorded for the others
    }
    reason = "HTA counts copies of zero duration as 1 us" if facts["instant"] else ""
    return Verdict(name, len(found), _differing(found, other, relative=1e-6), reason)


def _annotations(ours: dict[str, Any], theirs: dict[str, Any]) -> Verdict:
    name = "GPU annotations"
    if failed := _failed(theirs["annotation"]):
        return Verdict(name, 0, reason=failed)
    found = {key: value for key, value in ours["annotation"].items() if value is not None}
    differing = _differing(found, theirs["annotation"])
    # HTA counts overlapping ranges of one name twice, so uprof's figures can only be lower.
    reason = ""
    if differing and all(
        value <= theirs["annotation"].get(key, -1) for key, value in found.items()
    ):
        reason = "HTA counts overlapping ranges of one name twice"
    return Verdict(name, len(found), differing, reason)


def _kernels(ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]) -> Verdict:
    name = "kernels by name"
    if failed := _failed(theirs["kernel"]):
        return Verdict(name, 0, reason=failed)
    found = {
        (kernel, number): value
        for kernel, values in ours["kernel"].items()
        for number, value in enumerate(values)
        if value is not None
    }
    other = {
        (kernel, number): value
        for kernel, values in theirs["kernel"].items()
        for number, value in enumerate(values)
    }
    other = {key: value for key, value in other.items() if key in found}
    reason = _STREAMED if facts["streamed"] else ""
    return Verdict(name, len(found), _differing(found, other, relative=1e-6), reason)


def _sequences(ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]) -> Verdict:
    """Compare the kernel sequences that HTA finds; it counts the outermost calls of a name only."""
    name = "frequent kernel sequences"
    mine: dict[Any, tuple[int, ...]] = {}
    for operation, sequence, *sums in ours["sequence"]:
        key = operation, _of_one_name(_expanded(sequence))
        mine[key] = tuple(map(sum, zip(mine.get(key, (0, 0, 0)), sums, strict=True)))
    compared, differing, reasons = 0, [], []
    for operation, patterns in theirs["sequence"].items():
        if failed := _failed(patterns):
            reasons.append(failed)
            continue
        found: dict[Any, tuple[int, ...]] = {}
        timed: dict[Any, bool] = {}
        for pattern, *sums in patterns:
            called, *kernels = pattern.split("|")
            by_engine = called.startswith(_ENGINE)
            called = called.removeprefix(_ENGINE)
            work = [one for one in kernels if not one.endswith((" Wait Event", " Sync"))]
            if called != operation or len(work) < 3:
                continue
            key = called, _of_one_name(work)
            if by_engine and key not in mine:
                reasons.append(
                    "HTA uses the range of the autograd engine, which has more than the operation"
                )
                continue
            found[key] = tuple(map(sum, zip(found.get(key, (0, 0, 0)), sums, strict=True)))
            # HTA takes stream waits for kernels.
            timed[key] = timed.get(key, True) and len(work) == len(kernels)
        for key, (count, time, _) in found.items():
            compared += 1
            if key not in mine or mine[key][0] < count:
                differing.append(f"{operation}: {count} of {len(key[1])} kernels, uprof has none")
            elif mine[key][0] > count:
                reasons.append(_SHALLOW)
            elif timed[key] and abs(mine[key][1] - time) > 2 * count:
                differing.append(f"{operation}: {mine[key][1]} ns, HTA {time} ns")
        if not found:
            by_hip = any(one.startswith("hip") for one in facts["calls"])
            reasons.append("HTA does not join HIP launches" if by_hip else _SHALLOW)
    return Verdict(
        name, compared, tuple(differing), "" if differing else "; ".join(sorted({*reasons}))
    )


def _expanded(sequence: str) -> list[str]:
    found: list[str] = []
    for one in sequence.split(" → "):
        times = re.search(r" x(\d+)$", one)
        found += [one[: times.start()]] * int(times[1]) if times else [one]
    return found


def _of_one_name(kernels: Iterable[str]) -> tuple[str, ...]:
    """Return the names of kernels, with common names for copies and collectives."""
    return tuple(
        "copy"
        if one.lower().startswith("mem")
        else "collective"
        if one.startswith("nccl") or re.search(r"__.*_\d+_\d+$", one)
        else one
        for one in kernels
    )


def _times(ours: dict[str, Any], theirs: dict[str, Any], facts: dict[str, Any]) -> Verdict:
    name = "idle, compute, span"
    if failed := _failed(theirs["time"]):
        return Verdict(name, 0, reason=failed)
    if len(ours["devices"]) != 1:
        return Verdict(name, 0, reason="HTA does not distinguish devices")
    found = {key: ours["devices"][0][key] for key in ("idle_time", "compute_time", "kernel_time")}
    differing = _differing(found, {key: theirs["time"][key] for key in found})
    reason = "HTA counts synchronizations as busy" if facts["syncs"] else ""
    reason = reason or (_STREAMED if facts["streamed"] else "")
    return Verdict(name, len(found), differing, reason)


def _overlap(ours: dict[str, Any], theirs: dict[str, Any]) -> Verdict:
    name = "overlap of communication"
    if failed := _failed(theirs["overlap"]):
        return Verdict(name, 0, reason=failed)
    devices = [one for one in ours["devices"] if one["communication"]]
    if len(devices) != 1:
        return Verdict(name, 0, reason="no communication")
    mine = 100 * devices[0]["overlap"] / devices[0]["communication"]
    near = abs(mine - theirs["overlap"]) <= 0.0051
    return Verdict(name, 1, () if near else (f"{mine:.3f}, HTA {theirs['overlap']}",))


def _differing(
    ours: dict[Any, Any], theirs: dict[Any, Any], *, relative: float = 0.0
) -> tuple[str, ...]:
    """Return the figures that differ; times may differ by rounding to nanoseconds."""
    found = []
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        one, other = ours.get(key), theirs.get(key)
        if one is None or other is None or abs(one - other) > max(2, relative * abs(other)):
            found.append(f"{key}: {one}, HTA {other}")
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
