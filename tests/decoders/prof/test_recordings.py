"""Decoded tables hold exactly the rows that a recording was generated from."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.prof.compare import assert_same_rows
from tests.decoders.prof.memory_sink import MemorySink, with_tasks
from tests.prof_generator import COUNTERS, HOST_USAGE, Recipe, Recording, generate
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording

# Tables whose rows the generator does not predict.
_NOT_PREDICTED = set(
    "COMMUNICATION_OP COMMUNICATION_TASK_INFO HOST_INFO NPU_INFO OVERLAP_ANALYSIS"
    " RANK_DEVICE_MAP SAMPLE_PMU_SUMMARY UPROF_GPU_DEVICES".split()
)


def check_tables(recording: Recording) -> MemorySink:
    sink = MemorySink()
    decode_recording(ProfDirectory(recording.path), sink)
    tables = with_tasks(sink.tables())
    assert set(recording.tables) == set(tables) - _NOT_PREDICTED
    for name, expected in recording.tables.items():
        actual = tables[name]
        if name.endswith(
            "TASK_PMU_INFO"
        ):  # The generator predicts counters that no formula changes.
            predicted = np.isin(actual["name"], expected["name"]) & (actual["value"] != 0)
            actual = {column: values[predicted] for column, values in actual.items()}
        assert_same_rows(name, expected, actual)
    return sink


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("layout_version", ["1.0", "2.0"])
@pytest.mark.parametrize(
    ("platform", "pmu"),
    [
        (5, "Custom"),
        (7, "Memory"),
        (1, "Custom"),
        (4, "Memory"),
        (15, "PipeUtilization"),
        (15, "Custom"),
    ],
)
def test_recording_with_everything_is_decoded_completely(
    platform: int, pmu: str, layout_version: str, tmp_path: Path
) -> None:
    recipe = Recipe(
        seed=platform, platform=platform, layout_version=layout_version, devices=(0, 3),
        operators=25, mix_share=0.3, copies=4, collectives=2, marks=3, allocations=3, pmu=pmu,
        frequency_changes=3, samples=5, counters=COUNTERS, host_usage=HOST_USAGE,
        host_slice_records=7, device_slice_bytes=999,
    )  # fmt: skip
    sink = check_tables(generate(tmp_path, recipe))
    # One in four system call names is unknown; no chip has tables of all counters.
    assert set(sink.anomalies) == {"os_call_not_listed", "not_evaluated_on_platform"}


@pytest.mark.parametrize("platform", [1, 5, 7, 15])
def test_sampled_core_counters_are_decoded(platform: int, tmp_path: Path) -> None:
    pmu = "PipeUtilization" if platform == 15 else "Memory"
    check_tables(generate(tmp_path, Recipe(platform=platform, sample_pmu=pmu, samples=9)))


def test_host_recording_without_device_is_decoded(tmp_path: Path) -> None:
    recipe = Recipe(host_only=True, described=True, samples=4, host_usage=HOST_USAGE, marks=2)
    check_tables(generate(tmp_path, recipe))


@pytest.mark.parametrize(("name", "platform"), [("qos", 15), ("nic", 15), ("hccs", 7)])
def test_counters_without_a_table_on_the_platform_are_counted(
    name: str, platform: int, tmp_path: Path
) -> None:
    recipe = Recipe(platform=platform, operators=1, samples=3, counters=(name,))
    recording = generate(tmp_path, recipe)
    sink = MemorySink()
    decode_recording(ProfDirectory(recording.path), sink)
    assert name.upper() not in sink.tables()
    assert sink.anomalies["not_evaluated_on_platform"] == 1


def test_equal_recipes_generate_equal_bytes(tmp_path: Path) -> None:
    recipe = Recipe(seed=3, mix_share=0.5, pmu="Memory", samples=3, counters=COUNTERS)
    first, second = (generate(tmp_path / name, recipe) for name in ("a", "b"))
    files = sorted(p.relative_to(first.path) for p in first.path.rglob("*") if p.is_file())
    assert files
    assert all((first.path / f).read_bytes() == (second.path / f).read_bytes() for f in files)


RECIPES = st.builds(
    Recipe,
    seed=st.integers(0, 10**6),
    platform=st.sampled_from([5, 5, 5, 7, 1, 4, 15]),
    layout_version=st.sampled_from(["1.0", "2.0"]),
    devices=st.sampled_from([(0,), (2,), (0, 1)]),
    operators=st.integers(0, 40),
    threads=st.integers(1, 3),
    streams=st.integers(1, 3),
    described=st.booleans(),
    mix_share=st.sampled_from([0.0, 0.5]),
    copies=st.integers(0, 3),
    collectives=st.integers(0, 2),
    marks=st.integers(0, 3),
    allocations=st.integers(0, 3),
    tasks_before_wrap=st.sampled_from([3, 7, 65_535]),
    pmu=st.sampled_from(["", "Custom"]),
    frequency_changes=st.integers(0, 4),
    samples=st.integers(2, 6),
    counters=st.lists(st.sampled_from(COUNTERS), max_size=4, unique=True).map(tuple),
    host_usage=st.lists(st.sampled_from(HOST_USAGE), max_size=2, unique=True).map(tuple),
    ended=st.booleans(),
    host_mhz=st.sampled_from([0, 24, 48, 100]),
    device_mhz=st.sampled_from([48, 50, 1000]),
    counter_offset=st.sampled_from([0, 0, 12_347]),
    host_slice_records=st.sampled_from([0, 1, 5]),
    device_slice_bytes=st.sampled_from([97, 1000, 2 << 20]),
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(RECIPES)
def test_any_recording_is_decoded_completely(recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_tables(generate(Path(folder), recipe))
