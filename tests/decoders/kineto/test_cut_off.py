"""Traces whose writer was killed: complete events are read, and the cut is counted."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import RowSink, call, complete, decode, kernel, operation, write
from unified_prof.decoders.kineto.slices import TraceReader
from unified_prof.errors import RawFormatError

EVENTS = [
    operation('aten::"odd", {', 1.5, 10, args={"Input Dims": [[2, 3], []], "x": [{"y": "}, {"}]}),
    call(2, 1.25, 70),
    kernel(20.125, 3, 70),
    complete("user_annotation", "schöner Schritt", 0, 50),
    operation("aten::mm", 30, 5, args={"Concrete Inputs": ["", "1"]}),
    operation("aten::last", 40, 5),
]


def read_names(path: Path, slice_bytes: int) -> tuple[list[Any], dict[str, Any], list[str]]:
    anomalies: list[str] = []
    reader = TraceReader(path, lambda name, *_: anomalies.append(name), slice_bytes)
    names = [event.name for events in reader.slices() for event in events]
    return names, reader.metadata, anomalies


def ends_of_events(content: bytes) -> list[int]:
    """Return where each event of `EVENTS` ends in an indented trace."""
    ends, at = [], content.index(b"[", content.index(b'"traceEvents"'))
    decoder = json.JSONDecoder()
    text = content.decode()
    for _ in EVENTS:
        at = text.index("{", at)
        _, at = decoder.raw_decode(text, at)
        ends.append(at)
    return ends


@pytest.fixture(params=[None, 2], ids=["dense", "indented"])
def trace_bytes(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    body = ",\n".join(json.dumps(event, indent=request.param) for event in EVENTS)
    text = f'{{"schemaVersion": 1, "traceEvents": [\n{body}\n], "traceName": "x, y", "log": [1]}}'
    assert text.isascii()
    return text.encode()


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("slice_bytes", [200, 1 << 20])
def test_events_before_a_cut_are_read(trace_bytes: bytes, slice_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    ends = ends_of_events(trace_bytes)
    names = [event["name"] for event in EVENTS]
    for cut in range(trace_bytes.index(b"[") + 1, len(trace_bytes)):
        path.write_bytes(trace_bytes[:cut])
        found, metadata, anomalies = read_names(path, slice_bytes)
        assert found == names[: sum(end <= cut for end in ends)], cut
        assert anomalies == ["cut_off"], cut
        assert metadata["schemaVersion"] == 1
        assert ("traceName" in metadata) == (cut >= trace_bytes.index(b', "log"')), cut


def test_trace_cut_before_its_first_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in ('{"schemaVersion": 1, "trace', '{"traceEvents": [', '[{"ph": "X", "na'):
        path.write_text(text)
        with pytest.raises(RawFormatError, match="cut off") as caught:
            decode(path)
        assert str(path) in str(caught.value)


def test_rows_of_a_cut_trace_are_joined_and_the_cut_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", EVENTS, baseTimeNanoseconds=0)
    path.write_bytes(path.read_bytes()[:-80])
    sink = decode(path)
    assert sink.rows("COMPUTE_TASK_INFO", "opType", texts=["opType"]) == [('aten::"odd", {',)]
    assert sink.anomalies == {"cut_off": 1}
    assert sink.details["cut_off"] == "the file ends after 5 events"


def test_zero_bytes_at_the_end_count_as_a_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", EVENTS)
    content = path.read_bytes()
    path.write_bytes(content[:-200] + bytes(4096))
    found, _, anomalies = read_names(path, 1 << 20)
    assert found == [event["name"] for event in EVENTS[:4]]
    assert anomalies == ["cut_off"]


# ---- lists


@pytest.mark.parametrize("end", ["]", "", ",", ",\n", "\n"])
def test_list_without_closing_bracket_is_complete(tmp_path: Path, end: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(map(json.dumps, EVENTS)) + end)
    found, _, anomalies = read_names(path, 300)
    assert found == [event["name"] for event in EVENTS]
    assert anomalies == []


def test_list_that_ends_within_an_event_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(map(json.dumps, EVENTS))[:-3])
    found, _, anomalies = read_names(path, 1 << 20)
    assert len(found) == len(EVENTS) - 1
    assert anomalies == ["cut_off"]


# ---- compressed


def test_cut_gzip_stream_yields_its_complete_events(trace_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    packed = gzip.compress(trace_bytes, mtime=0)
    names = [event["name"] for event in EVENTS]
    counts, refused = [], []
    for cut in range(20, len(packed)):
        path.write_bytes(packed[:cut])
        try:
            found, _, anomalies = read_names(path, 1 << 20)
        except RawFormatError as err:  # before the events begin
            refused.append(str(err))
            continue
        assert found == names[: len(found)]
        assert anomalies == ["cut_off"], cut
        counts.append(len(found))
    assert all("cut off" in message for message in refused)
    assert counts == sorted(counts)
    assert counts[-1] == len(names)


def test_gzip_stream_that_ends_in_zero_bytes_is_cut_off(tmp_path: Path) -> None:
    events = [operation(f"aten::op{i}", i, i * 7 % 13) for i in range(2000)]
    packed = gzip.compress(write(tmp_path / "t.json", events).read_bytes())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) // 2] + bytes(8192))
    found, _, anomalies = read_names(path, 1 << 20)
    assert found == [f"aten::op{i}" for i in range(len(found))]
    assert len(found) > 500
    assert "cut_off" in anomalies


# ---- the base time, which Kineto writes after the events


def start_and_anomalies(sink: RowSink) -> tuple[object, dict[str, int]]:
    return sink.tables["SESSION_TIME_INFO"][0]["startTimeNs"], sink.anomalies


def test_missing_base_time_of_a_cut_trace_is_counted(tmp_path: Path) -> None:
    body = ",".join(map(json.dumps, EVENTS))
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{body}], "traceName": "x", "baseTimeNan')
    assert start_and_anomalies(decode(path)) == (0, {"cut_off": 1, "base_time_lost": 1})
    path.write_text(f'{{"baseTimeNanoseconds": 5000, "traceEvents": [{body}], "traceName": "x')
    assert start_and_anomalies(decode(path)) == (5000, {"cut_off": 1})
    unix = json.dumps(operation("aten::mm", 1_700_000_000_000_000, 5))
    path.write_text(f'{{"traceEvents": [{unix}, {{')
    assert start_and_anomalies(decode(path)) == (1_700_000_000_000_000_000, {"cut_off": 1})


@pytest.mark.parametrize(
    ("written", "used"),
    [
        ("1000", 1000),
        ('"1000"', 1000),
        ("1000.0", 1000),
        ("1.7e18", 1_700_000_000_000_000_000),
        ("null", 0),
        ("0", 0),
    ],
)
def test_base_time_is_read_from_any_spelling(tmp_path: Path, written: str, used: int) -> None:
    text = f'{{"baseTimeNanoseconds": {written}, "traceEvents": [{json.dumps(EVENTS[0])}]}}'
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert start_and_anomalies(decode(path)) == (1500 + used, {})


@pytest.mark.parametrize(
    "written",
    [
        *("-5", '"-5"', "1.5", '"soon"', "true", "[]", "{}", "1e400", "1e30"),
        *(str(2**63), str(2**64 - 1), str(2**63 - 2000)),
    ],
)
def test_invalid_base_time_is_counted_and_ignored(tmp_path: Path, written: str) -> None:
    text = f'{{"baseTimeNanoseconds": {written}, "traceEvents": [{json.dumps(EVENTS[0])}]}}'
    path = tmp_path / "trace.json"
    path.write_text(text)
    start, anomalies = start_and_anomalies(decode(path))
    assert start == 1500
    assert anomalies["unusable_base_time"] == 1
