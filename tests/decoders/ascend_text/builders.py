"""Writer of synthetic text exports; times are us since 1,000,000 us after 1970 began."""

import json
from pathlib import Path
from typing import Any

PID = 700
CANN, HARDWARE, COMMUNICATION, OVERLAP, FREQUENCY, GC = (
    PID << 10 | layer << 5 | device
    for layer, device in ((1, 31), (10, 0), (11, 0), (12, 0), (13, 0), (14, 0))
)
_NAMES = {
    PID: "Python",
    CANN: "CANN",
    HARDWARE: "Ascend Hardware",
    COMMUNICATION: "Communication",
    OVERLAP: "Overlap Analysis",
    FREQUENCY: "AI Core Freq",
    GC: "Python GC",
}
SECOND = 1_000_000_000


def at(us: float) -> str:
    return f"{1_000_000 + us:.3f}"


def ns(us: float) -> int:
    return SECOND + round(us * 1000)


def slice_(name: str, pid: int, tid: int, start: float, dur: float, **more: Any) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at(start), "dur": dur}
    return event | more


def operator(name: str, start: float, dur: float, tid: int = 1, **args: object) -> dict[str, Any]:
    shown = {"Sequence number": -1, "Fwd thread id": 0, **args}
    return slice_(name, PID, tid, start, dur, cat="cpu_op", args=shown)


def queued(side: str, name: str, start: float, dur: float, tid: int, number: int) -> dict[str, Any]:
    return slice_(name, PID, tid, start, dur, cat=side, args={"correlation_id": number})


def call(name: str, start: float, dur: float, tid: int, connection: int) -> dict[str, Any]:
    return slice_(name, CANN, tid, start, dur, args={"Thread Id": tid, "connection_id": connection})


def task(
    name: str, kind: str, start: float, dur: float, connection: int, number: int = 1, **args: Any
) -> dict[str, Any]:
    shown = {"Task Type": kind, "Physic Stream Id": 3, "Task Id": number, "Model Id": 4294967295,
             "Subtask Id": 4294967295, "connection_id": connection, **args}  # fmt: skip
    return slice_(name, HARDWARE, 3, start, dur, args=shown)


def names(*lanes: tuple[int, int, str]) -> list[dict[str, Any]]:
    shown = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in _NAMES.items()
    ]
    label = {"ph": "M", "name": "process_labels", "pid": HARDWARE, "tid": 0}
    shown.append(label | {"args": {"labels": "NPU 0"}})
    return shown + [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for pid, tid, name in lanes
    ]


def all_kinds() -> list[dict[str, Any]]:
    """Return an event of every kind."""
    return [
        operator("aten::mm", 10, 20, 1, **{"Input Dims": "2,3", "Input type": "float"}),
        operator("ProfilerStep#4", 1, 99),
        queued("enqueue", "Enqueue@k", 12, 3, 1, 5),
        queued("dequeue", "Dequeue@k", 20, 10, 2, 5),
        slice_("m.py(1): main", PID, 1, 5, 60, cat="python_function", args={"Python id": 1}),
        slice_("GC", GC, PID, 6, 1, cat="GC", args={}),
        call("AscendCL@aclnnMm", 21, 8, 2, 1),
        call("Node@launch", 22, 6, 2, 2),
        task("MatMul_0", "AI_CORE", 40, 10, 2),
        task("MEMCPY_ASYNC", "SDMA_SQE", 52, 2, 1, 2,
             **{"size(B)": 64, "operation": "host to device"}),
        task("Memcpy", "SDMA_SQE", 61, 3, 1, 7),
        slice_("hcom_allReduce__1", COMMUNICATION, 0, 60, 9,
               args={"connection_id": 2, "data_type": "FP32", "alg_type": "MESH", "count": 8}),
        slice_("Memcpy", COMMUNICATION, 1, 61, 3,
               args={"stream id": 3, "task id": 7, "task type": "Memcpy", "src rank": 0,
                     "dst rank": 1, "transport type": "SDMA", "size(Byte)": 64,
                     "link type": "HCCS", "bandwidth(GB/s)": 2.0, "notify_id": "9"}),
        slice_("Notify_Wait", COMMUNICATION, 1, 65, 1,
               args={"stream id": 3, "task id": 8, "task type": "Notify_Wait"}),
        slice_("Computing", OVERLAP, 0, 40, 10, args={}),
        {"ph": "C", "name": "AI Core Freq", "pid": FREQUENCY, "tid": 0, "ts": at(1),
         "args": {"MHz": 1800}},
        *names((COMMUNICATION, 0, "Group world Communication"), (COMMUNICATION, 1, "Plane 0")),
        {"ph": "s", "name": "torch_to_npu", "id": 1, "pid": PID, "tid": 1, "ts": at(10),
         "cat": "async_npu"},
    ]  # fmt: skip


KERNELS = (
    "Device_id,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Block Num,"
    "Input Shapes,Context ID,aicore_time(us),aic_mac_ratio,aiv_time(us),cube_utilization(%)\n"
    f'0,3,MatMul_0,MatMul,dynamic,AI_CORE,{at(40)}\t,10.0,24,"""2,3""",N/A,1.5,0.25,N/A,9\n'
    f"0,N/A,hcom_allReduce__1,hcom_allReduce_,N/A,HCCL,{at(60)}\t,9,0,N/A,N/A,N/A,N/A,N/A,N/A\n"
)
ALLOCATIONS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),"
    "Allocation Total Allocated(MB),Stream Ptr,Device Type\n"
    f"aten::mm,0.5,{at(11)}\t,{at(14)}\t,,3.000\t,0.5,28672,NPU:0\n"
    f"cann::op,1.0,{at(12)}\t,{at(12)}\t,,0.0,0.25,,NPU:0\n"
)
TOTALS = (
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,"
    f"Device Type\nPTA,{at(11)}\t,0.5,2.0,0.5,28672,NPU:0\nAPP,{at(12)}\t,,2109.6,,,NPU:0\n"
)
MODULES = f"Component,Timestamp(us),Total Reserved(MB),Device\nSLOG,{at(3)}\t,0.5,NPU:0\n"


def write(folder: Path, events: list[dict[str, Any]] | None = None, **tables: str) -> Path:
    """Write an export into `folder`/ASCEND_PROFILER_OUTPUT and return `folder`."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    shown = all_kinds() if events is None else events + names()
    (output / "trace_view.json").write_text(json.dumps(shown))
    if events is None:
        tables = {"kernel_details": KERNELS, "operator_memory": ALLOCATIONS,
                  "memory_record": TOTALS, "npu_module_mem": MODULES} | tables  # fmt: skip
    for name, text in tables.items():
        (output / f"{name}.csv").write_text(text)
    return folder
