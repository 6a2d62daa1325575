"""Traces of other accelerators than NVIDIA and AMD GPUs, and of builds without Kineto."""

import json
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import RowSink, complete, copy, decode, decode_events, operation
from unified_prof.recording.names import SYNCHRONIZES


def decode_categories(tmp_path: Path, launches: str, kernels: str, copies: str) -> RowSink:
    """Decode a trace with two launches, a kernel and a copy, whose events have these categories."""
    number = {"correlation": 4, "External id": 1}
    return decode_events(
        tmp_path,
        operation("aten::mm", 0, 50, args={"External id": 1}),
        complete(launches, "launchKernel", 5, 10, args=number),
        complete(kernels, "gemm", 30, 40, pid=0, tid=7, args=number | {"device": 0}),
        complete(launches, "memcpyAsync", 20, 10, args={"correlation": 5}),
        copy(80, 20, 5, "Memcpy DtoH (Device -> Pinned)", 64) | {"cat": copies},
    )


@pytest.mark.parametrize(
    ("launches", "kernels", "copies"),
    [
        ("cuda_runtime", "kernel", "gpu_memcpy"),
        ("privateuse1_runtime", "privateuse1_kernel", "privateuse1_memcpy"),
        ("musa_driver", "kernel", "gpu_memcpy"),
        ("gcu_runtime", "kernel", "GCU_MEMCPY"),
        ("xpu_driver", "kernel", "gpu_memcpy"),
        ("privateuse1_runtime", "hpu_op", "gpu_memcpy"),
        ("mtia_runtime", "mtia_ccp_events", "gpu_memcpy"),
    ],
)
def test_device_work_of_any_accelerator_is_read(
    launches: str, kernels: str, copies: str, tmp_path: Path
) -> None:
    """The categories are those of `ActivityType` in Kineto and in forks of it for other devices.

    Sources: pytorch/kineto ActivityType.cpp; fwenguang/kineto (`privateuse1_kernel`);
    MooreThreads/kineto (`musa_runtime`); Enflame's `gcu_runtime`. `deviceTypeFromActivity` in
    torch's kineto_shim.cpp counts `hpu_op` and `mtia_ccp_events` as time of the device.
    """
    sink = decode_categories(tmp_path, launches, kernels, copies)
    assert sink.rows("TASK", "startNs", "endNs", "connectionId") == [
        (30_000, 70_000, 4),
        (80_000, 100_000, 5),
    ]
    assert sink.rows("COMPUTE_TASK_INFO", "opType", texts=["opType"]) == [("aten::mm",)]
    assert not sink.anomalies


@pytest.mark.parametrize("category", ["cuda_sync", "xpu_sync", "musa_sync"])
def test_synchronizations_of_any_accelerator_are_read(category: str, tmp_path: Path) -> None:
    args = {"device": 0, "stream": 7, "correlation": 3}
    sync = complete(category, "Stream Sync", 1, 2, pid=0, tid=7, args=args)
    sink = decode_events(tmp_path, operation("aten::mm", 0, 9), sync)
    assert sink.rows("UPROF_GPU_SYNCS", "startNs", "endNs") == [(1_000, 3_000)]


def test_calls_of_intel_gpus_that_wait_for_the_device_are_known() -> None:
    """Names of the Unified Runtime of oneAPI, which Kineto records as `xpu_runtime`."""
    waiting = ("urQueueFinish", "urEventWait", "zeEventHostSynchronize")
    assert all(SYNCHRONIZES(name) for name in waiting)
    assert not SYNCHRONIZES("urEnqueueKernelLaunch")
    assert not SYNCHRONIZES("urEnqueueEventsWaitWithBarrier")


def test_operations_of_a_build_without_kineto_are_read(tmp_path: Path) -> None:
    """Without Kineto, torch writes a list of events without categories (pytorch/pytorch#95460).

    Times of devices nest there: they are not those of kernels.
    """
    span = {"ph": "X", "tid": 1, "pid": "CPU functions", "args": {}}
    events = [
        {"name": "ProfilerStep#3", "ts": 5, "dur": 90} | span,
        {"name": "aten::linear", "ts": 10, "dur": 50.5} | span,
        {"name": "aten::addmm", "ts": 20, "dur": 30} | span,
        {"name": "aten::addmm", "ts": 25, "dur": 9} | span | {"pid": "CUDA functions", "tid": 0},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(events))
    sink = decode(trace)
    operations = sink.rows("PYTORCH_API", "name", "startNs", "endNs", texts=["name"])
    assert operations == [("aten::linear", 10_000, 60_500), ("aten::addmm", 20_000, 50_000)]
    assert len(sink.tables["STEP_TIME"]) == 1
    assert "TASK" not in sink.tables
    assert sink.anomalies == {"unknown_category": 1}
