"""Real traces, converted and compared with figures computed from their JSON."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python
from unified_prof import open_report
from unified_prof.pipeline.convert import convert

TRACES = (
    "amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "critical_path__event_sync_multi_stream.json.gz",
    "critical_path__simple_add.json.gz",
    "cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz",
    "nccl_parser_config__nccl_data.json.gz",
    "rank_non_gpu__rank_non_gpu.json.gz",
    "timeline_analysis__sampled_rank-0.json.gz",
    "triton_example__triton_example.json.gz",
)
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
Interval = tuple[int, int]


@dataclass
class Recorded:
    events: list[dict[str, Any]]
    report: Path

    def events_of(self, *categories: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e.get("cat") in categories and e["ph"] == "X"]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with open_report(self.report) as report:
            return report.rows(sql)


@pytest.fixture(scope="module", params=TRACES, ids=lambda name: name.split("__")[0] + name[-20:-8])
def recorded(
    request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorded:
    trace = shared / "samples" / "kineto" / request.param
    with gzip.open(trace, "rt", encoding="utf-8") as source:
        document = json.load(source, parse_float=Decimal)
    base = document.get("baseTimeNanoseconds", 0)
    for event in document["traceEvents"]:
        if "dur" in event:
            event["start"] = int(Decimal(event["ts"]) * 1000) + base
            event["end"] = event["start"] + int(Decimal(event["dur"]) * 1000)
    report = tmp_path_factory.mktemp("recorded") / "report.db"
    convert(trace, report)
    return Recorded(document["traceEvents"], report)


def union_ns(intervals: Iterable[Interval]) -> int:
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


def is_nccl(name: str) -> bool:
    return name.startswith("nccl")


@pytest.mark.quick(cases=4)
def test_tasks_equal_those_of_the_trace_to_the_nanosecond(recorded: Recorded) -> None:
    expected = Counter(
        (e["start"], e["end"], e["args"]["device"], e["args"]["stream"], e["name"])
        for e in recorded.events_of(*DEVICE_CATEGORIES)
    )
    found = recorded.rows(
        "SELECT startNs, endNs, deviceId, streamId, value FROM TASK"
        " JOIN UPROF_GPU_TASKS USING (globalTaskId) JOIN STRING_IDS ON id = name"
    )
    assert Counter(found) == expected


@pytest.mark.slow
def test_kernels_per_stream_equal_those_of_the_trace(recorded: Recorded) -> None:
    kernels = [e for e in recorded.events_of("kernel") if not is_nccl(e["name"])]
    found = recorded.rows(
        "SELECT startNs, endNs, streamId, value FROM TASK JOIN COMPUTE_TASK_INFO c"
        " USING (globalTaskId) JOIN STRING_IDS s ON s.id = c.name"
    )
    assert Counter(row[2] for row in found) == Counter(e["args"]["stream"] for e in kernels)
    assert Counter(row[3] for row in found) == Counter(e["name"] for e in kernels)
    assert sum(end - start for start, end, *_ in found) == sum(
        e["end"] - e["start"] for e in kernels
    )
    assert union_ns(row[:2] for row in found) == union_ns((e["start"], e["end"]) for e in kernels)


def test_collectives_equal_those_of_the_trace(recorded: Recorded) -> None:
    kernels = [e for e in recorded.events_of("kernel") if is_nccl(e["name"])]
    found = recorded.rows("SELECT startNs, endNs FROM COMMUNICATION_OP")
    assert Counter(found) == Counter((e["start"], e["end"]) for e in kernels)
    joined = recorded.rows(
        "SELECT t.startNs, t.endNs, o.startNs, o.endNs FROM COMMUNICATION_TASK_INFO i"
        " JOIN TASK t USING (globalTaskId) JOIN COMMUNICATION_OP o USING (opId)"
    )
    assert len(joined) == len(kernels)
    assert all(row[:2] == row[2:] for row in joined)
    parameters = [e["args"] for e in kernels if "In msg nelems" in e["args"]]
    assert Counter(
        recorded.rows(
            "SELECT o.count, s.value, c.groupSize FROM COMMUNICATION_OP o"
            " JOIN UPROF_COLLECTIVES c USING (opId) JOIN STRING_IDS s ON s.id = o.opType"
            " WHERE c.groupSize IS NOT NULL"
        )
    ) == Counter((a["In msg nelems"], a["Collective name"], a["Group size"]) for a in parameters)


def test_bytes_copied_by_direction_equal_those_of_the_trace(recorded: Recorded) -> None:
    calls = {e["args"]["correlation"]: e["args"] for e in recorded.events_of("cuda_runtime")}
    expected: Counter[int] = Counter()
    directions = {"HtoD": 1, "DtoH": 2, "DtoD": 3}
    for copy in recorded.events_of("gpu_memcpy"):
        args = copy["args"]
        size = args.get("bytes", calls[args["correlation"]].get("size"))
        expected[directions[copy["name"].split()[1]]] += int(size)
    found = recorded.rows("SELECT memcpyOperation, sum(size) FROM MEMCPY_INFO GROUP BY 1")
    assert dict(found) == dict(expected)


def test_runtime_calls_equal_those_of_the_trace(recorded: Recorded) -> None:
    expected = Counter(e["name"] for e in recorded.events_of("cuda_runtime", "cuda_driver"))
    found = recorded.rows(
        "SELECT value, count(*) FROM CANN_API JOIN STRING_IDS ON id = name GROUP BY 1"
    )
    assert dict(found) == expected


def test_launches_are_joined_to_tasks(recorded: Recorded) -> None:
    calls = {e["args"]["correlation"]: e for e in recorded.events_of("cuda_runtime", "cuda_driver")}
    expected = Counter(
        (task["start"], calls[task["args"]["correlation"]]["start"])
        for task in recorded.events_of(*DEVICE_CATEGORIES)
        if task["args"]["correlation"] in calls
    )
    found = recorded.rows(
        "SELECT t.startNs, a.startNs FROM TASK t JOIN CANN_API a USING (connectionId)"
        " WHERE a.globalTid >> 32 = t.globalPid"
    )
    assert Counter(found) == expected


def test_launching_operations_equal_the_recorded_links(recorded: Recorded) -> None:
    """In newer traces the external id of a task names its operation: nesting must agree."""
    tasks = recorded.events_of(*DEVICE_CATEGORIES)
    if all(t["args"].get("External id") == t["args"]["correlation"] for t in tasks):
        pytest.skip("this version of Kineto did not record such links")
    operations = {e["args"]["External id"]: e["name"] for e in recorded.events_of("cpu_op")}
    expected = Counter((t["start"], operations.get(t["args"]["External id"], "N/A")) for t in tasks)
    found = recorded.rows(
        "SELECT startNs, value FROM TASK JOIN UPROF_GPU_TASKS u USING (globalTaskId)"
        " JOIN STRING_IDS s ON s.id = u.operation"
    )
    assert Counter(found) == expected


def test_host_events_equal_those_of_the_trace(recorded: Recorded) -> None:
    operations = recorded.events_of("cpu_op")
    found = recorded.rows(
        "SELECT CAST(startNs AS INTEGER), CAST(endNs AS INTEGER), value, sequenceNumber"
        " FROM PYTORCH_API JOIN STRING_IDS ON id = name"
    )
    assert Counter(found) == Counter(
        (e["start"], e["end"], e["name"], e["args"].get("Sequence number", -1)) for e in operations
    )
    annotations = recorded.events_of("user_annotation")
    assert Counter(
        recorded.rows(
            "SELECT startNs, endNs, value FROM MSTX_EVENTS JOIN STRING_IDS ON id = message"
        )
    ) == Counter((e["start"], e["end"], e["name"]) for e in annotations)
    steps = [e for e in annotations if e["name"].startswith("ProfilerStep#")]
    assert Counter(recorded.rows("SELECT id, startNs FROM STEP_TIME")) == Counter(
        (int(e["name"].split("#")[1]), e["start"]) for e in steps
    )


def test_connections_lead_from_an_operation_to_its_calls(recorded: Recorded) -> None:
    pairs = recorded.rows(
        "SELECT CAST(p.startNs AS INTEGER), CAST(p.endNs AS INTEGER), a.startNs, a.endNs,"
        " p.globalTid = a.globalTid FROM PYTORCH_API p JOIN CONNECTION_IDS c"
        " ON c.id = p.connectionId JOIN CANN_API a ON a.connectionId = c.connectionId"
    )
    assert all(start <= call and called <= end and same for start, end, call, called, same in pairs)
    assert len(pairs) == recorded.rows("SELECT count(*) FROM CONNECTION_IDS")[0][0]
    assert pairs or not recorded.events_of("cuda_runtime")


def test_every_event_of_the_trace_is_in_a_table(recorded: Recorded) -> None:
    kept = sum(
        recorded.rows(f"SELECT count(*) FROM {table}")[0][0]
        for table in (
            *("TASK", "CANN_API", "PYTORCH_API", "MSTX_EVENTS", "UPROF_GPU_ANNOTATIONS"),
            *("UPROF_GPU_SYNCS", "UPROF_TRACE_EVENTS"),
        )
    )
    assert kept == sum(e["ph"] in "Xi" for e in recorded.events)
    # Torch numbers all operations; one trace has 1 in 73 of them, the others a third or more.
    ids = {e["args"].get("External id", 0) for e in recorded.events_of("cpu_op")} or {0}
    is_sample = max(ids) - min(ids) > 10 * len(ids)
    found = {name for (name,) in recorded.rows("SELECT name FROM UPROF_ANOMALIES")}
    assert found == ({"sampled_trace"} if is_sample else set())


@pytest.mark.quick(cases=1)
def test_contract_of_other_readers_is_met(recorded: Recorded, shared: Path) -> None:
    result = python(str(shared / "tools" / "insight_contract.py"), str(recorded.report))
    complaints = [line for line in result.stdout.splitlines()[1:] if "file name" not in line]
    if not recorded.events_of(*DEVICE_CATEGORIES):
        complaints = [c for c in complaints if "missing/empty" not in c]
    assert complaints == []


# Figures of HolisticTraceAnalysis 0.5.0 for these traces (get_temporal_breakdown in us,
# get_comm_comp_overlap in percent): idle, compute, neither, whole span, overlap.
HTA = {
    "amd_trace": (8780, 96, 35, 8911, None),
    "critical_path__alexnet": (12929684, 10637, 55690, 12996011, None),
    "critical_path__event_sync": (19132, 371, 3, 19506, None),
    "critical_path__simple_add": (16414376, 10676, 39287, 16464339, None),
    "nccl_parser_config": (338781, 75169, 21636, 435586, 14.31),
    "timeline_analysis": (321378, 106252, 172428, 600058, 11.81),
}


@pytest.mark.slow
@pytest.mark.parametrize("prefix", HTA)
def test_figures_of_hta_follow_from_the_report(prefix: str, shared: Path, tmp_path: Path) -> None:
    """HTA counts stream activity, waits included, by name patterns, without what the last step
    launched, with times rounded inward to microseconds."""
    (name,) = (name for name in TRACES if name.startswith(prefix))
    report = tmp_path / "report.db"
    convert(shared / "samples" / "kineto" / name, report)
    with open_report(report) as opened:
        steps = opened.rows("SELECT startNs FROM STEP_TIME ORDER BY 1")
        last_step = steps[-1][0] if len(steps) > 1 else 2**63 - 1
        tasks = opened.rows(
            "SELECT s.value, t.startNs, t.endNs FROM TASK t"
            " JOIN UPROF_GPU_TASKS u USING (globalTaskId) JOIN STRING_IDS s ON s.id = u.name"
            f" JOIN CANN_API a USING (connectionId) WHERE a.startNs < {last_step}"
            " UNION ALL SELECT s.value, startNs, endNs FROM UPROF_GPU_SYNCS"
            " JOIN STRING_IDS s ON s.id = kind WHERE streamId IS NOT NULL"
        )
    rounded = [(name, -(-start // 1000), end // 1000) for name, start, end in tasks]
    compute = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
    everything = [(start, end) for _, start, end in rounded]
    computing = [(s, e) for name, s, e in rounded if not compute.match(name)]
    communicating = [(s, e) for name, s, e in rounded if re.match("^nccl.*Kernel", name)]
    span = max(e for _, e in everything) - min(s for s, _ in everything)
    busy, compute_us = union_ns(everything), union_ns(computing)
    overlap = None
    if communicating:
        both = union_ns(computing) + union_ns(communicating) - union_ns(computing + communicating)
        overlap = round(100 * both / union_ns(communicating), 2)
    assert (span - busy, compute_us, busy - compute_us, span, overlap) == HTA[prefix]
