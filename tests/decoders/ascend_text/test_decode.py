"""Conversion of text exports of Ascend PyTorch Profiler."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.ascend_pt.builders import Framework
from tests.decoders.ascend_text import builders
from tests.decoders.ascend_text.builders import at
from tests.decoders.prof.memory_sink import MemorySink
from tests.sql import execute
from unified_prof.decoders import compression
from unified_prof.decoders.ascend_text.events import Event, time_ns
from unified_prof.decoders.ascend_text.host import Layer
from unified_prof.decoders.ascend_text.recording import Counters
from unified_prof.errors import RawFormatError
from unified_prof.pipeline.convert import Conversion, convert


def convert_into(path: Path, into: Path) -> Conversion:
    return convert(path, into / "r.db", schema="latest", force=True)


def rows(report: Conversion, sql: str) -> list[tuple[Any, ...]]:
    return execute(report.database, sql)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    folder = tmp_path_factory.mktemp("export")
    return convert_into(builders.write(folder / "x_ascend_pt"), folder)


@pytest.mark.parametrize(
    "place", ["", "ASCEND_PROFILER_OUTPUT", "ASCEND_PROFILER_OUTPUT/trace_view.json"]
)
def test_directory_output_and_trace_are_the_same_recording(place: str, tmp_path: Path) -> None:
    folder = builders.write(tmp_path / "x_ascend_pt")
    found = convert_into(folder / place, tmp_path)
    assert found.rows["OP_MEMORY"] == 2
    assert found.rows["TASK"] == 4


def test_renamed_trace_is_converted_without_tables(tmp_path: Path) -> None:
    folder = builders.write(tmp_path / "x_ascend_pt")
    trace = shutil.copy(folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", tmp_path / "r.json")
    found = convert_into(Path(trace), tmp_path)
    assert found.kind == "ascend_text"
    assert "OP_MEMORY" not in found.rows
    assert found.rows["COMPUTE_TASK_INFO"] == 1


def test_raw_data_is_preferred_to_its_export(tmp_path: Path) -> None:
    raw = Framework()
    raw.operator("aten::raw", 1, 2)
    folder = raw.write(tmp_path / "x_ascend_pt")
    builders.write(folder)
    assert convert_into(folder, tmp_path).kind == "ascend_pt"
    export = convert_into(folder / "ASCEND_PROFILER_OUTPUT", tmp_path)
    assert export.kind == "ascend_text"
    assert "raw_data_beside" in export.anomalies


def test_unknown_values_are_counted(tmp_path: Path) -> None:
    events = [
        builders.slice_("?", 99, 1, 1, 1),
        builders.slice_("?", builders.PID, 1, 1, 1, cat="new"),
        builders.call("Level9@x", 1, 1, 1, 1),
        builders.call("Node@launch", 1, 1, 1, 5),
        builders.call("Node@launch", 2, 1, 1, 5),
        builders.operator("late", 1, -5),
        {
            "ph": "C",
            "name": "LLC 0 Odd",
            "pid": builders.FREQUENCY,
            "tid": 0,
            "ts": "1",
            "args": {},
        },
        {"ph": "X", "name": 7, "pid": 1},
    ]
    kernels = f"Name,Accelerator Core,Start Time(us)\ngone,AI_CORE,{at(1)}\nodd\n"
    folder = builders.write(tmp_path / "x", events, kernel_details=kernels, other="a\n")
    found = convert_into(folder, tmp_path)
    counted = {name: count for name, (count, _) in found.anomalies.items()}
    assert counted == {
        "undecoded_event": 4,
        "damaged_event": 2,
        "repeated_connection": 1,
        "unmatched_kernel": 1,
        "damaged_row": 1,
        "undecoded_data": 1,
    }


def test_details_of_kernels_are_found_if_the_trace_has_times_as_numbers(tmp_path: Path) -> None:
    """A float64 of Unix microseconds is a multiple of 0.25; kernel_details.csv has nanoseconds.

    Ascend/pytorch#156 writes numbers instead of strings. The nearest kernel of the name is taken.
    """
    at_us = 1736408883704643.0
    starts = {".212": 0.25, ".601": 0.5, ".899": 1.0}
    events = [
        builders.task("MatMul_0", "AI_CORE", 0, 0.25, number) | {"ts": at_us + shown}
        for number, shown in enumerate(starts.values(), 1)
    ]
    lines = [f"MatMul_0,{t},AI_CORE,{at_us:.0f}{text}" for t, text in enumerate(starts)]
    kernels = "\n".join(["Name,Type,Accelerator Core,Start Time(us)", *lines, ""])
    found = convert_into(builders.write(tmp_path / "x", events, kernel_details=kernels), tmp_path)
    assert not found.anomalies
    types = "SELECT value FROM COMPUTE_TASK_INFO i JOIN TASK t ON t.globalTaskId = i.globalTaskId"
    types += " JOIN STRING_IDS s ON s.id = i.opType ORDER BY startNs"
    assert rows(found, types) == [("0",), ("1",), ("2",)]


def test_kernels_keep_their_names_if_their_table_lacks_columns(tmp_path: Path) -> None:
    """A table that cannot be used costs its details, not the recording."""
    table = f"Name,Start Time(us)\nMatMul_0,{at(40)}\n"
    found = convert_into(builders.write(tmp_path / "x", kernel_details=table), tmp_path)
    assert found.rows["COMPUTE_TASK_INFO"] == 1
    assert found.anomalies["undecoded_part"][1].endswith("has no column Accelerator Core")


@pytest.mark.parametrize(
    ("name", "args", "table", "expected"),
    [
        ("AI Core Freq", {"MHz": 1650}, "AICORE_FREQ", {"freq": 1650, "dieId": -1}),
        ("Device/DDR", {"KB": 1.5}, "NPU_MEM", {"type": "device", "ddr": 1536}),
        ("APP/HBM", {"KB": 2}, "NPU_MEM", {"type": "app", "hbm": 2048}),
        ("HBM 12/Read", {"Read(MB/s)": 2.5}, "HBM",
         {"hbmId": 12, "type": "read", "bandwidth": 2_500_000}),
        ("LLC 3 Write/Throughput", {"Throughput(MB/s)": 0.25e-6}, "LLC",
         {"llcId": 3, "mode": "write", "throughput": 0.25}),
        ("LLC 3 Read/Hit Rate", {"Hit Rate(%)": 97.5}, "LLC",
         {"llcId": 3, "mode": "read", "hitRate": 97.5}),
        ("Mata Bw Level", {"Mata Bw Level": 4}, "SOC_BANDWIDTH_LEVEL", {"mataBwLevel": 4}),
        ("write_ost", {"acc_id": 7, "value": 9}, "ACC_PMU", {"accId": 7, "writeOstLevel": 9}),
        ("QoS OTHERS", {"value": 3}, "QOS", {"eventName": "OTHERS", "bandwidth": 3_000_000}),
        ("QoS OTHERS", {"value": True}, "QOS", {"eventName": "OTHERS"}),
    ],
)  # fmt: skip
def test_counters_are_samples_in_units_of_their_tables(
    name: str, args: dict[str, object], table: str, expected: dict[str, object]
) -> None:
    counters, sink = Counters(), MemorySink()
    for at_ns in (5, 5, 8):  # a repeated sample is kept once
        assert counters.take(Event(name=name, args=args), at_ns, Layer("NPU 2", 2, 0))
    counters.write(sink)
    columns = {column: values.tolist() for column, values in sink.tables()[table].items()}
    places = {"timestampNs": [5, 8], "deviceId": [2, 2]}
    assert columns == places | {column: [value] * 2 for column, value in expected.items()}


def test_largest_64_bit_ids_are_null(tmp_path: Path) -> None:
    far = builders.queued("enqueue", "Enqueue@k", 10, 5, 1, 2**63 - 1)
    folder = builders.write(tmp_path / "x_ascend_pt", [far, builders.operator("aten::mm", 1, 30)])
    assert convert_into(folder, tmp_path).rows["PYTORCH_API"] == 2


def test_trace_longer_than_a_block_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_PLAIN_PIECE_BYTES", 700)
    events = [builders.operator('a "}, {" [{}, {}] \\', 10 * n, 5) for n in range(200)]
    found = convert_into(builders.write(tmp_path / "x", events), tmp_path)
    assert found.rows["PYTORCH_API"] == 200


@pytest.mark.parametrize("lost", [1, 2, 30, 400])
def test_truncated_trace_keeps_its_complete_events(lost: int, tmp_path: Path) -> None:
    folder = builders.write(tmp_path / "x", [builders.operator("a", n, 1) for n in range(50)])
    path = folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
    events = json.loads(path.read_text())
    path.write_text(json.dumps(builders.names() + events)[:-lost])
    found = convert_into(folder, tmp_path)
    assert found.rows["PYTORCH_API"] == 50
    assert found.anomalies["cut_off"][0] == 1


@pytest.mark.parametrize("text", ["[]", '[{"ts": "12.5", "ph": "X"', '[{"ph": "X", "ts": "x"}]'])
def test_trace_without_known_events_is_refused(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (folder / "trace_view.json").write_text(text)
    with pytest.raises(RawFormatError, match="contains no complete event"):
        convert_into(folder, tmp_path)
    assert not (tmp_path / "r.db").exists()


@pytest.mark.parametrize("text", ["{}", "7", '"x"', ""])
def test_json_without_a_list_is_refused(text: str, tmp_path: Path) -> None:
    folder = builders.write(tmp_path / "x", [])
    (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text(text)
    with pytest.raises(RawFormatError, match="not a list of events"):
        convert_into(folder, tmp_path)


@pytest.mark.parametrize("number", [1_000_001.5, "1000001.5", "1000001.500", "1000001.5001"])
def test_times_are_read_from_texts_and_numbers(number: float | str) -> None:
    assert time_ns(number) == 1_000_001_500


@pytest.mark.parametrize(
    "bad", [1e308, "", "x", "1e999999", float("nan"), float("inf"), 1e30, "nan"]
)
def test_invalid_times_are_refused(bad: float | str) -> None:
    with pytest.raises(ValueError, match="time"):
        time_ns(bad)


def test_table_whose_last_line_has_no_end_is_counted(tmp_path: Path) -> None:
    """A cut file may end in a complete header or row, whose last cell is shorter."""
    folder = builders.write(tmp_path / "x")
    path = folder / "ASCEND_PROFILER_OUTPUT" / "operator_memory.csv"
    header, *lines = path.read_bytes().splitlines()
    for cut in (header, b"\n".join([header, *lines])[:-1]):
        path.write_bytes(cut)
        count, detail = convert_into(folder, tmp_path).anomalies["cut_off"]
        assert count == 1
        assert detail.endswith("operator_memory.csv: the last line has no end")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(
        ["ph", "name", "pid", "tid", "ts", "dur", "cat", "args", "connection_id", "Task Id", "MHz",
         "size(B)", "Sequence number", "correlation_id", "stream id", "bandwidth(GB/s)"]), VALUES),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
def test_any_values_are_converted(changes: list[tuple[int, str, object]], tmp_path: Path) -> None:
    events = builders.all_kinds()
    for place, key, value in changes:
        event = events[place % len(events)]
        if isinstance(event.get("args"), dict) and key in event["args"]:
            event["args"][key] = value
        else:
            event[key] = value
    folder = builders.write(tmp_path / "x")
    (folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").write_text(json.dumps(events))
    convert_into(folder, tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["trace_view.json", "kernel_details.csv", "operator_memory.csv",
                          "memory_record.csv", "npu_module_mem.csv"]),
    place=st.integers(0, 5_000),
    put=st.binary(max_size=6),
    gone=st.integers(0, 300),
)  # fmt: skip
def test_damaged_files_are_converted_or_refused(
    name: str, place: int, put: bytes, gone: int, tmp_path: Path
) -> None:
    folder = builders.write(tmp_path / "x")
    path = folder / "ASCEND_PROFILER_OUTPUT" / name
    data = path.read_bytes()
    path.write_bytes(data[:place] + put + data[place + gone :])
    with suppress(RawFormatError):
        convert_into(folder, tmp_path)
