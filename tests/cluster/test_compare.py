"""Two runs of many ranks beside each other: by role, and whether the new one may pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import refused, uprof
from tests.cluster.summaries import COMPUTE_NS, Made, make, slow_text
from unified_prof.cluster import run_comparison
from unified_prof.cluster.overview import Overview
from unified_prof.cluster.stored_run import open_run


def difference(base: Path, new: Path, *options: str) -> dict[str, Any]:
    done = uprof("cluster", "diff", base, new, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_runs_of_different_size_compare_by_what_ranks_do(tmp_path: Path) -> None:
    base = make(tmp_path / "base", Made(dp=2))
    new = make(tmp_path / "new", Made(dp=4, step_factor=1.5))
    found = difference(base, new)
    assert [(one["role"], one["base_ranks"], one["new_ranks"]) for one in found["roles"]] == [
        ("stage 0", 4, 8),
        ("stage 1", 4, 8),
    ]
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


def test_stages_that_differ_in_number_are_not_taken_for_one_another(tmp_path: Path) -> None:
    base, new = make(tmp_path / "base", Made(pp=2)), make(tmp_path / "new", Made(pp=4))
    found = difference(base, new)
    assert {one["stage"] for one in found["operations"]} == {"all"}


def test_findings_are_new_gone_or_in_both(tmp_path: Path) -> None:
    base = make(tmp_path / "base", Made(slow={1: 1.2, 3: 1.1}))
    new = make(tmp_path / "new", Made(slow={3: 1.4, 5: 1.3}))
    found = difference(base, new)["findings"]
    told = {kind: [one["ranks"] for one in found[kind]] for kind in ("new", "gone", "kept")}
    assert told == {"new": [[5]], "gone": [[1]], "kept": [[3]]}
    text = uprof("cluster", "diff", base, new).stdout
    assert text.index("new findings") < text.index(slow_text(5, 1.3)) < text.index("mean step")


def test_collectives_are_paired_by_kind_group_and_size(tmp_path: Path) -> None:
    base, new = make(tmp_path / "base"), make(tmp_path / "new", Made(tp=4, step_factor=2.0))
    (row,) = difference(base, new)["collectives"]
    assert (row["kind"], row["group_kind"], row["base_size"], row["new_size"]) == (
        *("all_reduce", "tp"),
        *(2, 4),
    )
    assert row["transfer_ns"]["ratio"] == pytest.approx(2.0)


def test_links_are_compared_inside_and_between_hosts(tmp_path: Path) -> None:
    base = make(tmp_path / "base")
    new = make(tmp_path / "new", Made(slow_links=[(0, 4)]))
    (row,) = difference(base, new)["links"]
    assert row["gb_per_s"]["ratio"] == pytest.approx(1.0)
    assert row["slowest_gb_per_s"]["ratio"] == pytest.approx(1 / 3)


def test_markdown_and_text_say_the_same(tmp_path: Path) -> None:
    base, new = make(tmp_path / "base"), make(tmp_path / "new", Made(step_factor=1.5))
    for shape in ("text", "markdown"):
        told = uprof("cluster", "diff", base, new, "--format", shape).stdout.lower()
        for heading in ("mean step", "by role", "collectives", "links", "kernels"):
            assert heading in told
        assert "1.50 x" in told


@pytest.mark.parametrize(
    ("metric", "changed", "code"),
    [
        ("step", Made(steps=12, step_factor=1.2), 1),
        ("step", Made(steps=12, step_factor=1.02), 0),
        ("slowest-rank", Made(steps=12, slow={3: 1.2}), 1),
        ("imbalance", Made(steps=12, slow={3: 1.2}), 1),
        ("imbalance", Made(steps=12, step_factor=1.2), 0),
        ("stage", Made(steps=12, step_factor=1.2), 1),
        ("stage", Made(steps=12, slow={3: 1.2}), 0),
        ("exposed-communication", Made(steps=12, step_factor=1.3), 1),
        ("step", Made(steps=4, step_factor=1.2), 3),
    ],
)
def test_the_gate_judges_steps(tmp_path: Path, metric: str, changed: Made, code: int) -> None:
    base, new = make(tmp_path / "base", Made(steps=12)), make(tmp_path / "new", changed)
    done = uprof("cluster", "gate", base, new, "--metric", metric)
    assert done.returncode == code, done.stdout


def test_the_gate_says_its_verdict_in_every_format(tmp_path: Path) -> None:
    base = make(tmp_path / "base", Made(steps=12))
    new = make(tmp_path / "new", Made(steps=12, slow={3: 1.2}))
    both = ("cluster", "gate", base, new, "--metric", "imbalance")
    assert "1.000 x -> 1.200 x" in uprof(*both).stdout
    found = json.loads(uprof(*both, "--json").stdout)
    assert (found["outcome"], found["checks"][0]["unit"]) == ("regression", "x")
    assert "<failure" in uprof(*both, "--format", "junit").stdout
    refused(uprof(*both, "--metric", "total"), 2, "unknown metric 'total'", "slowest-rank")


def test_imbalance_is_told_within_a_stage(tmp_path: Path) -> None:
    run = make(tmp_path / "run", Made(steps=5, slow={6: 1.3}))
    with open_run(run) as opened:
        overview = Overview(opened)
        assert (
            run_comparison.metric_samples(overview, "imbalance").tolist()
            == [pytest.approx(1.3)] * 5
        )
        assert (
            run_comparison.metric_samples(overview, "slowest-rank").tolist()
            == [COMPUTE_NS * 1.3] * 5
        )


def test_runs_without_steps_are_refused(tmp_path: Path) -> None:
    base, new = make(tmp_path / "base"), make(tmp_path / "new", Made(steps=0))
    refused(uprof("cluster", "diff", base, new), 2, "has no steps")
    refused(uprof("cluster", "gate", base, new), 2, "has no steps")


@pytest.mark.parametrize("command", ["diff", "gate"])
def test_commands_for_one_process_name_those_for_many(tmp_path: Path, command: str) -> None:
    base, new = make(tmp_path / "base"), make(tmp_path / "new")
    refused(uprof(command, base, new), 2, "summary of a cluster run", f"uprof cluster {command}")
