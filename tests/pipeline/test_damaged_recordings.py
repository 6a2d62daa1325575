"""Damaged recordings of every kind are refused or counted, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import damage
from unified_prof.pipeline.sources import SOURCES

MOST_MB = 200
"""Memory that a process with all modules may use for recordings of a few KB."""


def test_every_source_has_a_damaged_form() -> None:
    assert {source.kind for source in SOURCES} == {kind for kind, _ in damage.FORMS.values()}


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("form", damage.FORMS)
def test_damage_is_refused_or_counted(form: str, tmp_path: Path) -> None:
    found = damage.main(form, tmp_path, rounds=1)
    assert found["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("form", damage.FORMS)
def test_heavy_damage_is_refused_or_counted_in_bounded_memory(form: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.damage", form, str(tmp_path), "25"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=300,
        check=True,
    )
    found = json.loads(result.stdout)
    assert found["wrong"] == []
    assert found["converted"] + found["refused"] == 25 * len(damage.DAMAGES)
    assert found["refused"] or found["converted"]
    assert found["peak_mb"] < MOST_MB
