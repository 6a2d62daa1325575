"""Counters of tasks: their task, the blocks that a MIX adds up, the time of the task."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import Records, concatenated, records, write_file
from unified_prof.base.columns import NO_CONTEXT
from unified_prof.decoders.prof.directory import DeviceDirectory, ProfDirectory
from unified_prof.decoders.prof.pmu_records import (
    BlockCounters,
    MixBlocks,
    TaskCounters,
    decode_task_pmu,
)
from unified_prof.decoders.prof.pmu_tables import CoreKind
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.decoders.prof.task_join import DeviceTasks
from unified_prof.decoders.prof.task_log import Flips, IdCounter, TaskStreams, pack_keys

STREAM = 7


def device_with(tmp_path: Path, pmu: Records, **options: object) -> DeviceDirectory:
    """Return a device whose only data are these PMU records, at 1500 MHz with 20 AIC cores."""
    recipe = Recipe(operators=0, pmu="Custom", **options)  # type: ignore[arg-type]
    folder = generate(tmp_path, recipe).path / "device_0"
    (folder / "data" / "ffts_profile.data.0.slice_0").write_bytes(pmu.tobytes())
    return DeviceDirectory(folder, 0)


def tasks_of(*task_ids: int, blocks: int = 0, context: int = NO_CONTEXT) -> DeviceTasks:
    ids = np.array(task_ids, np.uint32)
    none = np.zeros(len(ids), np.uint32)
    key = pack_keys(none + STREAM, ids, none, none + np.uint32(context), wide_task_ids=False)
    blocks_of, slots = none + np.uint32(blocks), TaskStreams.none()
    keys, numbers = np.sort(key), np.full(len(ids), -1)
    return DeviceTasks(
        IdCounter(), Flips.none(), False, False, keys, numbers, blocks_of, none, None, slots
    )


def task_records(task_id: int, **fields: object) -> Records:
    plain = {"w0": 40, "stream_id": STREAM, "task_id": task_id, "total_cycle": 3000}
    return records("ffts_context_pmu", 1, **plain | fields)  # type: ignore[arg-type]


def metrics(device: DeviceDirectory, tasks: DeviceTasks) -> tuple[dict[str, float], MemorySink]:
    sink = MemorySink()
    decode_task_pmu(device, tasks, sink)
    table = sink.tables().get("TASK_PMU_INFO")
    rows = {} if table is None else dict(zip(table["name"], table["value"].tolist(), strict=True))
    return rows, sink


def test_task_has_metrics_of_both_kinds_of_cores(tmp_path: Path) -> None:
    pmu = task_records(1, pmu=[5, 6, 7, 0, 0, 0, 0, 0])
    found, _ = metrics(device_with(tmp_path, pmu), tasks_of(1, blocks=10))
    assert found == {
        "aic_total_time": 200.0, "aic_total_cycles": 3000, "aic_r8": 5, "aic_ra": 6, "aic_r500": 7,
        "aiv_total_time": 0, "aiv_total_cycles": 0, "aiv_r8": 0, "aiv_ra": 0, "aiv_r500": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "aic", "aiv"), [("AIC", 5, 0), ("AIV", 0, 5), ("MIX_AIC", 5, 0), ("MIX_AIV", 0, 5)]
)
def test_subtask_counters_are_its_main_cores(tmp_path: Path, kind: str, aic: int, aiv: int) -> None:
    number = {"AIC": 0, "AIV": 1, "MIX_AIC": 6, "MIX_AIV": 7}[kind]
    pmu = task_records(1, ffts_type_word=4 << 13, subtask_word=number, pmu=[5, *[0] * 7])
    found, _ = metrics(device_with(tmp_path, pmu), tasks_of(1, blocks=10, context=0))
    assert (found["aic_r8"], found["aiv_r8"]) == (aic, aiv)


@pytest.mark.parametrize(
    ("blocks", "time_ns"), [(1, 2000), (20, 100), (21, 190), (40, 100), (0, 0)]
)
def test_time_is_that_of_the_rounds_needed(blocks: int, time_ns: float, tmp_path: Path) -> None:
    """3000 cycles at 1500 MHz are 2 us of block time; custom metrics round to 10 ns."""
    found, _ = metrics(device_with(tmp_path, task_records(1)), tasks_of(1, blocks=blocks))
    assert found["aic_total_time"] == pytest.approx(time_ns)


def test_frequency_is_that_at_the_end_of_the_task(tmp_path: Path) -> None:
    """The generated device changes to 1200 MHz at counter 3000060000."""
    pmu = task_records(1, start=3_000_000_000, end=3_000_070_000)
    device = device_with(tmp_path, pmu, frequency_changes=1)
    found, _ = metrics(device, tasks_of(1, blocks=1))
    assert found["aic_total_time"] == pytest.approx(2500)


def test_counters_without_a_task_log_are_counted(tmp_path: Path) -> None:
    found, sink = metrics(device_with(tmp_path, task_records(2)), tasks_of(1))
    assert not found
    assert sink.anomalies == {"pmu_without_task": 1}


def test_impossible_values_are_counted(tmp_path: Path) -> None:
    overflow = task_records(1, subtask_word=1 << 10)
    unknown_record, unknown_task = task_records(1, w0=13), task_records(1, ffts_type_word=7 << 13)
    pmu = concatenated([overflow, unknown_record, unknown_task])
    _, sink = metrics(device_with(tmp_path, pmu), tasks_of(1))
    names = ("pmu_counter_overflow", "pmu_unknown_record", "pmu_unknown_task_kind")
    assert sink.anomalies == dict.fromkeys(names, 1)


def test_unknown_metrics_are_reported(tmp_path: Path) -> None:
    device = device_with(tmp_path, task_records(1))
    path = device.path / "sample.json"
    path.write_text(path.read_text().replace("Custom:", "Novel:"))
    _, sink = metrics(DeviceDirectory(device.path, 0), tasks_of(1))
    assert sink.anomalies == {"unknown_pmu_metrics": 1}


def test_metrics_of_uncounted_events_are_reported(tmp_path: Path) -> None:
    device = device_with(tmp_path, task_records(1))
    path = device.path / "sample.json"
    path.write_text(path.read_text().replace("Custom:0x8,0xa,0x500", "PipeUtilization"))
    found, sink = metrics(DeviceDirectory(device.path, 0), tasks_of(1))
    assert {"aic_vec_ratio", "aiv_mac_time"} <= set(found)
    # For both kinds of cores: time and ratio of scalar, mte1, mte2 and mte3, and the misses.
    assert sink.anomalies == {"pmu_metric_not_counted": 2 * 9}


def test_hwts_records_without_a_kernel_are_counted(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(platform=1, operators=2, pmu="Custom")).path
    file = path / "device_0" / "data" / "aicore.data.0.slice_0"
    write_file(file, file.read_bytes() * 2 + records("aicore_task", 1, stream_word=99).tobytes())
    sink = MemorySink()
    decode_recording(ProfDirectory(path), sink)
    assert sink.anomalies["pmu_without_task"] == file.stat().st_size // 128 // 2 + 1


def test_device_without_cores_has_no_task_time() -> None:
    kind = CoreKind("", (), (), cores=0, frequency_mhz=float(Decimal(1000)), rounded=False)
    one = np.ones(1)
    assert kind.time_on_cores_ns(one, one, np.ones(1, np.uint32)).tolist() == [0]


# Tasks and blocks as (key, start, length, core), of few values, so that many overlap.
TASKS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 5), st.integers(0, 1)),
    min_size=1, max_size=8, unique_by=lambda task: task[:2],
)  # fmt: skip
BLOCKS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 4), st.integers(0, 1)),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(TASKS, BLOCKS, st.integers(0, 3), st.integers(1, 30))
def test_blocks_belong_to_the_latest_enclosing_task_with_their_ids(
    tasks: list[tuple[int, int, int, int]],
    blocks: list[tuple[int, int, int, int]],
    limit: int,
    piece: int,
) -> None:
    expected = np.zeros(len(tasks))
    remaining = [limit] * len(tasks)
    for number, (key, start, length, core) in enumerate(blocks, start=1):
        started = [
            (task[1], row) for row, task in enumerate(tasks) if task[0] == key and task[1] <= start
        ]
        if started:
            row = max(started)[1]
            task = tasks[row]
            if start + length <= task[1] + task[2] and core != task[3] and remaining[row]:
                remaining[row] -= 1
                expected[row] += number
    sums = MixBlocks(_counted(tasks), np.full(len(tasks), limit))
    numbers = np.arange(1, len(blocks) + 1, dtype=np.uint64)
    for first in range(0, len(blocks), piece):
        part = blocks[first : first + piece]
        keys, starts, lengths, cores = (np.array(column) for column in zip(*part, strict=True))
        cycles = numbers[first : first + piece]
        sums.add(
            BlockCounters(
                keys.astype(np.uint64), cores, starts.astype(np.uint64),
                (starts + lengths).astype(np.uint64), cycles, np.repeat(cycles[:, None], 8, axis=1),
            )
        )  # fmt: skip
    assert sums.cycles.tolist() == expected.tolist()
    assert sums.counters[:, 3].tolist() == expected.tolist()


def _counted(tasks: list[tuple[int, int, int, int]]) -> TaskCounters:
    key, start, length, core = (np.array(column) for column in zip(*tasks, strict=True))
    counters: NDArray[np.uint64] = np.zeros((len(tasks), 8), np.uint64)
    return TaskCounters(
        task_row=np.arange(len(tasks)),
        block_key=key.astype(np.uint64),
        core=core,
        is_mix=np.ones(len(tasks), bool),
        start=start.astype(np.uint64),
        end=(start + length).astype(np.uint64),
        cycles=np.zeros(len(tasks)),
        counters=counters,
    )
