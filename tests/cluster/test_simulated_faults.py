"""Faults of simulated training are the only finding, with size and cost; healthy runs have none.

The simulator (`simulator.py`) writes Kineto traces as torch does. The true cost is the difference
from the same run without the fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.simulator import BETWEEN_GB_PER_S, MS, US, Run, Scenario, true_cost_ms
from unified_prof.cluster.summary import RunSummary
from unified_prof.pipeline.cluster import summary_of

TWO_NODES = Scenario(tp=1, dp=1, pp=8)
WIDE = Scenario(tp=2, dp=4, pp=4, per_host=8, steps=3)


def both_ways(pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Return links that are 6 times slower in both directions."""
    return {link: 6 for a, b in pairs for link in ((a, b), (b, a))}


def summary(scenario: Scenario, folder: Path) -> tuple[RunSummary, Run]:
    run = Run(scenario)
    return summary_of([str(run.write(folder / "run"))]), run


HEALTHY = {
    "device_spread_of_8": Scenario(scheme="fsdp", dp=1, seed=10),
    "megatron": Scenario(),
    "fsdp": Scenario(scheme="fsdp"),
    "hsdp": Scenario(scheme="hsdp", seed=1),
    "moe": Scenario(scheme="moe", seed=4),
    "noise": Scenario(scheme="fsdp", noise=0.03, seed=3),
    "hosts_in_file_names": replace(TWO_NODES, host_names=False, file_hosts=True),
    "unknown_hosts": replace(TWO_NODES, host_names=False),
    "absent_ranks": Scenario(absent=(3, 11)),
    "late_recording": Scenario(begins={3: 2}),
    "device_spread": Scenario(tp=1, pp=8, seed=10),
    "eight_adapters": Scenario(scheme="fsdp", per_host=8),
    # Ranks 2 and 3 get longer sequences by chance.
    "sequence_lengths": Scenario(
        dp=4, pp=2, steps=8, batches=2, layers=1, length_spread=0.08, seed=14
    ),
    "sharded_optimizer": Scenario(dp=4, pp=2, sharded_optimizer=True),
    "absent_rank_fsdp": Scenario(scheme="fsdp", absent=(6,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_run_has_no_finding(name: str, tmp_path: Path) -> None:
    found, _ = summary(HEALTHY[name], tmp_path)
    assert [one.text for one in found.findings] == []


# The only finding of a scenario: kind, ranks, tolerance of its cost (0: not compared), and words.
FAULTS: dict[str, tuple[Any, ...]] = {
    "slow_rank": (Scenario(slow={5: 1.1}), "slow_rank", (5,), 0.1),
    "slow_rank_of_4": (Scenario(dp=1, pp=2, slow={1: 1.3}), "slow_rank", (1,), 0.1),
    "slow_rank_fsdp": (Scenario(scheme="fsdp", slow={5: 1.1}), "slow_rank", (5,), 0.1),
    "slow_rank_hsdp": (Scenario(scheme="hsdp", slow={5: 1.3}), "slow_rank", (5,), 0.1),
    "nic_out": (
        replace(WIDE, nic={(1, "out"): 4}),
        *("slow_host_link", tuple(range(8, 16)), 0.1),
        "traffic from host gpu001 to other hosts",
    ),
    "nic_in": (replace(WIDE, nic={(0, "in"): 4}), "slow_host_link", tuple(range(8)), 0.1),
    "nic_both": (
        replace(WIDE, nic={(1, "in"): 4, (1, "out"): 4}),
        *("slow_host_link", tuple(range(8, 16)), 0.1),
    ),
    "nic_of_all_rings": (
        Scenario(scheme="fsdp", nic={(1, "out"): 6}),
        *("slow_network", (), 0.1),
    ),
    "nic_of_all_replicas": (
        Scenario(scheme="hsdp", nic={(1, "in"): 4}),
        *("slow_network", (), 0.1),
    ),
    "switch_on_all_transfers": (
        replace(WIDE, pp=2, per_host=4, links=both_ways((r, r + 8) for r in range(8))),
        *("slow_network", (), 0.1),
    ),
    "switch_between_two_hosts": (
        replace(WIDE, links=both_ways((r, r + 8) for r in range(8, 16))),
        *("slow_host_link", tuple(range(8, 24)), 0.1),
        "between host gpu001 and host gpu002",
    ),
    "one_direction_between_two_hosts": (
        replace(TWO_NODES, dp=2, pp=4, nic={(0, "out"): 6}),
        *("slow_host_link", (2, 3, 4, 5), 0.1),
    ),
    "rail": (
        replace(WIDE, links=both_ways([(3, 11), (11, 19), (19, 27)])),
        *("slow_host_link", (3, 11, 19, 27), 0.1),
        "devices 3 of different hosts (one rail)",
    ),
    "link": (Scenario(links={(5, 9): 4}), "slow_link", (5, 9), 0.1, "ranks 5 to 9 (hosts"),
    "link_in_both_directions": (
        Scenario(links={(5, 9): 4, (9, 5): 4}),
        *("slow_link", (5, 9), 0.1, "ranks 5 and 9 (hosts"),
    ),
    "link_of_hosts_in_file_names": (
        replace(TWO_NODES, host_names=False, file_hosts=True, links={(4, 5): 4}),
        *("slow_link", (4, 5), 0),
    ),
    "drift_of_host": (
        Scenario(scheme="fsdp", per_host=8, steps=8, drift=dict.fromkeys(range(8, 16), 0.3)),
        *("slow_host", tuple(range(8, 16)), 0.1),
        "over the recorded steps",
    ),
    "kernel": (Scenario(slow_kernels={(9, "fc1_gemm"): 2}), "slow_kernel", (9,), 0.1),
    "kernel_fsdp": (
        Scenario(scheme="fsdp", slow_kernels={(9, "flash_attention"): 1.5}),
        *("slow_kernel", (9,), 0.03),
    ),
    "kernel_of_8": (
        Scenario(scheme="fsdp", dp=1, slow_kernels={(5, "fc1_gemm"): 1.3}),
        *("slow_kernel", (5,), 0.1),
    ),
    "launches_of_host": (
        Scenario(launch_ns=dict.fromkeys(range(4, 8), 220 * US)),
        *("host_bound", (4, 5, 6, 7), 0.1),
    ),
    "launches_of_tensor_group": (
        Scenario(tp=4, pp=2, launch_ns=dict.fromkeys(range(4, 8), 220 * US)),
        *("host_bound", (4, 5, 6, 7), 0.1),
    ),
    "launches_of_rank": (Scenario(launch_ns={6: 220 * US}), "host_bound", (6,), 0.1),
    "launches_fsdp": (
        Scenario(scheme="fsdp", launch_ns=dict.fromkeys(range(4, 8), 170 * US)),
        "host_bound",
        (4, 5, 6, 7),
        0.2,  # the host's own waits for its late collectives are not part of the change
    ),
    "launches_across_steps": (
        Scenario(
            dp=4, pp=2, sharded_optimizer=True, launch_ns=dict.fromkeys(range(4, 8), 400 * US)
        ),
        *("host_bound", (4, 5, 6, 7), 0.1),
    ),
    "late_input_of_tensor_group": (
        Scenario(dp=4, pp=2, sharded_optimizer=True, late_input_ns={2: 6 * MS, 3: 6 * MS}),
        *("late_input", (2, 3), 0.1),
    ),
    "late_input": (Scenario(late_input_ns={3: 6 * MS}), "late_input", (3,), 0.1),
    "pause": (Scenario(pauses_ns={(5, 2): 60 * MS}), "late_rank", (5,), 0.1),
    "checkpoint": (
        Scenario(checkpoint={2: 400 * MS}, steps=6),
        *("pause_of_all", tuple(range(16)), 0.1),
    ),
    "garbage_collection": (
        Scenario(pauses_ns={(r, (r * 7) % 10): (20 + 2.5 * r) * MS for r in range(16)}, steps=10),
        *("scattered_pauses", tuple(range(16)), 0.1),
    ),
    "half_a_stage": (
        replace(WIDE, pp=2, per_host=4, slow=dict.fromkeys(range(4), 1.15)),
        *("slow_host", (0, 1, 2, 3), 0.1),
    ),
    "half_a_stage_of_unknown_hosts": (
        replace(WIDE, pp=2, per_host=4, host_names=False, slow=dict.fromkeys(range(4), 1.15)),
        *("slow_rank", (0, 1, 2, 3), 0.1),
    ),
    "stage": (Scenario(tp=1, stage_work={2: 1.2}), "unequal_stages", (4, 5), 0.1),
    "stage_on_a_host": (
        Scenario(slow=dict.fromkeys(range(4, 8), 1.2)),
        *("unequal_stages", (4, 5, 6, 7), 0),
        "alone on host gpu001, and a slow host would look the same",
    ),
    "one_of_two_stages": (
        Scenario(tp=1, dp=4, pp=2, stage_work={1: 1.2}),
        *("unequal_stages", (4, 5, 6, 7), 0.1),
    ),
    "trend": (
        Scenario(steps=8, drift={12: 0.25}),
        *("slow_rank", (12,), 0.1),
        *("since step 3", "rising from 0.99 to 1.24 times"),
    ),
    "trend_fsdp": (Scenario(scheme="fsdp", steps=8, drift={12: 0.25}), "slow_rank", (12,), 0.06),
    "slow_host_moe": (
        Scenario(scheme="moe", slow=dict.fromkeys(range(4, 8), 1.1)),
        *("slow_host", (4, 5, 6, 7), 0.1),
    ),
    "no_step_marks": (
        Scenario(slow={5: 1.3}, step_marks=False),
        *("slow_rank", (5,), 0, "over the whole recording"),
    ),
    "absent_straggler": (
        Scenario(slow={8: 1.2}, absent=(8,)),
        *("waits_for_absent", (8,), 0, "at most"),
    ),
    "absent_rank": (
        Scenario(slow={8: 1.1}, absent=(9,)),
        *("slow_rank", (8,), 0, "costs at least"),
    ),
}
# The rules have quick tests in test_findings.py; these try them on traces of each scheme.
QUICK = ("kernel_of_8",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FAULTS]
)
def test_fault_is_the_only_finding_with_its_cost(name: str, tmp_path: Path) -> None:
    scenario, kind, ranks, tolerance, *words = FAULTS[name]
    found, run = summary(scenario, tmp_path)
    named = found.findings or found.ranked[:1]  # Without a rank at fault, it is a shared cost.
    assert [(one.kind, one.ranks) for one in named] == [(kind, ranks)]
    finding = named[0]
    if tolerance:
        cost = true_cost_ms(scenario, run)
        assert finding.cost_ms_per_step == pytest.approx(cost, rel=tolerance)
    assert [one for one in words if one not in finding.text] == []
    match name:
        case "nic_out":
            assert finding.hosts == ("gpu001",)
            assert finding.figures["direction"] == "out"
            assert finding.figures["factor"] == pytest.approx(4, rel=0.05)
            assert {source // 8 for source, _ in finding.links} == {1}
        case "link_of_hosts_in_file_names":
            assert {row[1] for row in found.tables["RANK"]} == {"gpu000", "gpu001"}
        case "kernel":  # the ratio to the median of the stage
            ratios = {row[0]: row[5] for row in found.tables["BLAME"]}
            assert ratios[9] == pytest.approx(1.23, abs=0.03)
        case "stage":  # shares its host with another stage
            assert "slow host" not in finding.text
        case "launches_across_steps":
            # Late hosts launch the all-gather in one step, and the others in the next one.
            assert {row[5] == row[6] for row in found.tables["COLLECTIVE"]} == {True}


@pytest.mark.slow
def test_costs_of_two_faults_add_up(tmp_path: Path) -> None:
    scenario = replace(WIDE, nic={(1, "out"): 4}, slow={20: 1.15})
    found, run = summary(scenario, tmp_path)
    assert [(one.kind, one.ranks[0]) for one in found.findings] == [
        ("slow_rank", 20),
        ("slow_host_link", 8),
    ]
    total = sum(one.cost_ms_per_step for one in found.findings)
    assert total == pytest.approx(true_cost_ms(scenario, run), rel=0.1)


@pytest.mark.slow
def test_bus_bandwidth_of_every_collective_is_that_of_the_slowest_link(tmp_path: Path) -> None:
    # The simulator's ring moves each size at the rate of its slowest link, as nccl-tests define it.
    found, _ = summary(Scenario(scheme="fsdp", noise=0.0, per_host=1), tmp_path)
    rates = {(row[2], row[-1]) for row in found.tables["COLLECTIVE"]}
    assert {kind for kind, _ in rates} == {"all_gather", "reduce_scatter"}
    for _, rate in rates:
        assert rate == pytest.approx(BETWEEN_GB_PER_S, rel=0.03)


@pytest.mark.slow
def test_cost_of_a_bubble_is_the_gain_of_smaller_micro_batches(tmp_path: Path) -> None:
    few = Scenario(tp=1, dp=1, pp=4, batches=4, layers=8)
    found, run = summary(few, tmp_path)
    (bubble,) = [one for one in found.ranked if one.kind == "pipeline_bubble"]
    assert "use 16 micro-batches per step instead of 4" in bubble.text
    gain = run.step_ms - Run(replace(few, batches=16, layers=2)).step_ms
    assert bubble.cost_ms_per_step == pytest.approx(gain, rel=0.15)
