"""Which changed finding of two recordings comes first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unified_prof.compare.device_tables import DeviceDifference
from unified_prof.recording.model import Finding
from unified_prof.report.device_sentences import _main_finding

MS = 1_000_000


def side(step_ms: float, **costs_ms: float) -> Any:
    findings = {
        kind: (0, Finding(kind, (), (), (), (), cost, kind)) for kind, cost in costs_ms.items()
    }
    return SimpleNamespace(
        steps=1,
        findings=findings,
        window_ns=step_ms * MS,
        per_share=lambda ns: ns,
        finding_ns=lambda kind: costs_ms.get(kind, 0.0) * MS,
    )


@pytest.mark.parametrize(
    ("new_ms", "first", "most"),
    [
        (96.0, "compile", "most in this direction costs 5.00 ms/step instead of 9.00 ms/step"),
        (104.0, "wait", "most costs 83.0 ms/step instead of 77.0 ms/step"),
    ],
)
def test_finding_that_changed_as_the_step_did_comes_first(
    new_ms: float, first: str, most: str
) -> None:
    base, new = side(100.0, wait=77.0, compile=9.0), side(new_ms, wait=83.0, compile=5.0)
    found: Any = SimpleNamespace(base=base, new=new, longest_ns=max(100.0, new_ms) * MS)
    changes: Any = vars(DeviceDifference)["findings"]
    found.findings = changes.func(found)
    assert len(found.findings) == 2
    assert found.findings[0].finding.kind == first
    assert f"The finding that changed {most}" in _main_finding(found, found.findings[0])
