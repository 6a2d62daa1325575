"""Damaged and unusual traces are refused or counted."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoders.kineto.builders import (
    PID,
    call,
    complete,
    decode,
    decode_events,
    kernel,
    operation,
    write,
)
from unified_prof.decoders.kineto.slices import TraceReader
from unified_prof.errors import RawFormatError

PRETTY = ",\n".join(json.dumps(operation(f"aten::op{i}", i, 1), indent=2) for i in range(200))


def event_names(path: Path, slice_bytes: int = 1 << 20) -> list[object]:
    reader = TraceReader(path, lambda *_: None, slice_bytes)
    return [event.name for events in reader.slices() for event in events]


# ---- refused files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file"),
        (b"SQLite format 3\0", "expected a torch.profiler trace"),
        (b"\x00\x01\x02", "expected a torch.profiler trace"),
        (b'{"schemaVersion": 1, "nodes": []}', "it has no list traceEvents; keys: nodes, schema"),
        (b'{"traceEvents": {"a": 1}}', "it has no list traceEvents; keys: traceEvents"),
        (b'{"a": ', "damaged, cut off or"),
        (b'[{"a": 1}, 2]', "no complete event: it is cut off, damaged or not a trace"),
        (b"[]", "has no event"),
        (b'{"traceEvents": []}', "has no event"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name", "args": {}}]}', "has no event"),
        (b'[{"name": "x", "b": 1}]', "has no event"),
    ],
)
def test_files_of_other_formats_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(RawFormatError, match=message) as caught:
        decode(path)
    assert str(path) in str(caught.value)


def test_event_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_prof.decoders.kineto.slices.MAX_OUTSIDE_BYTES", 1 << 16)
    path = write(tmp_path / "trace.json", json.dumps(operation("a" * (1 << 18), 1, 1)))
    with pytest.raises(RawFormatError, match="exceeds the maximum length"):
        decode(path, slice_bytes=4096)


def test_directory_or_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.json"):
        with pytest.raises(RawFormatError, match="cannot be read"):
            decode(path)


# ---- unusual but readable files


@pytest.mark.parametrize("slice_bytes", [64, 300, 1000, 1 << 20])
def test_events_do_not_depend_on_the_slice_size(tmp_path: Path, slice_bytes: int) -> None:
    path = write(tmp_path / "trace.json", PRETTY, log=["}, {", "x" * 2000])
    assert event_names(path, slice_bytes) == [f"aten::op{i}" for i in range(200)]


bracket_texts = st.lists(
    st.sampled_from([*'{}[],:" \\\nx', "}, {", '"ph":', '},\n{"ph":', '"traceEvents": [']),
    max_size=20,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(bracket_texts, min_size=1, max_size=12),
    st.integers(32, 400),
    st.sampled_from([None, 1]),
)
def test_brackets_inside_strings_do_not_split_events(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], slice_bytes: int, indent: int | None
) -> None:
    events = [operation(text, 1, 1, args={"nested": [{"ph": text}, {text: 1}]}) for text in texts]
    path = tmp_path_factory.mktemp("tricky") / "trace.json"
    body = ",\n".join(json.dumps(event, indent=indent) for event in events)
    write(path, body, note='traceEvents": [')
    assert event_names(path, slice_bytes) == texts


def test_bare_list_of_events_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([operation("aten::mm", 1, 1)]))
    assert decode(path).rows("PYTORCH_API", "startNs") == [(1000,)]


@pytest.mark.parametrize(
    ("defect", "expected"),
    [
        ('"na\x01me"', "na me"),
        ('"na\nme"', "na me"),
        (r'"C:\Users\x"', r"C:\Users\x"),
        ('"caf\xe9"', "caf\ufffd"),
    ],
)
def test_invalid_characters_are_repaired(tmp_path: Path, defect: str, expected: str) -> None:
    path = tmp_path / "trace.json"
    events = [json.dumps(operation(f"aten::op{i}", i, 1)) for i in range(50)]
    events[20] = events[20].replace('"aten::op20"', defect)
    text = '{"traceEvents": [' + ",\n".join(events) + "]}"
    path.write_bytes(text.encode("latin-1"))
    sink = decode(path, slice_bytes=1000)
    found = [name for (name,) in sink.rows("PYTORCH_API", "name", texts=["name"])]
    assert len(found) == 50
    assert found[20] == expected
    assert set(sink.anomalies) <= {"repaired_slice", "repaired_event"}
    assert sum(sink.anomalies.values()) == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "nan", "-nan", "inf"])
def test_invalid_number_affects_only_its_own_value(tmp_path: Path, value: str) -> None:
    good = json.dumps(kernel(20, 1, 4))
    odd = json.dumps(kernel(10, 1, 3)).replace('"context": 1', f'"context": {value}')
    no_time = json.dumps(kernel(15, 1, 5)).replace('"dur": 1', f'"dur": {value}')
    named = json.dumps(operation("aten::isnan NaN inf", 1, 1))
    calls = [json.dumps(call(2, 1, correlation)) for correlation in (3, 4, 5)]
    sink = decode(write(tmp_path / "trace.json", ",\n".join([good, odd, no_time, named, *calls])))
    assert sink.rows("TASK", "startNs") == [(10_000,), (20_000,)]
    assert sink.rows("UPROF_GPU_TASKS", "contextId") == [(None,), (1,)]
    assert sink.rows("PYTORCH_API", "name", texts=["name"]) == [("aten::isnan NaN inf",)]
    assert sink.anomalies == {"repaired_slice": 1, "event_without_duration": 1}


def test_unrepairable_event_is_skipped_and_counted(tmp_path: Path) -> None:
    events = [json.dumps(operation(f"aten::op{i}", i, 1), indent=1) for i in range(60)]
    events[30] = events[30].replace('"aten::op30"', '"broken "quotes" {"')
    for slice_bytes in (500, 1 << 20):
        sink = decode(write(tmp_path / "t.json", ",\n".join(events)), slice_bytes=slice_bytes)
        assert len(sink.tables["PYTORCH_API"]) == 59
        assert sink.anomalies["malformed_event"] == 1


def test_events_without_time_or_with_negative_duration_are_skipped(tmp_path: Path) -> None:
    without_ts = operation("a", 1, 1)
    del without_ts["ts"]
    without_dur = kernel(1, 1, 1)
    del without_dur["dur"]
    sink = decode_events(
        tmp_path,
        without_ts,
        without_dur,
        operation("b", None, 1),
        operation("c", "soon", 1),
        kernel(5, -3, 2),
        kernel(9, 0, 3),
        operation("good", 5, 5),
    )
    assert sink.rows("TASK", "startNs", "endNs") == [(9000, 9000)]
    assert sink.rows("PYTORCH_API", "name", texts=["name"]) == [("good",)]
    assert sink.anomalies == {
        "event_without_time": 3,
        "event_without_duration": 1,
        "negative_duration": 1,
        "task_without_launch": 1,
    }


def test_text_ids_are_joined_like_numbers(tmp_path: Path) -> None:
    big = 2**63 - 10
    sink = decode_events(
        tmp_path, call(1, 1, str(big)), kernel("5.125", "1", str(big), pid="0", tid="7")
    )
    assert sink.rows("TASK", "connectionId", "startNs") == [(big, 5125)]
    assert sink.rows("CANN_API", "connectionId") == [(big,)]


def test_task_with_unreadable_ids_is_kept_and_counted(tmp_path: Path) -> None:
    sink = decode_events(tmp_path, kernel(5, 1, "abc", args={"device": "gpu", "stream": [1]}))
    ((device, stream),) = sink.rows("TASK", "deviceId", "streamId")
    assert (device, stream) == (-1, -1)
    assert sink.rows("NPU_INFO", "id", "name") == [(-1, "UNKNOWN")]
    assert sink.anomalies == {"unreadable_number": 3, "task_without_launch": 1}


def test_malformed_arguments_do_not_drop_the_event(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("a", 1, 1, args="text"),
        operation("b", 2, 1, args=None),
        operation("c", 3, 1, args={"External id": [1]}),
        operation("d", 4, 1, args={"Input Dims": {"x": 1}, "Input type": 7}),
        call(5, 1, 1, args=[]),
        kernel(6, 1, 1, args={"grid": "big", "block": [1.5], "bytes": {}}),
    )
    assert len(sink.tables["PYTORCH_API"]) == 4
    assert len(sink.tables["TASK"]) == 1
    assert sink.anomalies["malformed_args"] == 2


def test_processes_with_equal_correlation_ids_get_distinct_connection_ids(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        call(1, 1, 7, args={"External id": 1, "correlation": 7}),
        call(2, 1, 7, args={"External id": 2, "correlation": 7}, pid=PID + 1),
        call(3, 1, 9, args={"External id": 3, "correlation": 9}),
        kernel(10, 1, 7, args={"External id": 2}),
        kernel(12, 1, 7, args={"External id": 1}),
    )
    assert sorted(sink.rows("CANN_API", "startNs", "connectionId")) == [
        (1000, 7),
        (2000, 1 << 40 | 7),
        (3000, 9),
    ]
    assert sink.rows("TASK", "startNs", "connectionId", "globalPid") == [
        (10_000, 1 << 40 | 7, PID + 1),
        (12_000, 7, PID),
    ]
    assert sink.anomalies == {"shared_correlations": 1}


def test_kernels_of_one_graph_launch_share_its_connection_id(tmp_path: Path) -> None:
    graph = call(1, 1, 7) | {"name": "cudaGraphLaunch"}
    sink = decode_events(tmp_path, graph, *(kernel(10 + i, 1, 7) for i in range(3)))
    assert sink.rows("TASK", "connectionId") == [(7,)] * 3
    assert sink.anomalies == {}


def test_collectives_without_correlation_get_distinct_connection_ids(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllReduce(x)"
    events = [kernel(i, 1, 0, name=name) for i in (1, 3)]
    del events[1]["args"]["correlation"]
    sink = decode_events(tmp_path, call(0, 1, 5), *events)
    assert sorted(sink.rows("COMMUNICATION_OP", "connectionId")) == [(6,), (7,)]
    assert sink.anomalies == {"task_without_launch": 2}


def test_threads_of_different_processes_get_distinct_ids(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::a", 0, 10, pid=1, tid=5),
        operation("aten::b", 0, 10, pid=2, tid=5),
        call(3, 1, 70, pid=2, tid=5),
        kernel(20, 1, 70, args={"device": 1}),
    )
    assert sink.rows("COMPUTE_TASK_INFO", "opType", texts=["opType"]) == [("aten::b",)]
    assert sink.rows("TASK", "globalPid", "deviceId") == [(2, 1)]
    assert sorted(row["globalTid"] for row in sink.tables["PYTORCH_API"]) == [
        1 << 32 | 5,
        2 << 32 | 5,
    ]


def test_thread_id_over_32_bits_is_replaced_and_counted(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("a", 1, 1, tid=140_737_353_975_616),
        operation("b", 2, 1, tid="main", pid="[rank1] python"),
        operation("c", 3, 1, tid=140_737_353_975_616),
    )
    tids = [row["globalTid"] for row in sink.tables["PYTORCH_API"]]
    assert tids[0] == tids[2] == PID << 32 | 0xFF00_0000
    assert tids[1] not in tids[:1]
    assert sink.anomalies == {"thread_id_replaced": 2, "process_id_replaced": 1}
    assert ("[rank1] python", "main") in sink.rows("UPROF_THREADS", "process", "thread")


def test_trace_without_device_has_no_tasks(tmp_path: Path) -> None:
    sink = decode_events(tmp_path, operation("aten::mm", 1, 1))
    assert "TASK" not in sink.tables
    assert sink.rows("NPU_INFO", "id", "name") == [(-1, "UNKNOWN")]
    assert sink.rows("RANK_DEVICE_MAP", "rankId", "deviceId") == [(-1, -1)]


def test_counter_and_phaseless_events_are_counted_as_unsupported(tmp_path: Path) -> None:
    counter = {"ph": "C", "name": "memory", "pid": 0, "tid": 0, "ts": 1, "args": {"v": 1}}
    no_phase = {"name": "x", "ts": 1}
    sink = decode_events(tmp_path, operation("a", 1, 1), counter, no_phase)
    assert sink.anomalies == {"unsupported_event": 2}


def test_capitalized_categories_of_old_torch_are_decoded(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        complete("Operator", "aten::mm", 0, 10, args={"external id": 4, "Input dims": [[2]]}),
        complete("Runtime", "cudaLaunchKernel", 2, 1, args={"correlation": 9, "external id": 4}),
        complete(
            "Kernel",
            "gemm",
            20,
            1,
            pid=0,
            tid="stream 7",
            args={"correlation": 9, "device": 0, "stream": 7, "external id": 4},
        ),
    )
    assert sink.rows(
        "COMPUTE_TASK_INFO", "opType", "inputShapes", texts=["opType", "inputShapes"]
    ) == [("aten::mm", '"2"')]
    assert sink.anomalies == {}


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("seed", range(3))
def test_random_damage_is_refused_or_counted(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    shapes = {"Input Dims": [[2, 3], []], "Input type": ["float", ""], "Concrete Inputs": ["", "1"]}
    events = [operation(f"aten::op{i}", i, 1, args=shapes) for i in range(30)]
    events += [call(1, 1, i) for i in range(30)] + [kernel(40 + i, 1, i) for i in range(30)]
    intact = write(tmp_path / "trace.json", events, distributedInfo={"rank": 0}).read_bytes()
    inserts = [b"\\ud800", b"\\u0000", b'"', b"{", b"}", b"[", b"]", b",", b":", b"1e400", b"\xff"]
    path = tmp_path / "damaged.json"
    for _ in range(25):
        damaged = bytearray(intact)
        for _ in range(chance.choice((1, 3, 10))):
            at = chance.randrange(len(damaged))
            if chance.random() < 0.5:
                damaged[at:at] = chance.choice(inserts)
            else:
                del damaged[at : at + chance.randrange(1, 30)]
        path.write_bytes(damaged)
        with suppress(RawFormatError):
            sink = decode(path, slice_bytes=chance.choice((500, 1 << 20)))
            assert sink.tables["SESSION_TIME_INFO"]


def test_numbers_with_huge_exponents_or_digits_are_rejected_quickly(tmp_path: Path) -> None:
    endless = json.dumps(operation("a", 1, 1)).replace('"ts": 1', '"ts": 1e999999999')
    long = "9" * 5000
    events = [operation(f"ProfilerStep#{long}", 2, 1, pid=long, tid="\u00b2"), kernel(9, 1, long)]
    text = ",\n".join([endless, *map(json.dumps, events)])
    sink = decode(write(tmp_path / "trace.json", text))
    assert sink.anomalies["event_without_time"] == 1
    assert len(sink.tables["PYTORCH_API"]) == 1
    assert "STEP_TIME" not in sink.tables


def test_trace_without_torch_events_is_counted(tmp_path: Path) -> None:
    requests = [
        {"ph": phase, "cat": "request", "name": "infer", "id": 1, "pid": 1, "tid": 1, "ts": ts}
        for phase, ts in (("b", 1), ("e", 5))
    ]
    sink = decode(write(tmp_path / "triton.json", requests))
    assert sink.anomalies == {"no_torch_events": 1}
    assert len(sink.tables["UPROF_TRACE_EVENTS"]) == 1


def test_samples_of_damaged_events_have_no_secrets(tmp_path: Path) -> None:
    secret = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    path = tmp_path / "trace.json"
    damaged = (
        f'{{"ph": "X", "cat": "cpu_op", "name": "login {secret}", "ts": 1 2, "args": {{"a": ]}}'
    )
    path.write_text(f'{{"traceEvents": [{damaged}, {json.dumps(operation("aten::mm", 1, 2))}]}}')
    found: list[str] = []
    reader = TraceReader(path, lambda kind, count, detail: found.append(f"{kind} {detail}"))
    list(reader.slices())
    assert found
    assert [text for text in found if secret[:12] in text] == []
    assert [text for text in found if "login ***" in text] != []
