"""Run axe-core, from whichever installed package contains it, on a page."""

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.report.browser import Browser

_PACKAGES = ("axe_playwright_python", "axe_core_python")
"""Packages, the one with the newer axe-core first."""
SERIOUS = ("serious", "critical")


def missing() -> str | None:
    """Return why axe-core is not available, or None."""
    if _script() is None:
        return "needs axe-core (pip install axe-core-python, or 'unified-prof[dev]')"
    return None


def violations(window: Browser) -> list[str]:
    """Return the violations on the shown page, with their impact."""
    script = _script()
    assert script is not None
    window.run(f"{script.read_text(encoding='utf-8')}\nwindow.axe = axe;")
    found: list[list[Any]] = window.run_async(
        "axe.run(document, {resultTypes: ['violations']}).then((found) => done("
        "found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) =>"
        " `${node.target.join(' ')}: ${node.failureSummary}`)])))"
    )
    return [f"{impact}: {rule}: {'; '.join(nodes[:3])}" for impact, rule, nodes in found]


@lru_cache
def _script() -> Path | None:
    for package in _PACKAGES:
        place = find_spec(package)
        if place is not None and place.origin is not None:
            script = Path(place.origin).with_name("axe.min.js")
            if script.is_file():
                return script
    return None
