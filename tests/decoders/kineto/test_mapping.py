"""Rows decoded from small traces."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import (
    NCCL,
    PARAMETERS,
    PID,
    TID,
    call,
    decode,
    decode_events,
    kernel,
    operation,
    write,
)
from unified_prof.decoders.gpu.task_tables import Options

MAIN_THREAD = PID << 32 | TID


def test_external_id_names_the_operation_if_none_contains_the_launch(tmp_path: Path) -> None:
    sink = decode_events(
        tmp_path,
        operation("aten::mm", 0, 10, args={"External id": 5}),
        call(50, 5, 70, args={"External id": 5, "correlation": 70}),
        kernel(60, 1, 70, args={"External id": 5}),
    )
    columns = ["opType"]

    assert sink.rows("COMPUTE_TASK_INFO", *columns, texts=columns) == [("aten::mm",)]
    sink = decode_events(
        tmp_path,
        operation("aten::unrelated", 0, 10, args={"External id": 70}),
        call(50, 5, 70, args={"External id": 70, "correlation": 70}),
        kernel(60, 1, 70, args={"External id": 70}),
    )
    assert sink.rows("COMPUTE_TASK_INFO", *columns, texts=columns) == [("N/A",)], "a correlation id"


@pytest.mark.parametrize(
    ("collective", "prefix"),
    [("recv", "receive__dp_0_0"), ("Recv", "receive__"), ("send", "send__"), ("SendRecv", "SendR")],
)
def test_collective_names_suit_the_viewers(collective: str, prefix: str, tmp_path: Path) -> None:
    args = PARAMETERS | {"Collective name": collective}
    sink = decode_events(tmp_path, call(15, 5, 3), kernel(30, 10, 3, name=NCCL, args=args))
    ((name, kind),) = sink.rows("COMMUNICATION_OP", "opName", "opType", texts=["opName", "opType"])
    assert (name.startswith(prefix), kind) == (True, collective)


def test_data_types_are_limited_to_those_of_the_schema_revision(tmp_path: Path) -> None:

    events = [
        kernel(30, 10, 3, name=NCCL, args=PARAMETERS | {"dtype": t})
        for t in ("BFloat16", "Float8_e4m3fn", "Unheard")
    ]
    trace = write(tmp_path / "t.json", events)
    older = decode(trace, options=Options(data_types={"BFP16": 11, "N/A": 65534}))
    newer = decode(trace, options=Options(data_types={"BFP16": 11, "FP8E4M3": 15, "N/A": 65534}))
    assert older.rows("COMMUNICATION_OP", "dataType") == [(11,), (65535,), (65535,)]
    assert newer.rows("COMMUNICATION_OP", "dataType") == [(11,), (15,), (65535,)]


def test_base_time_after_the_events_is_added_to_times(tmp_path: Path) -> None:
    base = 1711964646000000000
    text = (
        '{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,'
        '"ts":4458676522690.655,"dur":156.777,"args":{}}],'
        f'"displayTimeUnit":"ms","baseTimeNanoseconds":{base}}}'
    )

    trace = tmp_path / "t.json"
    trace.write_text(text)
    sink = decode(trace)
    start = base + 4458676522690655
    assert sink.rows("PYTORCH_API", "startNs", "endNs") == [(start, start + 156777)]
    assert sink.rows("SESSION_TIME_INFO", "startTimeNs", "endTimeNs") == [(start, start + 156777)]
