"""The table of advice rules is complete, and skipped rules have a reason."""

from __future__ import annotations

import inspect
from pathlib import Path

from tests.analysis.advice.faulty_runs import US, FaultyRun, advice
from unified_prof.explain.advice import registry
from unified_prof.recording.model import Finding


def test_every_rule_is_in_the_table_once_and_documented() -> None:
    modules = {inspect.getmodule(rule.evaluate) for rule in registry.RULES}
    rules = {
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isgeneratorfunction)
        if not name.startswith("_")
        and function.__module__ == getattr(module, "__name__", "")
        and [*inspect.signature(function).parameters] == ["context"]
    }
    assert rules == {rule.evaluate for rule in registry.RULES}
    assert len(registry.RULES) == len({rule.kind for rule in registry.RULES})
    assert all(rule.evaluate.__doc__ for rule in registry.RULES)
    page = (Path(__file__).resolve().parents[3] / "docs" / "advice.md").read_text(encoding="utf-8")
    assert [rule.kind for rule in registry.RULES if f"| `{rule.kind}` |" not in page] == []


def test_skipped_rules_name_what_is_missing(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "a.db") as run:
        for number in range(60):
            run.kernel(number * 10 * US, number * 10 * US + 5 * US)
    not_judged = advice(tmp_path / "a.db").not_judged
    assert {one.why.split()[0] for one in not_judged if not one.applies} == {"only"}  # for GPUs
    skipped = {one.kind: one.why for one in not_judged if one.applies}
    assert skipped["slow_steps"] == "fewer than 5 steps recorded"
    assert skipped["inefficient_operation"].startswith("operation shapes not recorded")
    assert "table COMMUNICATION_OP" in skipped["exposed_communication"]
    assert "input_wait" in skipped


def test_findings_of_unknown_cost_are_ranked_by_the_time_of_their_evidence() -> None:
    def finding(kind: str, cost_ms: float, *evidence_ns: int) -> Finding:
        rows = tuple({"name": "x", "count": 1, "total_ns": time} for time in evidence_ns)
        return Finding(kind, (), (), (), (), cost_ms, kind, evidence=rows)

    first, rest = finding("z", 1.0), (finding("a", 0), finding("b", 0, 5, 6), finding("c", 0, 20))
    assert [one.kind for one in registry.ranked([*rest, first])] == ["z", "c", "b", "a"]
