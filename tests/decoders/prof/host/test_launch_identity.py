"""Tasks and collectives are identified by device, context and name, also if the name has id 0."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from unified_prof.arrays.grouping import NOWHERE
from unified_prof.base.columns import COPY_OTHER, NO_CONTEXT
from unified_prof.decoders.prof.collectives import CommunicationWriter, Steps
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.host_events import (
    LAUNCH,
    SIZES,
    HostTasks,
    Launches,
    TaskTypes,
    copies_of,
    launches_of,
)
from unified_prof.decoders.prof.host_records import Contexts
from unified_prof.decoders.prof.host_side import STEP
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.recording import decode_recording

TYPES = TaskTypes(("KERNEL_AIVEC", "FFTS_PLUS", "EVENT_RECORD"))
KERNEL, GRAPH, EVENT = range(3)


def host_tasks(*, node: list[int], communication: list[int], kind: list[int]) -> HostTasks:
    """Return launches on device 0, numbered from 0 in stream 1."""
    none = HostTasks.from_rows(np.zeros(0, LAUNCH), np.zeros(0, np.uint32))
    count = len(node)
    blank = {
        field.name: np.zeros((count, *getattr(none, field.name).shape[1:]), column.dtype)
        for field in fields(none)
        for column in (getattr(none, field.name),)
    }
    return replace(
        HostTasks(**blank),
        stream_id=np.ones(count, np.uint16),
        task_id=np.arange(count, dtype=np.uint32),
        type_index=np.array(kind, np.uint16),
        node=np.array(node, np.int32),
        communication=np.array(communication, np.int32),
    )


def contexts(row: int, *ids: int) -> Contexts:
    """Return a record that the call in `row` consists of these contexts."""
    return Contexts(np.array([row]), np.array([0]), np.array([len(ids)]), np.array(ids, np.uint32))


def identities(launches: Launches) -> set[tuple[int, int, bool]]:
    """Return (task, context, true for the placeholder of contexts) of launches."""
    columns = (launches.task, launches.context_id, launches.placeholder)
    return {(int(t), int(c), bool(p)) for t, c, p in zip(*columns, strict=True)}


@pytest.mark.parametrize("wide", [False, True])
def test_launch_in_a_collective_has_the_contexts_of_the_collective(wide: bool) -> None:
    tasks = host_tasks(node=[2, 2, 2], communication=[5, NOWHERE, 5], kind=[GRAPH, GRAPH, EVENT])
    found = launches_of(tasks, 0, TYPES, contexts(2, 7), contexts(5, 3, 4), wide_task_ids=wide)
    whole = {(0, NO_CONTEXT, True), (2, NO_CONTEXT, False)}
    # The second launch is in no collective and has the contexts of its operator.
    second = {(1, NO_CONTEXT, False)} if wide else {(1, NO_CONTEXT, True), (1, 7, False)}
    assert identities(found) == whole | second | {(0, 3, False), (0, 4, False)}


def test_node_numbers_are_not_collective_numbers() -> None:
    tasks = host_tasks(node=[5], communication=[NOWHERE], kind=[KERNEL])
    found = launches_of(tasks, 0, TYPES, contexts(9, 1), contexts(5, 3), wide_task_ids=False)
    assert identities(found) == {(0, NO_CONTEXT, False)}


def test_collectives_of_all_devices_have_different_ids(tmp_path: Path) -> None:
    recording = generate(tmp_path, Recipe(devices=(0, 3), operators=4, collectives=5))
    sink = MemorySink()
    decode_recording(ProfDirectory(recording.path), sink)
    tables = sink.tables()
    operators = tables["COMMUNICATION_OP"]
    ids = operators["opId"].tolist()
    assert len(ids) >= 10
    assert sorted(ids) == list(range(len(ids)))
    assert set(operators["deviceId"].tolist()) == {0, 3}
    device_of_task = dict(
        zip(tables["TASK"]["globalTaskId"].tolist(), tables["TASK"]["deviceId"], strict=True)
    )
    device_of = dict(zip(ids, operators["deviceId"].tolist(), strict=True))
    steps = tables["COMMUNICATION_TASK_INFO"]
    for op, task in zip(steps["opId"].tolist(), steps["globalTaskId"].tolist(), strict=True):
        assert device_of[op] == device_of_task[task]


def test_repeated_launch_records_are_dropped(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=6)).path
    first, again = MemorySink(), MemorySink()
    decode_recording(ProfDirectory(path), first)
    (file,) = (path / "host" / "data").glob("*compact.task_track.slice_*[0-9]")
    records = file.read_bytes()
    file.write_bytes(records + records[: 2 * record_type("task_track").itemsize])
    decode_recording(ProfDirectory(path), again)
    assert again.anomalies["repeated_launch"] == 2
    for table, columns in first.tables().items():
        for name, values in columns.items():
            assert values.tolist() == again.tables()[table][name].tolist(), (table, name)


def test_collective_interrupted_by_another_thread_is_one_operator(tmp_path: Path) -> None:
    """The vendor's exporter splits the first call; see docs/validation.md."""
    host = ProfDirectory(generate(tmp_path, Recipe()).path).host
    assert host is not None
    clock = host.clocks.host
    records = np.zeros(5, STEP)
    records["node"] = [0, 0, 1, 0, 0]  # Another thread's call launched the third task.
    records["has_task"] = records["master"] = True
    records["task"]["group_name"] = 77
    ticks = np.arange(5, dtype=np.uint64) * np.uint64(100) + np.uint64(
        host.clocks.host_origin_ticks
    )
    later = ticks + np.uint64(50)
    steps = Steps(records, clock.to_ns(ticks), clock.to_ns(later), np.arange(5), ticks, later)
    sink = MemorySink()
    CommunicationWriter(host, sink).write(0, steps, clock)
    tables = sink.tables()
    assert tables["COMMUNICATION_OP"]["startNs"].tolist() == steps.start_ns[[0, 2]].tolist()
    assert tables["COMMUNICATION_OP"]["endNs"].tolist() == steps.end_ns[[4, 2]].tolist()
    assert tables["COMMUNICATION_TASK_INFO"]["opId"].tolist() == [0, 0, 1, 0, 0]


def test_task_types_do_not_depend_on_string_id_0(tmp_path: Path) -> None:
    recording = generate(tmp_path, Recipe(operators=12))
    first, again = MemorySink(), MemorySink()
    decode_recording(ProfDirectory(recording.path), first)
    types = first.tables()["TASK"]["taskType"].tolist()
    for text in sorted(set(types)):
        again = MemorySink()
        assert again.strings.intern(text) == 0
        decode_recording(ProfDirectory(recording.path), again)
        assert again.tables()["TASK"]["taskType"].tolist() == types, text


@given(st.integers(0, 5), st.integers(0, 12), st.integers(1, 4), st.integers(0, 9))
def test_copies_share_the_largest_size(most: int, total: int, count: int, direction: int) -> None:
    tasks = host_tasks(
        node=[0] * (count + 1), communication=[0] * (count + 1), kind=[0] * count + [1]
    )
    tasks.key[:] = 5
    sizes = np.zeros(1, SIZES)
    sizes["key"] = 5
    for field, value in (("max_size", most), ("data_size", total), ("direction", direction)):
        sizes["record"][field] = value
    expected = []
    for number in range(count):
        size = min(max(total - number * most, 0), most)
        expected.append((number, size, direction if size and direction < 8 else COPY_OTHER))
    types = TaskTypes(("MEMCPY_ASYNC", "KERNEL_AIVEC"))
    found = copies_of(tasks, 0, types, sizes, wide_task_ids=False)
    assert found[["task_id", "size", "operation"]].tolist() == expected
    for device, size_key, copies in ((0, 4, count), (0, 6, count), (1, 5, 0)):
        sizes["key"] = size_key
        without = copies_of(tasks, device, types, sizes, wide_task_ids=False)
        assert without[["size", "operation"]].tolist() == [(0, COPY_OTHER)] * copies
