"""A rule: what it looks for, what it needs, and where it is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from unified_prof.analysis.explain.advice import lacking
from unified_prof.analysis.explain.advice.case import Case
from unified_prof.analysis.explain.advice.lacking import Lacks
from unified_prof.analysis.finding import Finding


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause to look for."""

    kind: str
    """Kind of its findings."""
    name: str
    """What judges, `module.function` of `rules`: imported where a recording has what it needs."""
    lacks: Lacks = lacking.device
    cheap: bool = False
    """Whether it asks only for what a report joins anyway."""

    def judge(self, case: Case) -> Iterator[Finding]:
        """Yield what it finds; the case lacks nothing."""
        found: Iterator[Finding] = lacking.of_rules(self.name)(case)
        yield from found
