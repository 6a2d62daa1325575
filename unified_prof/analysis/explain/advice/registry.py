"""Which rules there are, and all of them asked about a recording.

A rule is an entry of `RULES` in a module of `rules`, whose name stands here; nothing else knows
how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.rule import Rule
from unified_prof.analysis.finding import Advice, Finding, NotJudged
from unified_prof.analysis.recording import Recording

MODULES = (
    "host",
    "input",
    "late",
    "synchronising",
    "communication",
    "copies",
    "casts",
    "attention",
    "optimizer",
    "fusible",
    "stalls",
    "steps",
    "occupancy",
    "memory",
    "npu",
    "links",
    "hardware",
)


def rules() -> Iterator[Rule]:
    """Yield every rule."""
    for name in MODULES:
        module = import_module(f"unified_prof.analysis.explain.advice.rules.{name}")
        yield from module.RULES


QUICK_TASKS = 200_000
"""Up to so many tasks all rules together take a tenth of what a report of them takes."""


def advise(recording: Recording, *, quick: bool = False) -> Advice:
    """Ask the rules what could be better, the costliest first.

    Args:
        recording: what to judge.
        quick: whether to ask of a large recording only the rules that are cheap.
    """
    only_cheap = quick and len(recording.tasks) > QUICK_TASKS
    cases = _cases(recording)
    found: list[Finding] = []
    missing: list[NotJudged] = []
    silent: list[str] = []
    for rule in rules():
        if only_cheap and not rule.cheap:
            continue
        why = {lacking for case in cases if (lacking := rule.lacks(case)) is not None}
        able = [case for case in cases if rule.lacks(case) is None]
        own = [list(rule.judge(case)) for case in able]
        found += _merged(own)
        if not able:
            missing.append(NotJudged(rule.kind, min(why, default="the recording is empty")))
        elif not any(own):
            silent.append(rule.kind)
    steps = max((len(case.steps) for case in cases), default=0)
    paused = max((case.pauses for case in cases), key=lambda one: one.total_ns, default=None)
    whole = max((case.whole_ns / case.step_count for case in cases), default=0.0)
    return Advice(
        findings=tuple(ranked(found)),
        not_judged=tuple(missing),
        judged=tuple(silent),
        steps=steps,
        step_ms=round(whole / 1e6, 6) if whole else None,
        pauses=0 if paused is None else len(paused),
        paused_ms=0.0 if paused is None else round(paused.total_ns / 1e6, 6),
        complete=not only_cheap,
    )


def ranked(found: list[Finding]) -> list[Finding]:
    """Return findings, the costliest first."""
    return sorted(found, key=lambda one: (-one.cost_ms_per_step, one.kind, one.text))


def _cases(recording: Recording) -> list[Case]:
    if recording.clock == "device":
        return [Case(recording, name) for name in recording.devices]
    return [Case(recording, None)] if recording.clock == "host" else []


def _merged(of_devices: list[list[Finding]]) -> list[Finding]:
    """Return what one rule found; what several devices have in common is said once."""
    if len(of_devices) < 2:
        return [one for own in of_devices for one in own]
    by_kind: dict[str, list[Finding]] = {}
    for own in of_devices:
        for kind in dict.fromkeys(one.kind for one in own):
            alike = [one for one in own if one.kind == kind]
            by_kind.setdefault(kind, []).append(ranked(alike)[0])
    merged = []
    for alike in by_kind.values():
        first = ranked(alike)[0]
        others = len(alike) - 1
        if others:
            words = "another device" if others == 1 else f"{others} other devices"
            first = replace(first, text=f"{first.text}; the same on {words}")
        merged.append(replace(first, figures={**first.figures, "devices": len(alike)}))
    return merged
