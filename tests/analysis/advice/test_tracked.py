"""Advice for tracked workloads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from msgspec.structs import replace

from tests.analysis.advice.faulty_runs import MS, saving_ns
from tests.analysis.builders import memory_report, run_time_report
from unified_prof.explain.advice.tracked import Tracked
from unified_prof.explain.advice.tracked_operations import advise
from unified_prof.explain.api import open_analyses
from unified_prof.recording.calls import Calls, Labels
from unified_prof.recording.model import Finding, Gaps, Step


def calls() -> Calls:
    none = np.zeros(0, np.int8)
    return Calls(labels=Labels(), name=none, kind=none)


def steps(*lengths: int, waited: int | None = None) -> tuple[Step, ...]:
    return tuple(
        Step(str(number), length * MS, waited_ns=None if waited is None else waited * MS)
        for number, length in enumerate(lengths)
    )


def findings_of(run: Tracked) -> dict[str, Finding]:
    return {one.kind: one for one in advise(run).findings}


def test_wait_for_a_processor_costs_its_time() -> None:
    findings = findings_of(Tracked(steps(10, 10, 10, waited=2), calls(), None))
    assert saving_ns(findings["waiting_for_processor"]) == 2 * MS
    assert "other processes" in findings["waiting_for_processor"].text
    facts = {"torch_threads": "16", "processors": "2"}
    own = findings_of(Tracked(steps(10, 10, 10, waited=2), calls(), None, facts))
    assert "because torch runs 16 threads on 2 cores" in own["waiting_for_processor"].text
    assert "at most 2 threads" in own["waiting_for_processor"].advice
    healthy = findings_of(Tracked(steps(100, 100, 100, waited=2), calls(), None))
    assert healthy == {}


@pytest.mark.parametrize(("gap", "fires"), [(2, True), (0.2, False)])
def test_time_between_operations_is_listed_by_line(gap: float, fires: bool) -> None:
    gaps = Gaps(
        before=np.array([0, 1, 2]),
        lines=("train.py:3", "train.py:9", "train.py:3"),
        gap_ns=np.array([[gap * MS] * 3, [gap / 2 * MS] * 3, [gap * MS] * 3]),
    )
    findings = findings_of(Tracked(steps(20, 20, 20), calls(), gaps))
    assert ("time_between_operations" in findings) == fires
    if fires:
        finding = findings["time_between_operations"]
        assert saving_ns(finding) == 5 * MS
        expected = {"name": "train.py:3", "line": "train.py:3", "count": 2, "total_ns": 4 * MS}
        assert finding.evidence[0] == expected


def test_slow_iteration_costs_the_time_above_the_median() -> None:
    findings = findings_of(Tracked(steps(10, 10, 10, 10, 30, 10, 10), calls(), None))
    assert saving_ns(findings["slow_iterations"]) == round(20 * MS / 6)
    assert findings["slow_iterations"].steps == (4,)
    assert findings["slow_iterations"].sure == "possible"


def test_periodic_work_is_not_in_the_typical_iteration() -> None:
    evaluating = [
        replace(one, forward_ns=6 * MS, parts_ns={"forward_without_gradients": 90 * MS})
        for one in steps(100, 100, 100, 100)
    ]
    others = [
        replace(one, matched=one.name != "1", forward_ns=6 * MS, parts_ns={"optimizer": MS})
        for one in steps(10, 10, 10)
    ]
    mixed = tuple(replace(one, name=str(n)) for n, one in enumerate([*evaluating, *others]))
    lines = json.dumps({"forward_without_gradients": "train.py:17"})
    run = Tracked(mixed, calls(), None, {"part_lines": lines}, {"forward": 6 * MS})
    assert run.median_ns == 10 * MS
    finding = findings_of(run)["slow_iterations"]
    assert finding.steps == (1, 2, 3)
    assert saving_ns(finding) == 3 * 90 * MS // 6
    assert "90.0 ms of it in forward without gradients at train.py:17" in finding.text
    assert "3 of 6 iterations" in finding.text
    one_without = structs.replace(
        run, steps=(mixed[6], *mixed[:4], mixed[3]), parts_ns={"forward_without_gradients": 90 * MS}
    )
    assert one_without.median_ns == 100 * MS
    assert saving_ns(findings_of(one_without)["periodic_work"]) == 90 * MS
    everywhere = structs.replace(
        run, steps=mixed[:4], parts_ns={"forward_without_gradients": 90 * MS}
    )
    assert everywhere.median_ns == 100 * MS
    assert saving_ns(findings_of(everywhere)["periodic_work"]) == 90 * MS


def test_iterations_of_unknown_time_are_not_averaged() -> None:
    unknown = Step("9", None)
    assert Tracked((*steps(10, 20), unknown), calls(), None).median_ns == 15 * MS


def test_slow_modes_are_found() -> None:
    run = Tracked(steps(10, 10, 10), calls(), None, {"part_lines": "{}"})
    assert findings_of(run) == {}
    slow = {"detect_anomaly": "on", "slow_autocast": "float16"}
    found = findings_of(structs.replace(run, facts={**run.facts, **slow}))
    assert found.keys() == {"anomaly_detection", "slow_autocast"}
    assert "autocast to float16" in found["slow_autocast"].text


def test_iteration_that_waited_for_a_processor_is_not_slow() -> None:
    slow = Step("4", 30 * MS, waited_ns=20 * MS)
    others = steps(10, 10, 10, 10, 10, 10, waited=0)
    assert findings_of(Tracked((*others[:4], slow, *others[4:]), calls(), None)) == {}


def test_rules_without_data_name_the_missing_table(tmp_path: Path) -> None:
    run_time_report(tmp_path / "run_time.sqlite")
    memory_report(tmp_path / "memory.sqlite")
    with open_analyses(tmp_path) as (analysis,):
        result = analysis.advice()
    assert result.findings == ()
    missing = {one.kind: one.why for one in result.not_judged}
    assert "UPROF_GAPS" in missing["time_between_operations"]
    assert "repeated_work" in result.judged
