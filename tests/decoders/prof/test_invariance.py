"""Decoded rows do not depend on how the files are split into slices, blocks and windows."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import COUNTERS, HOST_USAGE, Recipe, generate
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.layouts import RecordType
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.decoders.prof.slices import RawFile, Records, Workspace

Rows = dict[str, Counter[tuple[Any, ...]]]

RECIPES = st.builds(
    Recipe,
    seed=st.integers(0, 10**6),
    platform=st.sampled_from([5, 5, 5, 7, 1, 15]),
    layout_version=st.sampled_from(["1.0", "2.0"]),
    devices=st.just((0, 3)),
    operators=st.integers(1, 30),
    threads=st.just(2),
    mix_share=st.just(0.4),
    copies=st.just(3),
    collectives=st.just(2),
    marks=st.just(3),
    allocations=st.just(3),
    tasks_before_wrap=st.sampled_from([5, 65_535]),
    pmu=st.just("Custom"),
    frequency_changes=st.just(3),
    samples=st.just(6),
    counters=st.just(COUNTERS),
    host_usage=st.just(HOST_USAGE),
)


def rows(recording: Path, workspace: Workspace | None = None) -> Rows:
    sink = MemorySink()
    decode_recording(ProfDirectory(recording), sink, workspace=workspace)
    tables = sink.tables()
    calls = tables.pop("CANN_API")
    call_columns = ("startNs", "endNs", "type", "globalTid", "name")
    call_rows = list(zip(*(calls[name].tolist() for name in call_columns), strict=True))
    # Connection ids of calls are arbitrary; compare the calls that they join.
    call = dict(zip(calls["connectionId"].tolist(), call_rows, strict=True))
    result: Rows = {"CANN_API": Counter(call_rows)}
    for name, columns in tables.items():
        values = {column: columns[column].tolist() for column in sorted(columns)}
        if "connectionId" in values:
            values["connectionId"] = [call.get(number, number) for number in values["connectionId"]]
        result[name] = Counter(zip(*values.values(), strict=True))
    return result


def assert_same(expected: Rows, found: Rows) -> None:
    assert set(found) == set(expected)
    for name in expected:
        assert found[name] == expected[name], name


@pytest.mark.slow
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    recipe=RECIPES,
    piece_bytes=st.integers(1, 3000),
    slice_bytes=st.integers(20, 3000),
    slice_records=st.integers(1, 9),
)
def test_tables_do_not_depend_on_blocks_and_slices(
    recipe: Recipe, piece_bytes: int, slice_bytes: int, slice_records: int
) -> None:
    read_pieces = RawFile.pieces

    def in_pieces(
        file: RawFile, record: RecordType, _: int = 0, *, magic: int | None = None
    ) -> Iterator[Records]:
        return read_pieces(file, record, piece_bytes, magic=magic)

    sliced = replace(recipe, device_slice_bytes=slice_bytes, host_slice_records=slice_records)
    with tempfile.TemporaryDirectory() as folder:
        recording = generate(Path(folder) / "whole", recipe).path
        expected = rows(recording)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RawFile, "pieces", in_pieces)
            assert_same(expected, rows(recording))
        assert_same(expected, rows(generate(Path(folder) / "sliced", sliced).path))


@pytest.mark.slow
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    recipe=RECIPES,
    workspace=st.builds(
        Workspace,
        window_rows=st.sampled_from([1, 2, 7, 40, 300]),
        run_bytes=st.sampled_from([1, 100, 1500, 20_000]),
    ),
)
def test_tables_do_not_depend_on_windows(recipe: Recipe, workspace: Workspace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recording = generate(Path(folder), recipe).path
        assert_same(rows(recording), rows(recording, workspace))
