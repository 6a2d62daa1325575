"""What costs a run time, in one shape for one recording and for many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from unified_prof.displayed import Displayed

Sureness: TypeAlias = Literal["certain", "likely", "possible"]
"""How sure a finding is: measured as such; measured, and its cause inferred; one of several
explanations of what was measured."""

Evidence: TypeAlias = Mapping[str, Any]
"""One row behind a finding: `name`, and what else is known of it (`line`, `count`, `total_ns`)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that costs the run time."""

    kind: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]
    cost_ms_per_step: float
    """What a step would gain without it."""
    text: str
    figures: dict[str, Any] = field(default_factory=dict)
    advice: str = ""
    """One concrete thing to try."""
    sure: Sureness = "certain"
    evidence: tuple[Evidence, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the finding as plain data for JSON."""
        found = asdict(self)
        for name in ("ranks", "hosts", "steps", "evidence"):
            found[name] = list(found[name])
        found["links"] = [list(pair) for pair in self.links]
        return found


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that could not be asked, and what it lacked."""

    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Advice(Displayed):
    """What can be said of one recording, the costliest first; a healthy one has no finding."""

    findings: tuple[Finding, ...]
    not_judged: tuple[NotJudged, ...] = ()
    judged: tuple[str, ...] = ()
    """The rules that were asked and found nothing."""
    steps: int = 0
    """How many steps were judged; 0: the recording has none, its window is one."""
    step_ms: float | None = None
    """How long one of them took on average, ms; None: nothing was timed."""
    pauses: int = 0
    """Gaps that were not judged: without steps nobody can tell a pause from a slow host."""
    paused_ms: float = 0.0
    """Their length, on the device that has most of them, ms."""
    complete: bool = True
    """Whether all rules were asked, not only those that a report of a large recording has time for.
    """
