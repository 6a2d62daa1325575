"""Transfers between pipeline stages in traces of torch.profiler."""

from pathlib import Path

import pytest

from tests.decoders.kineto.builders import call, complete, kernel, write
from unified_prof.cluster.clocks import align_clocks
from unified_prof.cluster.matching import match_collectives
from unified_prof.cluster.rank_map import read_partials
from unified_prof.pipeline.convert import convert

STAGES = (4, 9)
"""Global ranks that differ from their places in the group."""


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("stages")
    paths = []
    for rank in STAGES:
        sends = rank == STAGES[0]
        events = [complete("user_annotation", "ProfilerStep#0", 1_000_000.0, 20_000)]
        for number in range(4):
            at = 1_001_000.0 + 4_000 * number
            # The receiver starts first, and both end together.
            begin, length = (at + 500, 1000) if sends else (at, 1500)
            args = {
                "Collective name": "send" if sends else "recv",
                "In msg nelems": 1 << 20,
                "Out msg nelems": 1 << 20,
                "Group size": 2,
                "dtype": "BFloat16",
                "Process Group Name": "7",
                "Process Group Description": "pp",
                "Process Group Ranks": str([*STAGES]),
                ("Dst Rank" if sends else "Src Rank"): STAGES[1] if sends else STAGES[0],
            }
            correlation = number + 1
            name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            events += [
                call(begin - 20, 10, correlation),
                kernel(begin, length, correlation, name=name, args=args),
            ]
        about = {"backend": "nccl", "rank": rank, "world_size": 16}
        trace = write(folder / f"rank{rank}.json", events, distributedInfo=about)
        paths.append(folder / f"rank{rank}.db")
        convert(trace, paths[-1])
    return paths


def test_both_ends_of_a_transfer_have_global_ranks(databases: list[Path]) -> None:
    found = [partial for path in databases for partial in read_partials(path)]
    assert [one.facts.rank for one in found] == [*STAGES]
    assert found[0].communication["peer"].tolist() == [STAGES[1]] * 4
    assert found[1].communication["peer"].tolist() == [STAGES[0]] * 4


def test_stages_connected_by_transfers_only_have_one_clock(databases: list[Path]) -> None:
    matched = match_collectives(partial for path in databases for partial in read_partials(path))
    assert int(matched.events.complete.sum()) == 4
    assert set(align_clocks(matched).island.tolist()) == {0}


def test_unrecorded_host_and_device_names_are_unknown(databases: list[Path]) -> None:
    for path in databases:
        (one,) = read_partials(path)
        assert (one.facts.host, one.facts.device_name) == (None, None)
