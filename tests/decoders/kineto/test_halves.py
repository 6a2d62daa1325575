"""A trace that two processes read gives the same tables as one that is read by one process."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import (
    PID,
    TID,
    Event,
    RowSink,
    call,
    complete,
    decode,
    kernel,
    operation,
    write,
)
from unified_prof.decoders.compression import expected_bytes
from unified_prof.decoders.kineto import session
from unified_prof.schema import catalogue, msprof

_NEVER = 1 << 60
_ROUND_US = 1000
# Columns of tables of uprof that have ids of texts.
_UPROF_TEXTS = ("name", "category", "kind", "operation", "inputStrides", "concreteInputs")


def round_of(number: int) -> Iterator[Event]:
    """Return events of every kind at one step; names and shapes change with the step."""
    at, device = number * _ROUND_US, {"pid": 0, "tid": 7}
    shapes = {"Input Dims": [[number % 7, 3]], "Input type": ["float"], "External id": number}
    stack = f"inner.py({number % 5}): g;outer.py(1): f"
    yield operation(f"aten::op{number % 9}", at, 20, args=shapes | {"Call stack": stack})
    yield operation(
        "record_param_comms", at + 21, 2, args={"Collective name": "allreduce"} | shapes
    )
    yield complete("user_annotation", f"ProfilerStep#{number}", at, 990)
    yield complete("python_function", f"a.py({number % 4}): f", at, 90)
    yield complete("python_gc", "collect", at + 22, 1, tid=TID + number % 3)
    yield call(at + 2, 1, number)
    grid = {"grid": [number % 6 + 1, 1, 1]}
    yield kernel(at + 30, 2, number, name=f"gemm{number % 8}", args=grid)
    yield complete("gpu_user_annotation", f"note{number % 3}", at + 30, 9, **device)
    sync = {"stream": 7, "correlation": number, "cuda_sync_kind": f"kind{number % 2}"}
    yield complete("cuda_sync", "Stream Sync", at + 50, 1, **device, args=sync)
    memory = {"Bytes": 8, "Addr": number, "Device Id": 0, "Device Type": 1, "Total Allocated": 8}
    instant: Event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "pid": PID, "tid": TID}
    yield instant | {"name": "[memory]", "ts": at + 3, "args": memory}
    yield instant | {
        "name": f"mark{number % 2}",
        "ts": at + 4,
        "args": {"text": "x" * (number % 9)},
    }
    yield complete("overhead", f"flush{number % 3}", at + 60, 1, args={"number": number})


def events(rounds: int = 60) -> list[Event]:
    return [event for number in range(1, rounds + 1) for event in round_of(number)]


def resolved(sink: RowSink) -> dict[str, list[str]]:
    """Return all rows as text, with texts in place of their ids."""
    texts = [text for _, part in sink.strings.batches(1 << 30) for text in part]
    revision = catalogue.resolve(catalogue.MSPROF, "latest")
    columns = {
        (one.table, one.column)
        for one in msprof.references(revision)
        if one.target_table == "STRING_IDS"
    }

    def shown(table: str, name: str, value: Any) -> Any:
        is_id = (table, name) in columns or (table.startswith("UPROF_") and name in _UPROF_TEXTS)
        return texts[value] if is_id and type(value) is int and value >= 0 else value

    return {
        table: [
            repr({name: shown(table, name, value) for name, value in row.items()}) for row in rows
        ]
        for table, rows in sink.tables.items()
    }


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the results of `SecondHalf.add_to`; two processors are assumed."""
    results: list[bool] = []
    original = session.SecondHalf.add_to

    def add_to(self: session.SecondHalf, *args: Any) -> bool:
        results.append(original(self, *args))
        return results[-1]

    monkeypatch.setattr(session.SecondHalf, "add_to", add_to)
    monkeypatch.setattr(session, "processors", lambda: 2)
    return results


def both(path: Path, slice_bytes: int = 3000) -> tuple[RowSink, RowSink]:
    """Return what one process and two processes read."""
    alone, divided = (
        decode(path, slice_bytes=slice_bytes, divided_from_bytes=size) for size in (_NEVER, 0)
    )
    return alone, divided


def assert_equal(alone: RowSink, divided: RowSink) -> None:
    assert resolved(divided) == resolved(alone)
    assert (divided.anomalies, divided.details) == (alone.anomalies, alone.details)


@pytest.mark.slow
def test_two_processes_read_the_same_rows(added: list[bool], tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", events(), deviceProperties=[{"id": 0, "name": "X"}])
    alone, divided = both(path)
    assert added == [True]
    assert len(alone.tables["PYTORCH_API"]) > 60
    assert_equal(alone, divided)


@pytest.mark.slow
def test_two_processes_read_the_rows_of_recorded_traces(added: list[bool], shared: Path) -> None:
    found = sorted((shared / "samples" / "kineto").glob("*.json.gz"))
    traces = [trace for trace in found if trace.stat().st_size < 30_000]
    for trace in traces:
        assert_equal(*both(trace, slice_bytes=1 << 18))
    assert added == [True] * len(traces)


@pytest.mark.slow
def test_compressed_trace_is_divided(added: list[bool], tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", events())
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert expected_bytes(packed) == expected_bytes(path) == path.stat().st_size
    assert_equal(*both(packed))
    assert added == [True]


def test_trace_that_ends_early_is_divided(added: list[bool], tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", events())
    path.write_bytes(path.read_bytes()[:-300])
    alone, divided = both(path)
    assert alone.anomalies["cut_off"] == 1
    assert_equal(alone, divided)
    assert added == [True]


def test_list_of_events_is_divided(added: list[bool], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events()))
    assert_equal(*both(path))
    assert added == [True]


def begin_and_end(among: list[Event]) -> list[Event]:
    place = {"cat": "cpu_op", "name": "long", "pid": PID, "tid": 9}
    return [{"ph": "B", "ts": 1, **place}, *among, {"ph": "E", "ts": 10**6, **place}]


def merged(among: list[Event]) -> list[Event]:
    return [event | {"pid": f"[R0] {event['pid']}"} for event in among]


def long_ids(among: list[Event]) -> list[Event]:
    return [event | {"tid": 1 << 40} for event in among]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("change", [begin_and_end, merged, long_ids])
def test_half_that_depends_on_the_first_is_read_by_one_process(
    change: Callable[[list[Event]], list[Event]], added: list[bool], tmp_path: Path
) -> None:
    path = write(tmp_path / "trace.json", change(events()))
    assert_equal(*both(path))
    assert added == [False]


@pytest.mark.parametrize(("as_text", "expected"), [(True, [True]), (False, [])])
def test_middle_that_looks_like_an_end_of_events(
    as_text: bool, expected: list[bool], added: list[bool], tmp_path: Path
) -> None:
    # In a text, keys are escaped; in a list within an event, the first half cannot be decoded.
    inner = events(80)
    argument = json.dumps(inner)[1:-1] if as_text else inner
    odd = operation("odd", 60_500, 1, args={"Call stack": argument})
    path = write(tmp_path / "trace.json", [*events(), odd, *events()[:5]])
    assert_equal(*both(path, slice_bytes=2 << 20))
    assert added == expected


def test_dead_process_is_replaced(
    added: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_MAIN", "import os; os._exit(9)")
    assert_equal(*both(write(tmp_path / "trace.json", events())))
    assert added == [False]


def test_small_traces_and_single_processors_take_one_process(
    added: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "trace.json", events(3))
    decode(path)
    monkeypatch.setattr(session, "processors", lambda: 1)
    decode(path, divided_from_bytes=0)
    assert added == []


def test_function_that_cannot_be_pickled_is_one_process(added: list[bool], tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", events(3))
    sink = decode(path, divided_from_bytes=0, is_outside=lambda frame: False)
    assert sink.tables["PYTORCH_API"]
    assert added == []
