"""Traces whose writer was killed: complete events are read, and the cut is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.made import KeepingSink, call, complete, decode, kernel, operation, write
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


def read(path: Path, slice_bytes: int) -> tuple[list[Any], dict[str, Any], list[str]]:
    anomalies: list[str] = []
    reader = TraceReader(path, lambda name, *_: anomalies.append(name), slice_bytes)
    names = [event.name for events in reader.slices() for event in events]
    return names, reader.metadata, anomalies


def ends_of_events(content: bytes) -> list[int]:
    """Where each event of `EVENTS` ends in a trace that holds them indented."""
    ends, at = [], content.index(b"[", content.index(b'"traceEvents"'))
    decoder = json.JSONDecoder()
    text = content.decode()
    for _ in EVENTS:
        at = text.index("{", at)
        _, at = decoder.raw_decode(text, at)
        ends.append(at)
    return ends


@pytest.fixture(params=[None, 2], ids=["dense", "indented"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    body = ",\n".join(json.dumps(event, indent=request.param) for event in EVENTS)
    text = f'{{"schemaVersion": 1, "traceEvents": [\n{body}\n], "traceName": "x, y", "log": [1]}}'
    assert text.isascii()
    return text.encode()


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("slice_bytes", [200, 1 << 20])
def test_cut_anywhere_every_whole_event_before_the_cut_is_read(
    whole: bytes, slice_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    ends = ends_of_events(whole)
    names = [event["name"] for event in EVENTS]
    for cut in range(whole.index(b"[") + 1, len(whole)):
        path.write_bytes(whole[:cut])
        found, metadata, anomalies = read(path, slice_bytes)
        assert found == names[: sum(end <= cut for end in ends)], cut
        assert anomalies == ["cut_off"], cut
        assert metadata["schemaVersion"] == 1
        assert ("traceName" in metadata) == (cut >= whole.index(b', "log"')), cut


def test_a_trace_cut_before_its_events_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in ('{"schemaVersion": 1, "trace', '{"traceEvents": [', '[{"ph": "X", "na'):
        path.write_text(text)
        with pytest.raises(RawFormatError, match="cut off") as caught:
            decode(path)
        assert str(path) in str(caught.value)


def test_events_of_a_cut_trace_are_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", EVENTS, baseTimeNanoseconds=0)
    path.write_bytes(path.read_bytes()[:-80])
    sink = decode(path)
    assert sink.rows("COMPUTE_TASK_INFO", "opType", texts=["opType"]) == [('aten::"odd", {',)]
    assert sink.anomalies == {"cut_off": 1}
    assert sink.details["cut_off"] == "the file ends after 5 events"


def test_zero_bytes_that_a_system_left_at_the_end_are_no_content(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", EVENTS)
    content = path.read_bytes()
    path.write_bytes(content[:-200] + bytes(4096))
    found, _, anomalies = read(path, 1 << 20)
    assert found == [event["name"] for event in EVENTS[:4]]
    assert anomalies == ["cut_off"]


# ---- lists


@pytest.mark.parametrize("end", ["]", "", ",", ",\n", "\n"])
def test_a_list_needs_no_closing_bracket(tmp_path: Path, end: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(map(json.dumps, EVENTS)) + end)
    found, _, anomalies = read(path, 300)
    assert found == [event["name"] for event in EVENTS]
    assert anomalies == []


def test_a_list_that_ends_within_an_event_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(map(json.dumps, EVENTS))[:-3])
    found, _, anomalies = read(path, 1 << 20)
    assert len(found) == len(EVENTS) - 1
    assert anomalies == ["cut_off"]


# ---- compressed


def test_a_cut_gzip_stream_yields_its_complete_events(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    packed = gzip.compress(whole, mtime=0)
    names = [event["name"] for event in EVENTS]
    counts, refused = [], []
    for cut in range(20, len(packed)):
        path.write_bytes(packed[:cut])
        try:
            found, _, anomalies = read(path, 1 << 20)
        except RawFormatError as err:  # before the events begin
            refused.append(str(err))
            continue
        assert found == names[: len(found)]
        assert anomalies == ["cut_off"], cut
        counts.append(len(found))
    assert all("cut off" in message for message in refused)
    assert counts == sorted(counts)
    assert counts[-1] == len(names)


def test_a_gzip_stream_that_ends_in_zero_bytes_is_cut_off(tmp_path: Path) -> None:
    events = [operation(f"aten::op{i}", i, i * 7 % 13) for i in range(2000)]
    packed = gzip.compress(write(tmp_path / "t.json", events).read_bytes())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(packed[: len(packed) // 2] + bytes(8192))
    found, _, anomalies = read(path, 1 << 20)
    assert found == [f"aten::op{i}" for i in range(len(found))]
    assert len(found) > 500
    assert "cut_off" in anomalies


# ---- the base time, which Kineto writes behind the events


def bases(sink: KeepingSink) -> tuple[object, dict[str, int]]:
    return sink.tables["SESSION_TIME_INFO"][0]["startTimeNs"], sink.anomalies


def test_a_lost_base_time_is_counted(tmp_path: Path) -> None:
    body = ",".join(map(json.dumps, EVENTS))
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{body}], "traceName": "x", "baseTimeNan')
    assert bases(decode(path)) == (0, {"cut_off": 1, "base_time_lost": 1})
    path.write_text(f'{{"baseTimeNanoseconds": 5000, "traceEvents": [{body}], "traceName": "x')
    assert bases(decode(path)) == (5000, {"cut_off": 1})
    unix = json.dumps(operation("aten::mm", 1_700_000_000_000_000, 5))
    path.write_text(f'{{"traceEvents": [{unix}, {{')
    assert bases(decode(path)) == (1_700_000_000_000_000_000, {"cut_off": 1})


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
def test_base_times_of_any_type_are_used(tmp_path: Path, written: str, used: int) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        f'{{"baseTimeNanoseconds": {written}, "traceEvents": [{json.dumps(EVENTS[0])}]}}'
    )
    assert bases(decode(path)) == (1500 + used, {})


@pytest.mark.parametrize(
    "written",
    [
        *("-5", '"-5"', "1.5", '"soon"', "true", "[]", "{}", "1e400", "1e30"),
        *(str(2**63), str(2**64 - 1), str(2**63 - 2000)),
    ],
)
def test_an_invalid_base_time_is_counted_and_ignored(tmp_path: Path, written: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        f'{{"baseTimeNanoseconds": {written}, "traceEvents": [{json.dumps(EVENTS[0])}]}}'
    )
    start, anomalies = bases(decode(path))
    assert start == 1500
    assert anomalies["unusable_base_time"] == 1
