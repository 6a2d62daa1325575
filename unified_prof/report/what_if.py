"""What a step would gain: as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from unified_prof.analysis.base import Analysis
from unified_prof.analysis.explain.stretches import IN_WORDS
from unified_prof.analysis.explain.supposed import Change, Supposed
from unified_prof.analysis.load import Opened
from unified_prof.report import heading, words
from unified_prof.report.documents import dumped
from unified_prof.report.figures import answers, coverage_fields
from unified_prof.report.tables import Column
from unified_prof.report.terminal import Page

FORMAT_VERSION = 1
"""Of the JSON: raised when a key changes its meaning or goes away."""

SUFFIXES = {"text": (".txt",), "json": (".json",)}

_STEPS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """One report and what it would gain."""

    path: str
    family: str
    title: str
    supposed: Supposed


def gather(opened: Opened, changes: Sequence[Change], *, top: int) -> list[Answer]:
    """Ask every report.

    Raises:
        StoreError: none could be read to its end.
        UsageError: a report cannot say.
    """

    def ask(analysis: Analysis) -> Answer:
        supposed, summary = analysis.what_if(changes, top=top), analysis.summary
        return Answer(summary.path, summary.family, heading.title(summary), supposed)

    return answers(opened, ask)


def json_text(reports: Iterable[Answer], changes: Sequence[Change], opened: Opened) -> str:
    """Return all of it as JSON; times are ns."""
    return dumped(
        {
            "format": "uprof-what-if",
            "version": FORMAT_VERSION,
            "changes": [
                {"name": one.name, "factor": None if isinf(one.factor) else one.factor}
                for one in changes
            ],
            "reports": [
                {"path": one.path, "family": one.family, **_document(one.supposed)}
                for one in reports
            ],
            "coverage": coverage_fields(opened.coverage),
        }
    )


def _document(one: Supposed) -> dict[str, Any]:
    gain = one.gain
    return {
        "steps": one.steps,
        "before_ns": one.before_ns,
        "after_ns": None if gain is None else gain.after_ns,
        "gain_ns": None if gain is None else gain.gain_ns,
        "gain_per_step_ns": None if gain is None else gain.per_step_ns,
        "changed_ns": None if gain is None else gain.changed_ns,
        "by_step": []
        if gain is None
        else [
            {"step": name or None, "before_ns": before, "after_ns": after}
            for name, before, after in gain.by_step_ns
        ],
        "worth": [
            {
                "name": found.name,
                "kind": found.kind,
                "on_path_ns": found.on_path_ns,
                "gain_ns": found.gain_ns,
                "gain_per_step_ns": found.gain_ns / one.steps,
            }
            for found in one.worth
        ],
        "limits": list(one.limits),
    }


def text(
    reports: Iterable[Answer],
    changes: Sequence[Change],
    *,
    width: int | None,
    color: bool,
    full_names: bool,
) -> str:
    """Return all of it for a terminal."""
    page = Page(width=width, color=color, full_names=full_names)
    for number, one in enumerate(reports):
        if number:
            page.gap()
        page.title(one.title)
        supposed = one.supposed
        if supposed.gain is None:
            page.fact("critical path", _whole(supposed))
            page.gap()
            page.table(_worth(supposed))
            if any(found.kind == "synchronising" for found in supposed.worth):
                page.note(f"synchronising calls: what {_what(supposed)} gains without them")
        else:
            _gain(page, supposed, changes)
        for limit in supposed.limits:
            page.note(limit)
    return page.text()


def _what(one: Supposed) -> str:
    """Return what gains."""
    return "a step" if one.stepped else "the recording"


def _whole(one: Supposed) -> str:
    length = words.duration(one.before_ns / one.steps)
    return f"{words.number(one.steps)} steps of {length} on average" if one.steps > 1 else length


def _gain(page: Page, one: Supposed, changes: Sequence[Change]) -> None:
    gain = one.gain
    assert gain is not None
    a_step = gain.before_ns / gain.steps
    for change in changes:
        how = "gone" if isinf(change.factor) else f"{change.factor:g} times as fast"
        page.fact("if", f"{words.neutral(change.name)} is {how}")
    page.fact(
        "then",
        f"{_what(one)} gains {words.duration(gain.per_step_ns)} of {words.duration(a_step)} "
        f"({words.share(gain.per_step_ns, a_step)}) and takes "
        f"{words.duration(gain.after_ns / gain.steps)}",
    )
    changed = gain.changed_ns / gain.steps
    if changed > 1.01 * max(gain.per_step_ns, 0):
        page.fact(
            "hidden",
            f"what is changed takes {words.duration(changed)} less; the rest of that is not on "
            "the critical path, or something else then is",
        )
    if 1 < gain.steps <= _STEPS_SHOWN:
        page.gap()
        rows = gain.by_step_ns
        page.table(
            [
                Column("step", tuple(words.neutral(name) for name, _, _ in rows), is_name=True),
                Column("recorded", tuple(words.duration(before) for _, before, _ in rows)),
                Column("would take", tuple(words.duration(after) for _, _, after in rows)),
                Column("gain", tuple(words.duration(one - other) for _, one, other in rows)),
                Column("share", tuple(words.share(one - other, one) for _, one, other in rows)),
            ]
        )


def _worth(one: Supposed) -> list[Column]:
    found = one.worth
    whole = one.before_ns
    return [
        Column("twice as fast", tuple(words.neutral(row.name) for row in found), is_name=True),
        Column(
            f"{_what(one)} gains", tuple(words.duration(row.gain_ns / one.steps) for row in found)
        ),
        Column("share", tuple(words.share(row.gain_ns, whole) for row in found)),
        Column(
            "on the path",
            tuple(words.duration(row.on_path_ns / one.steps) for row in found),
            importance=5,
        ),
        Column("what", tuple(IN_WORDS[row.kind] for row in found), is_name=True, importance=2),
    ]
