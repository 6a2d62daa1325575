"""Damaged recordings of every kind: refused or counted, without a traceback, in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import damage
from unified_prof.pipeline.sources import SOURCES

MOST_MB = 200
"""Memory that a process with all our modules may take for recordings of a few KB."""


def test_every_source_is_damaged() -> None:
    assert {source.kind for source in SOURCES} == {kind for kind, _ in damage.FORMS.values()}


@pytest.mark.quick(cases=4)
@pytest.mark.parametrize("form", damage.FORMS)
def test_damage_is_refused_or_counted(form: str, tmp_path: Path) -> None:
    found = damage.main(form, tmp_path, rounds=1)
    assert found["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("form", damage.FORMS)
def test_much_damage_is_refused_or_counted_in_bounded_memory(form: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.damage", form, str(tmp_path), "25"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=300,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["converted"] + found["refused"] == 25 * len(damage.WAYS)
    assert found["refused"] or found["converted"]
    assert found["peak_mb"] < MOST_MB
