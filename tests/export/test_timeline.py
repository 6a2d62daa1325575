import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import training_step
from tests.export.builders import NO_CONTEXT, DatabaseBuilder
from tests.export.conftest import Export
from unified_prof.export.mindstudio import registry, timeline_events

Event = dict[str, Any]
PROCESS = 77


def _read(folder: Path, kind: str = "msprof") -> list[Event]:
    (path,) = folder.glob(f"{kind}_2*.json")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("[{")
    found: list[Event] = json.loads(text)
    return found


def _of(found: list[Event], layer: tuple[int, str] | int, phase: str) -> list[Event]:
    place = layer if isinstance(layer, int) else layer[0]
    return [one for one in found if one["pid"] >> 5 & 31 == place and one["ph"] == phase]


def _names(found: list[Event], layer: tuple[int, str] | int) -> dict[tuple[int, int], str]:
    return {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in _of(found, layer, "M")
        if one["name"] == "thread_name"
    }


def test_calls_are_linked_to_their_tasks(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        acl = database.call(0, 9_000, "aclnnAdd", 20000)
        node = database.call(1_000, 8_000, "launch", 10000)
        database.call(2_000, 7_500, "KernelLaunch", 5000)
        copy = database.call(10_000, 11_000, "aclrtMemcpyAsync", 20000)
        record = database.call(12_000, 13_000, "aclrtRecordEvent", 20000)
        database.call(14_000, 15_000, "odd", 7)
        database.op(20_000, 26_840, "add_1", connection=node, stream=3)
        database.task(30_000, 31_000, "MEMCPY_ASYNC", connection=copy)
        database.task(40_000, 41_000, "EVENT_RECORD", connection=record)
        database.task(50_000, 51_000, "EVENT_WAIT", connection=acl)
        database.task(60_000, 61_000, "AI_CORE", connection=-1)
    export(database.path)
    found = _read(out)
    calls = _of(found, timeline_events.CALLS, "X")
    assert [one["name"] for one in calls] == [
        *("AscendCL@aclnnAdd", "Node@launch", "Runtime@KernelLaunch"),
        *("AscendCL@aclrtMemcpyAsync", "AscendCL@aclrtRecordEvent", "Api@odd"),
    ]
    assert calls[0]["args"] == {
        "Thread Id": 78,
        "level": "acl",
        "id": "aclnnAdd",
        "connection_id": acl,
    }
    assert calls[1]["args"]["Mode"] == "launch"
    assert (calls[2]["ts"], calls[2]["dur"]) == ("1767225600000002.000", 5.5)
    assert calls[0]["pid"] == PROCESS << 10 | 7 << 5 | 31
    begins = {one["id"] for one in _of(found, timeline_events.CALLS, "s")}
    ends = {one["id"]: one for one in _of(found, timeline_events.HARDWARE, "f")}
    assert begins == set(ends) == {str(one << 32) for one in (node, copy, record)}
    arrow = ends[str(node << 32)]
    assert (arrow["bp"], arrow["cat"], arrow["tid"]) == ("e", "HostToDevice", 3)
    assert arrow["name"] == f"HostToDevice{node << 32}"
    tasks = _of(found, timeline_events.HARDWARE, "X")
    assert [one["name"] for one in tasks] == [
        *("add_1", "MEMCPY_ASYNC", "EVENT_RECORD", "EVENT_WAIT", "AI_CORE")
    ]
    assert tasks[0]["dur"] == 6.84
    assert tasks[0]["args"] == {
        "Model Id": NO_CONTEXT,
        "Task Type": "AI_CORE",
        "Physic Stream Id": 3,
        "Task Id": 0,
        "Subtask Id": NO_CONTEXT,
        "connection_id": node,
    }
    assert tasks[4]["args"]["connection_id"] == 2**64 - 1
    # The database does not contain the device's name of a copy.
    assert "Task Type" not in tasks[1]["args"]


def test_mix_kernels_are_shown_by_their_contexts(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        database.task(0, 100, "KERNEL_MIX_AIC", number=5, connection=9)
        inner = database.task(10, 90, "KERNEL_MIX_AIC", number=5, connection=9, context=0)
        database.kernel(inner, "mix", core="MIX_AIC")
        database.task(200, 300, "KERNEL_AICORE", number=5, connection=10)
    export(database.path)
    tasks = _of(_read(out), timeline_events.HARDWARE, "X")
    assert [(one["name"], one["args"]["Subtask Id"]) for one in tasks] == [
        ("mix", 0),
        ("KERNEL_AICORE", NO_CONTEXT),
    ]


def test_copies_have_size_bandwidth_and_direction(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        for start, size, kind in ((0, 4096, 1), (100, 64, 65535), (200, 64, 0)):
            copy = database.task(start, start + (0 if kind == 0 else 64), "MEMCPY_ASYNC")
            values = {"globalTaskId": copy, "size": size, "memcpyOperation": kind}
            database.row("MEMCPY_INFO", values, texts=())
        database.task(300, 364, "MEMCPY_ASYNC")
    export(database.path)
    found = [one["args"] for one in _of(_read(out), timeline_events.HARDWARE, "X")]
    keys = ("size(B)", "bandwidth(GB/s)", "operation")
    assert [tuple(one[key] for key in keys) for one in found] == [
        (4096, 64.0, "host to device"),
        (64, 1.0, "other"),
        (64, 0.0, "host to host"),
        (0, 0.0, "other"),
    ]


def test_simt_kernels_have_grid_dimensions(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        database.op(0, 10, kind="KERNEL_SIMT")
    export(database.path)
    (one,) = _of(_read(out), timeline_events.HARDWARE, "X")
    assert (one["args"]["Grid Dim"], one["args"]["Block Dim"]) == ("N/A", "N/A")


def _add_communication_task(
    database: DatabaseBuilder, task: int, operator: int, plane: int, group: str = "group"
) -> None:
    values = {
        "name": "op", "globalTaskId": task, "taskType": "Memcpy", "planeId": plane,
        "groupName": group, "notifyId": 5, "rdmaType": 65535, "srcRank": 0, "dstRank": 1,
        "transportType": 0, "size": 8, "dataType": 3, "linkType": 77, "opId": operator,
        "isMaster": 1, "bandwidth": 18_370_287_316.0,
    }  # fmt: skip
    database.row("COMMUNICATION_TASK_INFO", values, texts=("name", "taskType", "groupName"))


def test_communication_groups_and_planes_have_threads(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        for device, planes in ((1, (0, 2)), (0, (1,)), (0, (NO_CONTEXT,))):
            operator = database.collective(0, 100, device=device)
            for plane in planes:
                task = database.task(10, 20, "MEMCPY_ASYNC", device=device, model=4)
                _add_communication_task(database, task, operator, plane)
        values = {"globalTaskId": 999, "planeId": 0, "groupName": "x"}
        database.row("COMMUNICATION_TASK_INFO", values, ("groupName",))
    exported = export(database.path)
    found = _read(out)
    pids = [PROCESS << 10 | 16 << 5 | device for device in (0, 1)]
    title = "Group group Communication"
    assert _names(found, timeline_events.COMMUNICATION) == {
        (pids[0], 0): title,
        (pids[0], 1): "Plane 0",
        (pids[0], 2): "Plane 1",
        (pids[1], 3): title,
        (pids[1], 4): "Plane 0",
        (pids[1], 6): "Plane 2",
    }
    shown = _of(found, timeline_events.COMMUNICATION, "X")
    places = [(one["pid"] & 31, one["tid"]) for one in shown]
    assert places == [(1, 4), (1, 6), (0, 2), (1, 3), (0, 0), (0, 0)]
    assert shown[0]["args"] == {
        "notify_id": "5", "stream id": 2, "task id": 0, "context id": NO_CONTEXT,
        "task type": "Memcpy", "src rank": 0, "dst rank": 1, "transport type": "SDMA",
        "size(Byte)": 8, "data type": "FP16", "link type": "77",
        "bandwidth(GB/s)": 18.370287316, "model id": 4,
    }  # fmt: skip
    assert shown[3]["args"] == {
        "rank_size": 2, "connection_id": 5000, "model id": 4, "data_type": "FP16",
        "alg_type": "MESH-RING", "count": 1024, "relay": "no", "retry": "yes",
    }  # fmt: skip
    assert len(_of(found, timeline_events.COMMUNICATION, "f")) == 3
    assert {one.name: one.count for one in exported.anomalies} == {"collective_without_task": 1}


def test_collective_without_tasks_has_a_thread(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        database.collective(0, 100)
    export(database.path)
    (one,) = _of(_read(out), timeline_events.COMMUNICATION, "X")
    assert (one["tid"], one["args"]["model id"]) == (0, NO_CONTEXT)


def test_overlap_analysis_is_exported(database: DatabaseBuilder, out: Path, export: Export) -> None:
    with database:
        for number, kind in enumerate((0, 3, 4)):
            values = {"id": number, "deviceId": 2, "startNs": 1_000, "endNs": 1_500, "type": kind}
            database.row("OVERLAP_ANALYSIS", values, texts=())
    export(database.path)
    found = _read(out)
    assert [(one["name"], one["tid"]) for one in _of(found, timeline_events.OVERLAP, "X")] == [
        ("Computing", 0),
        ("Free", 3),
    ]
    assert len(_names(found, timeline_events.OVERLAP)) == 4


def test_marks_appear_on_host_and_device(
    database: DatabaseBuilder, out: Path, export: Export
) -> None:
    with database:
        database.mark(0, 500, 'say "步"', event=1)
        database.mark(600, 600, "old", connection=4_000_000_000, category=3, domain="")
        database.task(1_000, 9_800, "MsTx", connection=4_000_000_001, stream=7)
        database.task(2_000, 2_020, "MsTx", connection=4_000_000_009, stream=7)
    exported = export(database.path)
    for kind in ("msprof", "msprof_tx"):
        found = _read(out, kind)
        mark, old = _of(found, timeline_events.PROGRAM, "X")
        assert (mark["name"], mark["dur"]) == ('say "步"', 0.5)
        assert mark["args"] == {"event_type": "push/pop", "domain": "default"}
        assert old["args"] == {"Category": "3", "event_type": "marker"}
        assert [one["id"] for one in _of(found, timeline_events.PROGRAM, "s")] == ["4000000001"]
        reached = _of(found, timeline_events.HARDWARE, "X")
        assert [one["name"] for one in reached] == ['say "步"', "N/A"]
        assert reached[0]["args"] == {"Physic Stream Id": 7, "Task Id": 0}
        ends = _of(found, timeline_events.HARDWARE, "f")
        assert ends[0]["name"] == "MsTx_4000000001"
        assert "process_name" not in {
            one["name"] for one in _of(found, timeline_events.PROGRAM, "M")
        }
    assert "name of the profiled program" in {one.what for one in exported.left_out}


def test_counters_are_exported(database: DatabaseBuilder, out: Path, export: Export) -> None:
    def row(table: str, *texts: str, **values: Any) -> None:
        database.row(table, {"timestampNs": 1_000, "deviceId": 0, **values}, texts)

    with database:
        for _ in range(2):  # exporters sometimes write these twice
            row("AICORE_FREQ", freq=1800)
        row("HBM", "type", hbmId=3, type="read", bandwidth=5 << 20)
        row("NPU_MEM", "type", type="app", ddr=1024, hbm=2048)
        row(
            "PCIE",
            **{
                f"{way}{what}Avg": 2_000_000
                for way in ("tx", "rx")
                for what in ("Post", "Cpl", "Nonpost")
            },
            txNonpostLatencyAvg=1_500,
        )
        for name in ("die 0", "die 1"):
            row(
                "SIO",
                "name",
                name=name,
                **{
                    f"{way}{what}": 1 << 20
                    for way in ("rx", "tx")
                    for what in ("Req", "Rsp", "Snp", "Dat")
                },
            )
        row("ACC_PMU", accId=0, readBwLevel=1, writeBwLevel=9, readOstLevel=3, writeOstLevel=4)
        row("ACC_PMU", accId=1, readBwLevel=2, writeBwLevel=8, readOstLevel=3, writeOstLevel=4)
        for die in (-1, 0, 1):
            row("QOS", "eventName", eventName=f"QoS {min(die, 0)}", bandwidth=7 << 20, dieId=die)
        database.row("CPU_USAGE", {"timestampNs": 0, "cpuId": 12, "usage": 3.5}, ())
        database.row(
            "OSRT_API",
            {"startNs": 0, "endNs": 10, "globalTid": (77 << 32) | 5, "name": "open"},
            ("name",),
        )
        database.op(0, 10)
    export(database.path)
    found = _read(out)
    counted = {
        (one["pid"] >> 5 & 31, one["name"]): one["args"] for one in found if one["ph"] == "C"
    }
    assert Counter(one["ph"] for one in found)["C"] == 1 + 1 + 2 + 4 + 8 + 4 + 2 + 1
    assert counted == {
        (15, "AI Core Freq"): {"MHz": 1800},
        (24, "HBM 3/Read"): {"Read(MB/s)": 5.0},
        (17, "APP/DDR"): {"KB": 1.0},
        (17, "APP/HBM"): {"KB": 2.0},
        (23, "PCIe_cpl"): {"Tx": 2.0, "Rx": 2.0},
        (23, "PCIe_nonpost"): {"Tx": 2.0, "Rx": 2.0},
        (23, "PCIe_nonpost_latency"): {"Tx": 1.5},
        (23, "PCIe_post"): {"Tx": 2.0, "Rx": 2.0},
        **{
            (28, f"{what}_{way}"): {"die 0": 1.0, "die 1": 1.0}
            for way in ("rx", "tx") for what in ("req", "rsp", "snp", "dat")
        },
        (19, "read_bandwidth"): {"value": 2},
        (19, "write_bandwidth"): {"value": 9},
        (19, "read_ost"): {"value": 3},
        (19, "write_ost"): {"value": 4},
        (29, "QoS -1"): {"value": 7},
        (29, "QoS 0"): {"die 0": 7, "die 1": 7},
        (9, "CPU 12"): {"Usage(%)": 3.5},
    }  # fmt: skip
    (call,) = _of(found, timeline_events.SYSTEM_CALLS, "X")
    assert (call["name"], call["tid"], call["dur"]) == ("open", 5, 0.01)


def test_timeline_does_not_depend_on_the_block_size(
    database: DatabaseBuilder, out: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database:
        for number in range(7):
            database.op(number * 10, number * 10 + 5, stream=number)
            database.call(number, number + 1, "launch")
    export(database.path)
    whole = _read(out)
    for path in out.iterdir():
        path.unlink()
    monkeypatch.setattr(registry, "BLOCK_ROWS", 2)
    export(database.path)
    by_text = [
        Counter(json.dumps(one, sort_keys=True) for one in found) for found in (whole, _read(out))
    ]
    assert by_text[0] == by_text[1]


def test_process_ids_fit_into_32_bits(tmp_path: Path, out: Path, export: Export) -> None:
    """The largest process number of Linux does not fit beside layer and device."""
    with DatabaseBuilder(tmp_path / "d.db") as database:
        values = {
            "startNs": 0, "endNs": 1, "type": 5000, "globalTid": ((1 << 22) + 1) << 32,
            "connectionId": 1, "name": "x",
        }  # fmt: skip
        database.row("CANN_API", values, ("name",))
    export(database.path)
    assert {one["pid"] for one in _read(out)} == {1 << 10 | 7 << 5 | 31}


@given(st.lists(st.integers(0, 2**53), max_size=10))
def test_durations_are_parsed_back_exactly(durations: list[int]) -> None:
    texts = timeline_events.decimals(np.array(durations, np.int64))
    assert [float(one) for one in texts] == [one / 1000 for one in durations]
    assert all("." in one for one in texts)


def test_unknown_ids_of_a_task_are_null(tmp_path: Path, out: Path, export: Export) -> None:
    export(training_step(tmp_path / "msprof_1.db"))
    (task, *_) = _of(_read(out), timeline_events.HARDWARE, "X")
    assert [task["args"][name] for name in ("Model Id", "Task Id", "Subtask Id")] == [None] * 3
