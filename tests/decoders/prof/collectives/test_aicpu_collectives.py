"""Collectives that AI CPU kernels run: their tasks, and the rows of both."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink, Tables
from tests.prof_generator.aicpu import C_CORE, AicpuProgram
from unified_prof.decoders.prof.aicpu_collectives import Operator, assign_to_operators
from unified_prof.decoders.prof.collectives import FINE_PARTS, bandwidth
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording

KERNEL, FIRST_STREAM, SECOND_STREAM = 45, 51, 52
FIRST, LAST = 0, 1
TICK_NS = 20


@pytest.fixture
def program(tmp_path: Path) -> AicpuProgram:
    return AicpuProgram(tmp_path)


def decode_program(program: AicpuProgram) -> tuple[Tables, Counter[str]]:
    sink = MemorySink()
    decode_recording(ProfDirectory(program.write()), sink)
    return sink.tables(), sink.anomalies


def communication_tasks(tables: Tables) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the rows of COMMUNICATION_TASK_INFO by stream and task."""
    rows = tables.get("COMMUNICATION_TASK_INFO", {"name": np.zeros(0)})
    columns = (tables["TASK"][name].tolist() for name in ("globalTaskId", "streamId", "taskId"))
    all_tasks = {number: (stream, task) for number, stream, task in zip(*columns, strict=True)}
    return {
        all_tasks[int(rows["globalTaskId"][index])]: {
            name: values[index].item() if isinstance(values[index], np.generic) else values[index]
            for name, values in rows.items()
        }
        for index in range(len(rows["name"]))
    }


def add_ring(program: AicpuProgram, name: str = "RingAicpuKernel", *, inside: str = "") -> int:
    """Add a kernel from 1000 to 2000 with four tasks on two streams, the first on the C core."""
    group = program.group("world", KERNEL, (FIRST_STREAM, SECOND_STREAM))
    program.kernel(name, KERNEL, 1, 1000, 2000, inside=inside, group=group)
    for stream, task, begin, sqe in (
        (FIRST_STREAM, 1, 1100, C_CORE),
        (SECOND_STREAM, 1, 1150, 11),
        (FIRST_STREAM, 2, 1300, 11),
        (SECOND_STREAM, 2, 1350, 11),
    ):
        program.task(stream, task, begin, begin + 100, sqe=sqe)
        program.describe(group, stream, task, begin, size_bytes=4000)
    return group


def test_operator_spans_its_master_tasks(program: AicpuProgram) -> None:
    group = add_ring(program)
    tables, anomalies = decode_program(program)
    operator = tables["COMMUNICATION_OP"]
    assert operator["opName"].tolist() == [f"RingAicpuKernel_{str(group)[-3:]}_0_1"]
    assert operator["groupName"].tolist() == ["world Aicpu"]
    assert operator["opType"].tolist() == ["AllReduce"]
    assert (operator["endNs"] - operator["startNs"]).tolist() == [300 * TICK_NS]
    assert operator["relay"].tolist() == operator["retry"].tolist() == [-1]
    kernel = tables["TASK"]["streamId"] == KERNEL
    assert operator["connectionId"].tolist() == tables["TASK"]["connectionId"][kernel].tolist()
    found = communication_tasks(tables)
    assert {key: (row["isMaster"], row["planeId"]) for key, row in found.items()} == {
        (FIRST_STREAM, 1): (1, 0),
        (FIRST_STREAM, 2): (1, 0),
        (SECOND_STREAM, 1): (0, 1),
        (SECOND_STREAM, 2): (0, 1),
    }
    assert {row["opId"] for row in found.values()} == set(operator["opId"].tolist())
    assert {row["bandwidth"] for row in found.values()} == {4000 / (100 * TICK_NS) * 1e9}
    assert not anomalies
    overlap = tables["OVERLAP_ANALYSIS"]
    assert overlap["startNs"][overlap["type"] == 1].tolist() == operator["startNs"].tolist()


def test_operator_without_master_stream_has_tasks_but_no_row(program: AicpuProgram) -> None:
    group = program.group("world", KERNEL, (FIRST_STREAM,))
    program.kernel("RingAicpuKernel", KERNEL, 1, 1000, 2000)
    program.task(FIRST_STREAM, 1, 1100, 1200)
    program.describe(group, FIRST_STREAM, 1)
    tables, _ = decode_program(program)
    assert "COMMUNICATION_OP" not in tables
    (row,) = communication_tasks(tables).values()
    assert (row["isMaster"], row["planeId"]) == (0, 1)


def test_tasks_outside_of_operators_or_unlogged_are_counted(program: AicpuProgram) -> None:
    group = add_ring(program)
    program.task(FIRST_STREAM, 9, 1900, 2001)  # Ends one tick after the kernel.
    program.describe(group, FIRST_STREAM, 9)
    program.describe(group, FIRST_STREAM, 10)
    tables, anomalies = decode_program(program)
    assert (FIRST_STREAM, 9) not in communication_tasks(tables)
    assert anomalies == {"task_outside_collectives": 1, "aicpu_task_not_in_log": 1}


def test_task_without_description_is_left_out(program: AicpuProgram) -> None:
    add_ring(program)
    program.task(FIRST_STREAM, 3, 1500, 1600)
    assert (FIRST_STREAM, 3) not in communication_tasks(decode_program(program)[0])


def test_lowest_level_lists_every_task_of_the_streams(program: AicpuProgram) -> None:
    program.group("world", KERNEL, (FIRST_STREAM,))
    program.kernel("RingAicpuKernel", KERNEL, 1, 1000, 2000)
    program.task(FIRST_STREAM, 1, 1100, 1200, sqe=C_CORE)
    program.task(FIRST_STREAM, 2, 1300, 1400)
    found = communication_tasks(decode_program(program)[0])
    assert list(found) == [(FIRST_STREAM, 1), (FIRST_STREAM, 2)]
    for row in found.values():
        assert (row["taskType"], row["size"], row["dataType"]) == ("N/A", -1, 65534)
        assert row["planeId"] == 4294967295


def test_recorded_operator_takes_the_row_of_the_host_operator(program: AicpuProgram) -> None:
    group = add_ring(program, inside="hcom_allReduce_")
    program.operator(group, KERNEL, 1, 1010, flags=0b01)
    tables, _ = decode_program(program)
    operator = tables["COMMUNICATION_OP"]
    assert operator["opName"].tolist() == [f"hcom_allReduce__{str(group)[-3:]}_0_1"]
    assert operator["groupName"].tolist() == ["world"]
    assert (operator["relay"].tolist(), operator["retry"].tolist()) == ([1], [0])
    assert (operator["endNs"] - operator["startNs"]).tolist() == [40 * TICK_NS], "the kernel's task"
    found = communication_tasks(tables)
    assert len(found) == 5
    assert {row["name"] for row in found.values()} == set(operator["opName"].tolist())
    assert {row["opId"] for row in found.values()} == set(operator["opId"].tolist())
    assert {key: row["planeId"] for key, row in found.items() if key[0] == FIRST_STREAM} == {
        (FIRST_STREAM, 1): 2,
        (FIRST_STREAM, 2): 1,
    }


def test_recorded_operator_unknown_to_the_host_has_no_row(program: AicpuProgram) -> None:
    group = add_ring(program)
    program.operator(group, KERNEL, 1, 1010)
    tables, _ = decode_program(program)
    assert "COMMUNICATION_OP" not in tables
    rows = tables["COMMUNICATION_TASK_INFO"]
    assert set(rows["groupName"].tolist()) == {"world"}
    assert len(set(rows["opId"].tolist())) == 1


def test_operator_of_an_unnamed_group_has_no_tasks(program: AicpuProgram) -> None:
    add_ring(program)
    program.operator(12345, KERNEL, 1, 1010)
    tables, anomalies = decode_program(program)
    assert "COMMUNICATION_TASK_INFO" not in tables
    assert anomalies["task_outside_collectives"] == 4


def test_operator_lasts_from_its_first_to_its_last_task(program: AicpuProgram) -> None:
    group = add_ring(program)
    program.operator(group, KERNEL, 1, 1010)
    program.bound((KERNEL, 1), (FIRST_STREAM, 1), 1020, FIRST)
    program.bound((KERNEL, 1), (FIRST_STREAM, 2), 1021, LAST)
    found = communication_tasks(decode_program(program)[0])
    assert {key: (row["isMaster"], row["planeId"]) for key, row in found.items()} == {
        (FIRST_STREAM, 1): (0, 1),  # May have waited since before the operator.
        (FIRST_STREAM, 2): (1, 1),
        (SECOND_STREAM, 1): (0, 2),
        # The second task of the other stream ends after the last task of this one.
    }


def test_last_task_without_description_does_not_end_the_operator(program: AicpuProgram) -> None:
    group = add_ring(program)
    program.task(FIRST_STREAM, 7, 1500, 1600)
    program.operator(group, KERNEL, 1, 1010)
    program.bound((KERNEL, 1), (FIRST_STREAM, 1), 1020, FIRST)
    program.bound((KERNEL, 1), (FIRST_STREAM, 7), 1021, LAST)
    assert list(communication_tasks(decode_program(program)[0])) == [(FIRST_STREAM, 1)]


def test_operators_of_a_group_are_numbered_by_name(program: AicpuProgram) -> None:
    group = program.group("world", KERNEL, (FIRST_STREAM,))
    for index, name in enumerate(("xAicpuKernel", "plain", "yAicpuKernel", "hcomAicpuInit")):
        begin = 1000 * (index + 1)
        program.kernel(name, KERNEL, index + 1, begin, begin + 500)
        program.task(FIRST_STREAM, index + 1, begin + 100, begin + 200, sqe=C_CORE)
        program.describe(group, FIRST_STREAM, index + 1, begin)
    tables, anomalies = decode_program(program)
    end = str(group)[-3:]
    assert sorted(tables["COMMUNICATION_OP"]["opName"].tolist()) == sorted(
        [f"xAicpuKernel_{end}_0_1", f"plain_{end}_0_1", f"yAicpuKernel_{end}_1_1"]
    )
    assert anomalies["task_outside_collectives"] == 1, "setting up the group is no collective"


def test_restarted_task_ids_are_different_tasks(program: AicpuProgram) -> None:
    group = program.group("world", KERNEL, (FIRST_STREAM,))
    program.kernel("xAicpuKernel", KERNEL, 1, 1000, 2000)
    program.kernel("xAicpuKernel", KERNEL, 2, 3000, 4000)
    program.task(FIRST_STREAM, 1, 1100, 1200, sqe=C_CORE)
    program.task(FIRST_STREAM, 1, 3100, 3300)
    program.flip(FIRST_STREAM, 2500)
    program.describe(group, FIRST_STREAM, 1, 3050, size_bytes=600)
    program.describe(group, FIRST_STREAM, 1, 1050, size_bytes=100)
    rows = decode_program(program)[0]["COMMUNICATION_TASK_INFO"]
    assert sorted(rows["size"].tolist()) == [100, 600]
    assert len(set(rows["globalTaskId"].tolist())) == 2
    assert dict(zip(rows["size"].tolist(), rows["name"].tolist(), strict=True)) == {
        100: f"xAicpuKernel_{str(group)[-3:]}_0_1",
        600: f"xAicpuKernel_{str(group)[-3:]}_1_1",
    }


def test_shared_stream_belongs_to_the_group_whose_operator_ran(program: AicpuProgram) -> None:
    program.group("world", KERNEL, (FIRST_STREAM,))
    pair = program.group("pair", 47, (FIRST_STREAM,))
    program.kernel("xAicpuKernel", KERNEL, 1, 1000, 2000)
    program.kernel("yAicpuKernel", 47, 2, 3000, 4000)
    program.task(FIRST_STREAM, 1, 3100, 3200, sqe=C_CORE)
    program.describe(pair, FIRST_STREAM, 1)
    (row,) = communication_tasks(decode_program(program)[0]).values()
    assert row["groupName"] == "pair Aicpu"


def test_streams_of_32_bit_ids_come_from_launched_kernels(tmp_path: Path) -> None:
    program = AicpuProgram(tmp_path, platform=15)
    group = program.group("world", KERNEL, (FIRST_STREAM,))
    kernel, first, last, unknown = 65_600, 65_601, 131_075, 65_603
    program.kernel("RingAicpuKernel", KERNEL, kernel, 1000, 2000)
    program.task(0, first, 1100, 1200)
    program.task(0, last, 1300, 1400)
    program.task(0, unknown, 1500, 1600)
    program.describe(group, FIRST_STREAM, first)
    program.describe(group, FIRST_STREAM, last)
    program.bound((KERNEL, kernel), (FIRST_STREAM, first), 1010, FIRST)
    program.bound((KERNEL, kernel), (FIRST_STREAM, last), 1011, LAST)
    tables, _ = decode_program(program)
    streams = dict(zip(tables["TASK"]["taskId"], tables["TASK"]["streamId"], strict=True))
    assert streams == {kernel: KERNEL, first: FIRST_STREAM, last: FIRST_STREAM, unknown: 65535}
    assert [row["isMaster"] for row in communication_tasks(tables).values()] == [1, 1]


def test_other_chips_have_no_ai_cpu_collectives(tmp_path: Path) -> None:
    program = AicpuProgram(tmp_path, platform=7)
    add_ring(program)
    tables, anomalies = decode_program(program)
    assert "COMMUNICATION_TASK_INFO" not in tables
    assert not anomalies


def test_records_without_streams_are_counted(program: AicpuProgram) -> None:
    program.kernel("RingAicpuKernel", KERNEL, 1, 1000, 2000)
    program.describe(7, FIRST_STREAM, 1)
    tables, anomalies = decode_program(program)
    assert "COMMUNICATION_TASK_INFO" not in tables
    assert anomalies == {"collective_without_streams": 1}


def bandwidths(sizes: list[int], payload: list[bool], closing: int = 2) -> list[float]:
    """Return bandwidths in bytes per us of tasks of 1 us that begin every 2 us on one lane."""
    count = len(sizes)
    start = np.arange(count) * 2000 * FINE_PARTS
    lanes = np.zeros(count, int)
    times = (start, start + 1000 * FINE_PARTS)
    payloads, closing_counts = np.array(payload, bool), np.full(count, closing)
    found = bandwidth(
        *((lanes, lanes), *times, np.array(sizes), payloads, closing_counts),
        one_by_one=True,
        sort_by_time=False,
    )
    return [float(value) / 1e6 for value in found]


@pytest.mark.parametrize(
    ("sizes", "payload", "closing", "expected"),
    [
        pytest.param(
            [50, 60, 7, 8], "PP--", 2, [110 / 7, 110 / 7, 7, 8], id="shared until last task"
        ),
        pytest.param([50, 7, 60, 8, 9], "P-P--", 2, [10, 7, 0, 8, 9], id="among last tasks: none"),
        pytest.param([50, 7, 60, 8], "P-P-", 4, [50, 7, 60, 8], id="no last task: separate times"),
    ],
)
def test_payload_bandwidth_lasts_until_the_last_task(
    sizes: list[int], payload: str, closing: int, expected: list[float]
) -> None:
    found = bandwidths(sizes, [kind == "P" for kind in payload], closing)
    assert found == pytest.approx(expected)


@given(st.data())
def test_task_belongs_to_at_most_one_operator_of_its_group(data: st.DataObject) -> None:
    spans = data.draw(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=8))
    operators = [Operator(0, "", 0, 1, 0, begin, begin + size) for begin, size in sorted(spans)]
    ends = sorted(data.draw(st.lists(st.integers(0, 80), max_size=20)))
    operator, place = assign_to_operators(operators, np.array(ends, np.uint64))
    assert len(set(place.tolist())) == len(place)
    for index, task in zip(operator.tolist(), place.tolist(), strict=True):
        assert operators[index].start <= ends[task] <= operators[index].end
    inside = {
        task
        for task, end in enumerate(ends)
        if any(item.start <= end <= item.end for item in operators)
    }
    apart = all(a.end < b.start for a, b in pairwise(operators))
    assert not apart or inside == set(place.tolist())
