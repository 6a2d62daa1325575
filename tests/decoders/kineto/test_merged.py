"""Merged traces of several processes with equal correlation ids."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.decoders.kineto.builders import (
    Event,
    RowSink,
    call,
    copy,
    decode_events,
    kernel,
    operation,
)
from unified_prof.decoders.gpu import rows as r
from unified_prof.decoders.kineto import merged
from unified_prof.decoders.kineto.merged import label_of

FIRST, SECOND = 4001, 4002


def rank_events(
    pid: object, device: int, begin: int, *, device_pid: object = None, launches: int = 40
) -> list[Event]:
    """Return the events of one rank; each launch is in an operation named after the pid."""
    place = {"pid": device if device_pid is None else device_pid, "tid": 7}
    events = []
    for number in range(launches):
        at = begin + 100 * number
        queued = 3000 if number % 4 else 20  # The device usually lags behind the host.
        same = {"External id": number + 1}
        events += [
            operation(f"aten::op_of_{pid}", at, 50, pid=pid, tid=1, args=same),
            call(at + 10, 5, number + 1, pid=pid, tid=1)
            | {"args": same | {"correlation": number + 1}},
            kernel(at + queued, 2, number + 1, args=same | {"device": device}) | place,
        ]
    return events


def shuffled(events: Iterable[Event]) -> list[Event]:
    mixed = list(events)
    random.Random(1).shuffle(mixed)
    return mixed


def device_process_operation(sink: RowSink) -> set[tuple[Any, ...]]:
    """Return (device, process, operation) of all tasks."""
    operations = dict(sink.rows("COMPUTE_TASK_INFO", "globalTaskId", "opType", texts=["opType"]))
    return {
        (device, process, operations[task])
        for task, device, process in sink.rows("TASK", "globalTaskId", "deviceId", "globalPid")
    }


EXPECTED = {(0, FIRST, f"aten::op_of_{FIRST}"), (1, SECOND, f"aten::op_of_{SECOND}")}


@pytest.mark.parametrize("skew", [0, 37, 500, 1000, 100_000])
def test_ranks_with_equal_work_keep_their_devices(skew: int, tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path, *shuffled([*rank_events(FIRST, 0, 0), *rank_events(SECOND, 1, skew, launches=41)])
    )
    assert device_process_operation(sink) == EXPECTED
    assert sink.anomalies == {"shared_correlations": 40}
    connections = sink.rows("CANN_API", "connectionId")
    assert len(connections) == len(set(connections)) == 81
    assert set(sink.rows("TASK", "connectionId")) == set(connections)


def test_processes_take_devices_in_order_if_times_do_not_decide(tmp_path: Path) -> None:
    events = [*rank_events(SECOND, 1, 7), *rank_events(FIRST, 0, 0)]
    slow = [
        event | {"ts": event["ts"] + 5000} if event["cat"] == "kernel" else event
        for event in events
    ]
    sink = decode_events(tmp_path, *slow)
    assert device_process_operation(sink) == EXPECTED
    assert sink.anomalies == {"shared_correlations": 40, "unsure_process": 1}


@pytest.mark.parametrize("swapped", [False, True])
def test_labels_of_merged_traces_keep_processes_apart(swapped: bool, tmp_path: Path) -> None:
    """SGLang labels every pid, of hosts and devices, as in `[TP00] 4001`."""
    parts = [
        rank_events(f"[TP{rank:02}] {pid}", 0, 0, device_pid=f"[TP{rank:02}] 0")
        for rank, pid in enumerate((FIRST, SECOND))
    ]
    sink = decode_events(
        tmp_path,
        *(event for part in (parts[::-1] if swapped else parts) for event in part),
        distributedInfo={"rank": 0},
    )
    found = device_process_operation(sink)
    assert {(device, name) for device, _, name in found} == {
        (100 if swapped else 0, f"aten::op_of_[TP00] {FIRST}"),
        (0 if swapped else 100, f"aten::op_of_[TP01] {SECOND}"),
    }
    assert len({process for _, process, _ in found}) == 2
    assert sink.anomalies["shared_correlations"] == 40
    assert sink.rows("RANK_DEVICE_MAP", "rankId", "deviceId") == [(-1, 0), (-1, 100)]


def test_memory_of_a_relabeled_device_moves_with_it(tmp_path: Path) -> None:
    def allocation(pid: str) -> Event:
        args = {"Bytes": 8, "Addr": 1, "Device Id": 0, "Device Type": 1}
        return {"ph": "i", "name": "[memory]", "pid": pid, "tid": 1, "ts": 5, "args": args}

    events = [
        event
        for rank in ("[TP00]", "[TP01]")
        for event in (
            kernel(10, 1, 3, args={"device": 0}) | {"pid": f"{rank} 0"},
            call(1, 1, 3, pid=f"{rank} 77"),
            allocation(f"{rank} 77"),
        )
    ]
    sink = decode_events(tmp_path, *events)
    assert sorted(sink.rows("MEMORY_RECORD", "deviceId")) == [(0,), (100,)]
    assert len(sink.rows("OP_MEMORY", "deviceId")) == 2
    assert "allocation_without_release" not in sink.anomalies


def test_processes_sharing_a_device_are_separated_by_kind_and_time(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        call(10, 5, 1, pid=FIRST),
        call(20, 5, 1, pid=SECOND) | {"name": "cudaMemcpyAsync"},
        call(100, 5, 2, pid=SECOND),
        call(500, 5, 2, pid=FIRST),
        kernel(40, 1, 1),
        copy(50, 1, 1, "Memcpy HtoD (Pinned -> Device)", 64),
        kernel(120, 1, 2),
    )
    assert sink.rows("TASK", "startNs", "globalPid") == [
        (40_000, FIRST),
        (50_000, SECOND),
        (120_000, SECOND),
    ]


@pytest.mark.parametrize("label", ["", "[TP00] "])
def test_unique_correlation_ids_are_unchanged(label: str, tmp_path: Path) -> None:
    device = {"pid": f"{label}0" if label else 0}
    sink = decode_events(
        tmp_path,
        call(10, 5, 1, pid=f"{label}{FIRST}" if label else FIRST),
        call(20, 5, 2, pid=f"{label}{SECOND}" if label else SECOND),
        kernel(40, 1, 1) | device,
        kernel(50, 1, 2) | device,
    )
    calls = sink.rows("CANN_API", "connectionId", "globalTid")
    assert [number for number, _ in calls] == [1, 2]
    assert sink.rows("TASK", "connectionId", "globalPid") == [(n, tid >> 32) for n, tid in calls]
    assert set(sink.anomalies) == ({"process_id_replaced"} if label else set())


def test_task_is_not_assigned_to_a_process_of_another_device(tmp_path: Path) -> None:
    """The launch precedes the recording, and another rank uses the same id."""
    events = [*rank_events(FIRST, 0, 0), *rank_events(SECOND, 1, 700)]
    lost = [
        event
        for event in events
        if not (event["cat"] == "cuda_runtime" and event["pid"] == SECOND and event["ts"] < 1500)
    ]
    sink = decode_events(tmp_path, *lost)
    missing = len(events) - len(lost)
    assert missing > 5
    assert sink.anomalies["task_without_launch"] == missing
    assert {name for device, _, name in device_process_operation(sink) if device == 1} == {
        f"aten::op_of_{SECOND}",
        "N/A",
    }


@pytest.mark.parametrize(
    ("pid", "label"),
    [
        ("[TP01-PP00] 4242", "[TP01-PP00] "),
        ("4242 (rank 3)", " (rank 3)"),
        ("12_host", "_host"),
        ("rank 0: 7", "rank 0: "),
        ("rank0", "rank0"),
        ("", ""),
    ],
)
def test_label_is_the_pid_without_its_number(pid: str, label: str) -> None:
    assert label_of(pid) == label


@pytest.mark.parametrize(
    ("makes", "kinds"),
    [
        (merged._ANY, [r.KERNEL, r.COPY, r.SET, r.COMMUNICATION, r.GRAPH]),
        (merged._COPY, [r.COPY, r.GRAPH]),
        (merged._SET, [r.SET, r.GRAPH]),
        (merged._KERNEL, [r.KERNEL, r.COMMUNICATION, r.GRAPH]),
    ],
)
def test_call_can_have_launched_later_tasks_of_its_kind(makes: int, kinds: list[int]) -> None:
    calls = np.zeros(1, merged._MADE)
    calls["correlation"], calls["start"], calls["makes"] = 7, 100, makes
    tasks = np.zeros(5, r.GPU_TASK)
    tasks["correlation"], tasks["kind"] = 7, range(5)
    for correlation, start, expected in ((7, 100, kinds), (7, 99, []), (6, 100, []), (8, 100, [])):
        tasks["correlation"], tasks["start"] = correlation, start
        assert np.flatnonzero(merged._possible(calls, tasks)).tolist() == expected
    assert not merged._possible(calls[:0], tasks).any()


@pytest.mark.parametrize("launches", [0, 4])
def test_tasks_without_correlation_id_keep_their_label(launches: int, tmp_path: Path) -> None:
    lost = kernel(50, 5, 0, name="lost") | {"pid": "[TP01] 0", "tid": 7}
    events = rank_events("[TP00] 4001", 0, 100, device_pid="[TP00] 0", launches=launches)
    rows = decode_events(tmp_path, *events, lost)
    assert len(rows.rows("TASK")) == launches + 1
