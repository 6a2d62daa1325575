"""Memory tables of `*_ascend_pt` directories."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.ascend_pt.builders import EPOCH, Framework
from tests.decoders.ascend_pt.rows import RowSink, decode
from unified_prof.decoders.ascend_pt import recording

MALLOC, FREE, BLOCK_FREE = range(3)
TOTALS = ("totalAllocated", "totalReserved", "totalActive", "streamPtr")


def with_operator(framework: Framework) -> Framework:
    framework.operator("aten::empty", 0, 1_000)
    return framework


@pytest.mark.parametrize("layout", [77, 76, 75])
def test_allocation_lasts_until_its_frees_in_every_layout(layout: int, tmp_path: Path) -> None:
    framework = with_operator(Framework())
    framework.memory(10, 0xA, 512, MALLOC, totals=(512, 600, 700), layout=layout)
    framework.memory(20, 0xA, -512, BLOCK_FREE, totals=(512, 600, 100), layout=layout)
    framework.memory(25, 0xA, -512, FREE, totals=(0, 600, 100), layout=layout)
    sink = decode(framework.write(tmp_path))
    times = ("allocationTime", "releaseTime", "activeReleaseTime", "duration", "activeDuration")
    assert sink.table("OP_MEMORY", "name", "size", *times) == [
        ("aten::empty", 512, 10, 25, 20, 15, 10)
    ]
    assert sink.table("OP_MEMORY", "allocationTotalActive", "releaseTotalActive") == [(700, 100)]
    assert len(sink.table("MEMORY_RECORD", "component")) == 6
    assert not sink.anomalies


def test_only_device_memory_is_written(tmp_path: Path) -> None:
    framework = with_operator(Framework())
    framework.memory(1, 0xA, 8, device_type=0)
    framework.memory(2, 0xB, 8, allocator=1)
    framework.memory(3, 0xC, 8, component=1)
    sink = decode(framework.write(tmp_path))
    assert sink.table("MEMORY_RECORD", "component", "timestamp") == [
        ("PTA", 2),
        ("PTA+GE", 2),
        ("WORKSPACE", 3),
    ]
    assert sink.table("OP_MEMORY", "allocationTime") == [3]


def test_allocation_is_named_after_the_operator_that_requested_it(tmp_path: Path) -> None:
    framework = Framework()
    framework.operator("empty_tensor", 14, 15, 1)
    framework.operator("aten::inner", 12, 18, 1)
    framework.operator("Module", 19, 30, 1)
    framework.operator("aten::outer", 10, 40, 1)
    framework.enqueue(20, 25, 7, 1)
    framework.dequeue(100, 110, 7, 2)
    for time, tid in ((14, 1), (22, 1), (45, 1), (105, 2), (110, 2)):
        framework.memory(time, time, 8, tid=tid)
    sink = decode(framework.write(tmp_path))
    assert sink.table("OP_MEMORY", "allocationTime", "name") == [
        (14, "aten::inner"),
        (22, "Module"),
        (45, None),
        (105, "aten::outer"),  # The nearest PyTorch operator around the enqueue.
        (110, None),
    ]


def test_allocations_without_operators_have_totals_only(tmp_path: Path) -> None:
    framework = Framework()
    framework.memory(1, 0xA, 8)
    sink = decode(framework.write(tmp_path))
    assert len(sink.table("MEMORY_RECORD", "component")) == 2
    assert sink.table("OP_MEMORY", "name") == []
    assert "memory_without_operators" in sink.anomalies


def cann_rows(sink: RowSink, *rows: tuple[int, str, int, int, int]) -> dict[str, Any]:
    """Return rows of NPU_OP_MEM from (time, type, address, total, device)."""
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


def test_totals_of_both_allocators_are_summed_by_device(tmp_path: Path) -> None:
    sink = RowSink()
    framework = Framework()
    framework.memory(10, 1, 8, totals=(1, 2, 3), stream=0, device=0)
    framework.memory(20, 2, 8, totals=(4, 5, 6), stream=9, device=1)
    path = framework.write(tmp_path) / "FRAMEWORK" / "torch.memory_usage"
    records = recording.read_memory(path, lambda raw: raw + EPOCH, sink, device=None)
    rows = cann_rows(
        sink, (5, "allocate", 1, 100, 1), (10, "allocate", 2, 200, 0), (30, "release", 1, 50, 1)
    )
    recording.write_totals(records, rows, sink)
    found = sink.table("MEMORY_RECORD", "timestamp", "component", *TOTALS, "deviceId")
    both = [row for row in found if row[1] == "PTA+GE"]
    assert both == [
        (5, "PTA+GE", 100, 200, 0, None, 1),
        (10, "PTA+GE", 1, 2, 3, 0, 0),  # At equal times PyTorch's record comes first.
        (10, "PTA+GE", 201, 402, 3, 0, 0),
        (20, "PTA+GE", 104, 205, 6, 9, 1),
        (30, "PTA+GE", 54, 105, 6, 9, 1),
    ]


def test_cann_operators_are_paired_by_name_address_and_device() -> None:
    sink = RowSink()
    rows = cann_rows(
        sink,
        (1, "allocate", 1, 10, 0),
        (2, "release", 1, 11, 0),
        (3, "allocate", 1, 12, 1),
        (4, "allocate", 2, 13, 0),
        (5, "allocate", 2, 14, 0),
        (6, "release", 9, 15, 0),
    )
    recording.write_cann_allocations(rows, sink)
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
    framework = with_operator(Framework())
    groups: list[dict[int, int]] = []
    opened: dict[int, dict[int, int]] = {}
    unmatched = 0
    for time, (ptr, kind) in enumerate(records):
        framework.memory(time, ptr, 8, kind)
        group = opened.get(ptr)
        if kind == MALLOC:
            opened[ptr] = {MALLOC: time}
            groups.append(opened[ptr])
        elif group is not None and kind not in group:
            group[kind] = time
        else:
            opened.pop(ptr, None)
            unmatched += 1
    with tempfile.TemporaryDirectory() as folder:
        sink = decode(framework.write(Path(folder)))
    found = sink.table("OP_MEMORY", "allocationTime", "releaseTime", "activeReleaseTime")
    assert found == [(g[MALLOC], g.get(FREE), g.get(BLOCK_FREE)) for g in groups]
    assert sink.cases("unmatched_free") == unmatched
