"""The list of rules: each is there, is asked for by name, and not before it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.advice.plants import MS, US, Plant, advice
from unified_prof.explain.advice import registry
from unified_prof.explain.advice import registry as lacking

PACKAGE = "unified_prof.explain.advice"


@pytest.mark.parametrize("rule", registry.RULES, ids=lambda rule: rule.kind)
def test_a_rule_is_where_the_list_says_and_its_findings_have_its_kind(rule: Any) -> None:
    found = lacking.of_rules(rule.name)
    assert found.__doc__
    module = import_module(found.__module__)
    assert getattr(module, rule.kind.upper()) == rule.kind


def test_every_rule_that_there_is_stands_in_the_list() -> None:
    there = {
        f"{name}.{function}"
        for name in {rule.name.partition(".")[0] for rule in registry.RULES}
        for function, value in inspect.getmembers(import_module(f"{PACKAGE}.{name}"))
        if inspect.isgeneratorfunction(value)
        and not function.startswith("_")
        and next(iter(inspect.signature(value).parameters), "") == "case"
        and value.__module__.endswith(f".{name}")
    }
    assert there == {rule.name for rule in registry.RULES}


def test_a_rule_is_imported_where_a_recording_has_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    of_rules = lacking.of_rules

    def noted(name: str) -> Callable[..., Iterator[Any]]:
        asked.append(name.partition(".")[0])
        return of_rules(name)

    monkeypatch.setattr(lacking, "of_rules", noted)
    with Plant(tmp_path / "a.db") as plant:
        for number in range(60):
            plant.kernel(number * 10 * US, number * 10 * US + 5 * US)
    said = {one.kind: one.why for one in advice(tmp_path / "a.db").not_judged}
    assert "communication_rules" not in asked
    assert said["slow_steps"] == "no more than 4 steps recorded"
    assert said["inefficient_operation"].startswith("operation shapes not recorded")
    assert "input_wait" in said
    asked.clear()
    with Plant(tmp_path / "b.db") as plant:
        for number in range(6):
            plant.step(number, number * MS, (number + 1) * MS)
            plant.kernel(number * MS + 50 * US, number * MS + 900 * US, launched=number * MS)
    advice(tmp_path / "b.db")
    assert {"host_rules", "wait_rules", "memory_rules"} <= set(asked)
