"""axe-core in a page, from whichever package brings it: only the tests depend on it."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.report.browser import Browser

_PACKAGES = ("axe_playwright_python", "axe_core_python")
"""The newer axe first."""
SERIOUS = ("serious", "critical")


def missing() -> str | None:
    """Return why there is no axe-core here, or None."""
    if _script() is None:
        return "needs axe-core (pip install axe-core-python, or 'unified-prof[dev]')"
    return None


def found(window: Browser) -> list[str]:
    """Return what axe says of what is shown, by how much it hinders."""
    script = _script()
    assert script is not None
    window.run(f"{script.read_text(encoding='utf-8')}\nwindow.axe = axe;")
    told: list[list[Any]] = window.run_until_told(
        "axe.run(document, {resultTypes: ['violations']}).then((found) => told("
        "found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) =>"
        " `${node.target.join(' ')}: ${node.failureSummary}`)])))"
    )
    return [f"{impact}: {rule}: {'; '.join(nodes[:3])}" for impact, rule, nodes in told]


@lru_cache
def _script() -> Path | None:
    for package in _PACKAGES:
        place = find_spec(package)
        if place is not None and place.origin is not None:
            script = Path(place.origin).with_name("axe.min.js")
            if script.is_file():
                return script
    return None
