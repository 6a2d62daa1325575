"""Figures of two recorded ranks of a 910B equal those of torch_npu."""

from __future__ import annotations

from pathlib import Path

import pytest

from unified_prof.cluster.matching import match_collectives
from unified_prof.cluster.rank_map import read_partials
from unified_prof.cluster.waits import compute_waits
from unified_prof.pipeline.cluster import summary_of


def test_waits_in_the_first_all_reduce_equal_those_of_torch_npu(shared: Path) -> None:
    folder = shared / "samples" / "ascend" / "level1"
    output = "rank{0}_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{0}.db"
    found = [one for rank in (0, 1) for one in read_partials(folder / output.format(rank))]
    matched = match_collectives(found)
    known = compute_waits(matched)
    first = int(matched.events.first[0])
    assert matched.events.members.tolist() == [2, 2, 2, 2]
    assert known.wait[first] / 1e6 == pytest.approx(3.5172, abs=1e-4)
    assert known.wait[first + 1] == 0
    assert known.setup[0] / 1e6 == pytest.approx(84.96, abs=0.01)
    assert known.transfer[0] / 1e6 == pytest.approx(0.278, abs=0.001)
    # Their tasks mention eight places in the group: six recordings are missing.
    assert matched.groups[0].size == 8
    assert not matched.events.complete.any()


def test_largest_group_is_the_minimum_world_size(shared: Path) -> None:
    found = summary_of([str(shared / "samples" / "ascend" / "level1")])
    assert (found.world_size, found.world_size_is_minimum) == (8, True)
    assert (found.ranks_read, found.absent) == (2, (2, 3, 4, 5, 6, 7))
    assert found.findings == []


def test_gaps_of_sampled_recordings_are_no_finding(shared: Path) -> None:
    names = ("timeline_analysis__sampled_rank-0", "trace_filter__sampled_rank-1")
    files = [str(shared / "samples" / "kineto" / f"{name}.json.gz") for name in names]
    found = summary_of(files)
    assert (found.ranks_read, found.world_size) == (2, 128)
    assert found.findings == []
