from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.ascend_pt.made import EPOCH, Framework
from tests.decoders.ascend_pt.rows import RowSink, decode
from unified_prof.decoders.ascend_pt import memory

MALLOC, FREE, BLOCK_FREE = range(3)
TOTALS = ("totalAllocated", "totalReserved", "totalActive", "streamPtr")


def with_operator(made: Framework) -> Framework:
    made.operator("aten::empty", 0, 1_000)
    return made


@pytest.mark.parametrize("layout", [77, 76, 75])
def test_an_allocation_runs_to_its_frees_in_every_layout(layout: int, tmp_path: Path) -> None:
    made = with_operator(Framework())
    made.memory(10, 0xA, 512, MALLOC, totals=(512, 600, 700), layout=layout)
    made.memory(20, 0xA, -512, BLOCK_FREE, totals=(512, 600, 100), layout=layout)
    made.memory(25, 0xA, -512, FREE, totals=(0, 600, 100), layout=layout)
    sink = decode(made.write(tmp_path))
    times = ("allocationTime", "releaseTime", "activeReleaseTime", "duration", "activeDuration")
    assert sink.table("OP_MEMORY", "name", "size", *times) == [
        ("aten::empty", 512, 10, 25, 20, 15, 10)
    ]
    assert sink.table("OP_MEMORY", "allocationTotalActive", "releaseTotalActive") == [(700, 100)]
    assert len(sink.table("MEMORY_RECORD", "component")) == 6
    assert not sink.anomalies


def test_frees_without_allocation_and_second_ones_are_left_out_and_counted(tmp_path: Path) -> None:
    made = with_operator(Framework())
    made.memory(1, 0xA, -1, FREE)
    for time, kind in (
        (2, MALLOC),
        (3, FREE),
        (4, FREE),
        (5, BLOCK_FREE),
        (6, MALLOC),
        (7, MALLOC),
    ):
        made.memory(time, 0xB, 8, kind)
    sink = decode(made.write(tmp_path))
    assert sink.table("OP_MEMORY", "allocationTime", "releaseTime", "releaseTotalActive") == [
        (2, 3, 30),
        (6, None, None),
        (7, None, None),
    ]
    assert sink.anomalies["unmatched_free"].cases == 3


def test_only_memory_of_the_device_counts(tmp_path: Path) -> None:
    made = with_operator(Framework())
    made.memory(1, 0xA, 8, device_type=0)
    made.memory(2, 0xB, 8, allocator=1)
    made.memory(3, 0xC, 8, component=1)
    sink = decode(made.write(tmp_path))
    assert sink.table("MEMORY_RECORD", "component", "timestamp") == [
        ("PTA", 2),
        ("PTA+GE", 2),
        ("WORKSPACE", 3),
    ]
    assert sink.table("OP_MEMORY", "allocationTime") == [3]


def test_names_come_from_the_call_that_requested_the_transfer(tmp_path: Path) -> None:
    made = Framework()
    made.operator("empty_tensor", 14, 15, 1)
    made.operator("aten::inner", 12, 18, 1)
    made.operator("Module", 19, 30, 1)
    made.operator("aten::outer", 10, 40, 1)
    made.enqueue(20, 25, 7, 1)
    made.dequeue(100, 110, 7, 2)
    for time, tid in ((14, 1), (22, 1), (45, 1), (105, 2), (110, 2)):
        made.memory(time, time, 8, tid=tid)
    sink = decode(made.write(tmp_path))
    assert sink.table("OP_MEMORY", "allocationTime", "name") == [
        (14, "aten::inner"),
        (22, "Module"),
        (45, None),
        (105, "aten::outer"),  # the nearest of PyTorch's own round what was put into the queue
        (110, None),
    ]


def test_without_operators_there_are_totals_only(tmp_path: Path) -> None:
    made = Framework()
    made.memory(1, 0xA, 8)
    sink = decode(made.write(tmp_path))
    assert len(sink.table("MEMORY_RECORD", "component")) == 2
    assert sink.table("OP_MEMORY", "name") == []
    assert "memory_without_operators" in sink.anomalies


def cann(sink: RowSink, *rows: tuple[int, str, int, int, int]) -> dict[str, Any]:
    """Rows of NPU_OP_MEM: time, type, address, total and device."""
    times, types, addresses, totals, devices = zip(*rows, strict=True)
    return {
        "timestampNs": np.array(times) + EPOCH,
        "type": np.array([sink.strings.intern(kind) for kind in types]),
        "addr": np.array(addresses),
        "size": np.full(len(rows), 64),
        "operatorName": np.full(len(rows), sink.strings.intern("op")),
        "totalAllocate": np.array(totals),
        "totalReserve": np.array(totals) * 2,
        "deviceId": np.array(devices),
    }


def test_totals_of_both_allocators_add_up_on_each_device(tmp_path: Path) -> None:
    sink = RowSink()
    made = Framework()
    made.memory(10, 1, 8, totals=(1, 2, 3), stream=0, device=0)
    made.memory(20, 2, 8, totals=(4, 5, 6), stream=9, device=1)
    path = made.write(tmp_path) / "FRAMEWORK" / "torch.memory_usage"
    records = memory.read_memory(path, lambda raw: raw + EPOCH, None, sink)
    rows = cann(
        sink, (5, "allocate", 1, 100, 1), (10, "allocate", 2, 200, 0), (30, "release", 1, 50, 1)
    )
    memory.write_totals(records, rows, sink)
    found = sink.table("MEMORY_RECORD", "timestamp", "component", *TOTALS, "deviceId")
    both = [row for row in found if row[1] == "PTA+GE"]
    assert both == [
        (5, "PTA+GE", 100, 200, 0, None, 1),
        (10, "PTA+GE", 1, 2, 3, 0, 0),  # at equal times PyTorch's goes first
        (10, "PTA+GE", 201, 402, 3, 0, 0),
        (20, "PTA+GE", 104, 205, 6, 9, 1),
        (30, "PTA+GE", 54, 105, 6, 9, 1),
    ]


def test_operators_of_cann_are_paired_by_name_address_and_device() -> None:
    sink = RowSink()
    rows = cann(
        sink,
        (1, "allocate", 1, 10, 0),
        (2, "release", 1, 11, 0),
        (3, "allocate", 1, 12, 1),
        (4, "allocate", 2, 13, 0),
        (5, "allocate", 2, 14, 0),
        (6, "release", 9, 15, 0),
    )
    memory.write_cann_allocations(rows, sink)
    columns = ("allocationTime", "releaseTime", "duration", "releaseTotalAllocated", "deviceId")
    assert sink.table("OP_MEMORY", *columns) == [
        (1, 2, 1, 11, 0),
        (3, None, None, None, 1),
        (5, None, None, None, 0),
    ]
    assert sink.anomalies["unmatched_allocation"].cases == 2


ALLOCATIONS = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2)), max_size=14)


@given(ALLOCATIONS)
def test_groups_equal_those_of_a_plain_loop(records: list[tuple[int, int]]) -> None:
    made = with_operator(Framework())
    groups: list[dict[int, int]] = []
    opened: dict[int, dict[int, int]] = {}
    for time, (ptr, kind) in enumerate(records):
        made.memory(time, ptr, 8, kind)
        group = opened.get(ptr)
        if kind == MALLOC:
            opened[ptr] = {MALLOC: time}
            groups.append(opened[ptr])
        elif group is not None and kind not in group:
            group[kind] = time
        else:
            opened.pop(ptr, None)
    with tempfile.TemporaryDirectory() as folder:
        sink = decode(made.write(Path(folder)))
    found = sink.table("OP_MEMORY", "allocationTime", "releaseTime", "activeReleaseTime")
    assert found == [(g[MALLOC], g.get(FREE), g.get(BLOCK_FREE)) for g in groups]
