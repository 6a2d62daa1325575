"""Figures compared with HolisticTraceAnalysis 0.5.0; HTA_PYTHON is the Python that has it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare_hta.py"
ANALYSES = (
    "kernel launch statistics",
    "queue length",
    "memory bandwidth",
    "GPU annotations",
    "kernels by name",
    "frequent kernel sequences",
    "idle, compute, span",
)


def trace(path: Path) -> Path:
    """Write a trace of two streams with operations of three kernels, copies and annotations."""
    events: list[dict[str, Any]] = []

    def event(category: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> None:
        head = {"ph": "X", "cat": category, "name": name, "pid": 77 if tid > 100 else 0}
        events.append(head | {"tid": tid, "ts": ts, "dur": dur, "args": args})

    done = {7: 0.0, 20: 0.0}
    for number in range(40):
        begin = 1000.0 + 100 * number
        event("cpu_op", "aten::layer_norm", begin, 99, 101, **{"External id": number + 1})
        for part in range(3):
            correlation = 1000 + 3 * number + part
            called = begin + 20 * part + 5
            stream = 20 if number % 4 == 3 else 7
            start = max(called + 6.25, done[stream])
            lasted = 2.5 + 9 * (number % 7) + 200 * (number == 11)
            done[stream] = start + lasted
            about: dict[str, Any] = {"device": 0, "stream": stream, "context": 1}
            about["correlation"] = correlation
            took = 52.5 if number == 5 and part == 2 else 4.125
            if part == 1 and number % 5 == 0:
                event("cuda_runtime", "cudaMemcpyAsync", called, took, 101, correlation=correlation)
                about |= {"bytes": 4096, "memory bandwidth (GB/s)": 4.096 / lasted}
                event(
                    "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, lasted, stream, **about
                )
            else:
                launch = "cudaLaunchKernel"
                event("cuda_runtime", launch, called, took, 101, correlation=correlation)
                event("kernel", f"kernel_{part}", start, lasted, stream, **about)
    for number in range(3):
        name = f"part {number % 2}"
        begin = 1100.0 + 1000 * number
        event("gpu_user_annotation", name, begin, 500.5, 7)
    document = {"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 0}}
    document["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100"}]
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def compare(*traces: Path) -> str:
    if "HTA_PYTHON" not in os.environ:
        pytest.skip("HTA_PYTHON does not name an environment with HolisticTraceAnalysis")
    run = python(SCRIPT, *traces)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.clients
def test_all_figures_of_a_trace_are_equal(tmp_path: Path) -> None:
    output = compare(trace(tmp_path / "trace.json"))
    for analysis in ANALYSES:
        assert f"  {analysis}: equal" in output, output


@pytest.mark.clients
def test_figures_of_real_traces_are_equal_or_differ_for_a_known_reason(shared: Path) -> None:
    names = ("timeline_analysis__sampled_rank-0", "h100_vit", "b200_eager")
    output = compare(*(shared / "samples" / "kineto" / f"{name}.json.gz" for name in names))
    assert "DIFFERS" not in output


def test_missing_hta_is_reported() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HTA_PYTHON"}
    run = subprocess.run(
        [sys.executable, SCRIPT, "x.json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 1
    assert "HolisticTraceAnalysis==0.5.0" in run.stderr
