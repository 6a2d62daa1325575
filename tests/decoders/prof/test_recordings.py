"""Decoded tables hold exactly the rows that a recording was generated from."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.test_report import uprof
from tests.decoders.prof.compare import assert_same_rows
from tests.decoders.prof.memory_sink import MemorySink, with_tasks
from tests.prof_generator import COUNTERS, HOST_USAGE, Recipe, Recording, generate
from tests.prof_generator.encode import records, write_file
from tests.prof_generator.timing import Timing
from tests.sql import execute
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.recording import decode_recording, write_coverage

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


@pytest.mark.quick(cases=5)
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


def test_samples_with_another_number_of_counters_are_counted(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(platform=1, sample_pmu="Memory", samples=9)).path
    file = path / "device_0" / "data" / "aicore.data.0.slice_0"
    rows = np.fromfile(file, record_type("aicore_sample"))
    rows["count_num"][[0, 4]] = 7, 9
    file.write_bytes(rows.tobytes())
    sink = MemorySink()
    decode_recording(ProfDirectory(path), sink)
    assert sink.anomalies == {"damaged_pmu_sample": 2}
    assert "SAMPLE_PMU_SUMMARY" in sink.tables()


def test_host_recording_without_device_is_decoded(tmp_path: Path) -> None:
    recipe = Recipe(host_only=True, described=True, samples=4, host_usage=HOST_USAGE, marks=2)
    check_tables(generate(tmp_path, recipe))


def coverage_of(path: Path) -> dict[str, int]:
    sink = MemorySink()
    write_coverage(ProfDirectory(path), sink)
    found = sink.tables()["UPROF_COVERAGE"]
    return dict(zip(found["kind"].tolist(), found["total"].tolist(), strict=True))


def test_what_msprof_left_in_a_recording_is_not_part_of_it(tmp_path: Path) -> None:
    recording = generate(tmp_path, Recipe(operators=3, devices=(0, 1), copies=2))
    path = recording.path
    before, sizes = check_tables(recording), coverage_of(path)
    for part in ("host", "device_0", "device_1"):
        for file in list((path / part / "data").iterdir()):
            file.with_name(f"{file.name}.complete").touch()
        for folder in ("sqlite", "timeline", "summary", "log", "query"):
            (path / part / folder).mkdir()
            (path / part / folder / "runtime.db").write_bytes(b"SQLite format 3\0" * 64)
    for folder in ("mindstudio_profiler_output", "mindstudio_profiler_log", "analyze"):
        (path / folder).mkdir()
        (path / folder / "msprof_20260101000000.json").write_text("[]")
    after = check_tables(recording)
    assert after.anomalies == before.anomalies
    assert coverage_of(path) == sizes


def test_several_recordings_in_a_directory_are_converted_apart(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    recordings = [generate(folder, Recipe(seed=seed, operators=seed)) for seed in (2, 5)]
    (folder / "mindstudio_profiler_output").mkdir()
    (folder / "mindstudio_profiler_output" / "op_summary_1.csv").write_text("Device_id\n0\n")
    done = uprof("convert", folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for recording in recordings:
        (database,) = (tmp_path / "out" / recording.path.name).glob("msprof_*.db")
        ((tasks,),) = execute(database, "SELECT count(*) FROM TASK")
        assert tasks == recording.recipe.operators


def test_phases_of_dynamic_profiling_are_decoded(tmp_path: Path) -> None:
    # A profiler that was attached and detached twice: its calls mark the phases, and the host
    # part has no end because the process runs on.
    recording = generate(tmp_path, Recipe(operators=4, marks=2, ended=False))
    file = recording.path / "host/data/unaging.api_event.data.slice_7"
    at = Timing(recording.recipe).host_ticks([10_000, 20_000, 30_000, 40_000])
    part = records(
        "api_event", 4, magic=HOST_MAGIC, level=20000, type=[27, 28, 27, 28], thread_id=77,
        begin=at, end=at + 100, item_id=0,
    )  # fmt: skip
    write_file(file, part.tobytes())
    sink = MemorySink()
    decode_recording(ProfDirectory(recording.path), sink)
    calls = sink.tables()["CANN_API"]
    phases = calls["globalTid"] & 0xFFFFFFFF == 77
    assert calls["name"][phases].tolist() == ["DYNAMIC_ENABLE", "DYNAMIC_DISABLE"] * 2
    assert np.array_equal(np.diff(calls["startNs"][phases]), [10_000] * 3)
    assert len(sink.tables()["TASK"]["taskId"]) == 4


@pytest.mark.parametrize(("name", "platform"), [("qos", 15), ("nic", 15), ("hccs", 7)])
def test_counters_without_a_table_are_counted(name: str, platform: int, tmp_path: Path) -> None:
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
