"""Comparison and gate of two multi-rank runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import refused, uprof
from tests.cluster.summaries import COMPUTE_NS, Contents, slow_text, write_summary
from unified_prof.cluster import run_comparison
from unified_prof.cluster.overview import Overview
from unified_prof.cluster.stored_run import open_run


def difference(base: Path, new: Path, *options: str) -> dict[str, Any]:
    done = uprof("cluster", "diff", base, new, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_runs_of_different_size_are_compared_by_role(tmp_path: Path) -> None:
    base = write_summary(tmp_path / "base", Contents(dp=2))
    new = write_summary(tmp_path / "new", Contents(dp=4, step_factor=1.5))
    found = difference(base, new)
    roles = [(one["role"], one["base_ranks"], one["new_ranks"]) for one in found["roles"]]
    assert roles == [("stage 0", 4, 8), ("stage 1", 4, 8)]
    assert found["step"]["span_ns"]["ratio"] == pytest.approx(1.5)
    for one in found["roles"]:
        assert one["parts"]["compute_ns"]["ratio"] == pytest.approx(1.5)
    kernels = {(one["stage"], one["name"]): one["time_ns"] for one in found["operations"]}
    assert set(kernels) == {(stage, name) for stage in "01" for name in ("MatMul", "Add")}
    assert all(one["ratio"] == pytest.approx(1.5) for one in kernels.values())
    by_role = difference(base, new, "--by", "role")["roles"]
    assert ("stage 0, data rank 3", 0, 2) in [
        (one["role"], one["base_ranks"], one["new_ranks"]) for one in by_role
    ]


def test_kernels_are_compared_over_all_stages_if_stages_differ(tmp_path: Path) -> None:
    base, new = (
        write_summary(tmp_path / "base", Contents(pp=2)),
        write_summary(tmp_path / "new", Contents(pp=4)),
    )
    found = difference(base, new)
    assert {one["stage"] for one in found["operations"]} == {"all"}


def test_findings_are_new_gone_or_kept(tmp_path: Path) -> None:
    base = write_summary(tmp_path / "base", Contents(slow={1: 1.2, 3: 1.1}))
    new = write_summary(tmp_path / "new", Contents(slow={3: 1.4, 5: 1.3}))
    found = difference(base, new)["findings"]
    ranks = {kind: [one["ranks"] for one in found[kind]] for kind in ("new", "gone", "kept")}
    assert ranks == {"new": [[5]], "gone": [[1]], "kept": [[3]]}
    text = uprof("cluster", "diff", base, new).stdout
    assert text.index("new findings") < text.index(slow_text(5, 1.3)) < text.index("mean step")


def test_collectives_are_paired_by_kind_and_group(tmp_path: Path) -> None:
    base, new = (
        write_summary(tmp_path / "base"),
        write_summary(tmp_path / "new", Contents(tp=4, step_factor=2.0)),
    )
    (row,) = difference(base, new)["collectives"]
    assert (row["kind"], row["group_kind"]) == ("all_reduce", "tp")
    assert (row["base_size"], row["new_size"]) == (2, 4)
    assert row["transfer_ns"]["ratio"] == pytest.approx(2.0)


def test_links_are_compared_within_and_between_hosts(tmp_path: Path) -> None:
    base = write_summary(tmp_path / "base")
    new = write_summary(tmp_path / "new", Contents(slow_links=[(0, 4)]))
    (row,) = difference(base, new)["links"]
    assert row["gb_per_s"]["ratio"] == pytest.approx(1.0)
    assert row["slowest_gb_per_s"]["ratio"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("metric", "changed", "code"),
    [
        ("step", Contents(steps=12, step_factor=1.2), 1),
        ("step", Contents(steps=12, step_factor=1.02), 0),
        ("slowest-rank", Contents(steps=12, slow={3: 1.2}), 1),
        ("imbalance", Contents(steps=12, slow={3: 1.2}), 1),
        ("imbalance", Contents(steps=12, step_factor=1.2), 0),
        ("stage", Contents(steps=12, step_factor=1.2), 1),
        ("stage", Contents(steps=12, slow={3: 1.2}), 0),
        ("exposed-communication", Contents(steps=12, step_factor=1.3), 1),
        ("step", Contents(steps=4, step_factor=1.2), 3),
    ],
)
def test_gate_compares_steps_by_metric(
    tmp_path: Path, metric: str, changed: Contents, code: int
) -> None:
    base, new = (
        write_summary(tmp_path / "base", Contents(steps=12)),
        write_summary(tmp_path / "new", changed),
    )
    done = uprof("cluster", "gate", base, new, "--metric", metric)
    assert done.returncode == code, done.stdout


def test_gate_reports_its_verdict_in_every_format(tmp_path: Path) -> None:
    base = write_summary(tmp_path / "base", Contents(steps=12))
    new = write_summary(tmp_path / "new", Contents(steps=12, slow={3: 1.2}))
    arguments = ("cluster", "gate", base, new, "--metric", "imbalance")
    assert "1.000 x -> 1.200 x" in uprof(*arguments).stdout
    found = json.loads(uprof(*arguments, "--json").stdout)
    assert (found["outcome"], found["checks"][0]["unit"]) == ("regression", "x")
    assert "<failure" in uprof(*arguments, "--format", "junit").stdout
    assert not uprof(*arguments, "--format", "junit").stderr
    write_summary(tmp_path / "part", Contents(steps=12, absent=[2]))
    assert "7 of 8 ranks; missing: 2" in uprof("cluster", "gate", base, tmp_path / "part").stderr
    refused(uprof(*arguments, "--metric", "total"), 2, "unknown metric 'total'", "slowest-rank")


def test_imbalance_and_slowest_rank_are_computed_per_step(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run", Contents(steps=5, slow={6: 1.3}))
    with open_run(run) as opened:
        overview = Overview(opened)
        imbalance = run_comparison.metric_samples(overview, "imbalance").tolist()
        assert imbalance == [pytest.approx(1.3)] * 5
        slowest = run_comparison.metric_samples(overview, "slowest-rank").tolist()
        assert slowest == [COMPUTE_NS * 1.3] * 5


def test_runs_without_steps_are_refused(tmp_path: Path) -> None:
    base, new = write_summary(tmp_path / "base"), write_summary(tmp_path / "new", Contents(steps=0))
    refused(uprof("cluster", "diff", base, new), 2, "has no steps")
    refused(uprof("cluster", "gate", base, new), 2, "has no steps")


@pytest.mark.parametrize("command", ["diff", "gate"])
def test_single_process_commands_name_the_cluster_command(tmp_path: Path, command: str) -> None:
    base, new = write_summary(tmp_path / "base"), write_summary(tmp_path / "new")
    refused(uprof(command, base, new), 2, "summary of a cluster run", f"uprof cluster {command}")
