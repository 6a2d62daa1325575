"""Hostile input of every format is refused or counted: no traceback, hang, loss or exhaustion.

`python -m tests.hostile --rounds 1000` is the full form; docs/validation.md has its counts.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.hostile import mutators
from tests.hostile.attacks import ATTACKS
from tests.hostile.formats import CONVERT, FORMATS
from unified_prof.pipeline import sources
from unified_prof.pipeline.sources import SOURCES


def made(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    return FORMATS[name].make(folder)


def test_every_source_is_attacked(tmp_path: Path) -> None:
    found = set()
    for number, name in enumerate(FORMATS):
        if FORMATS[name].commands == CONVERT:
            source = sources.find_source(made(name, tmp_path / str(number)))
            found.add(source and source.kind)
    assert found >= {source.kind for source in SOURCES}


def test_every_mutator_applies_to_a_format(tmp_path: Path) -> None:
    names = ("kineto JSON", "nsys SQLite", "nsys Parquet", "snapshot, pickle")
    files = [file for name in names for file in mutators.files_of(made(name, tmp_path / name))]
    for name, mutate in mutators.MUTATORS.items():
        changed = []
        for file in files:
            before = file.read_bytes()
            assert mutate(file, random.Random(name)) or file.read_bytes() == before, name
            changed.append(file.read_bytes() != before)
            file.write_bytes(before)
        assert any(changed), name


def attacked(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failures == []
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_mutations_are_refused_or_counted(name: str) -> None:
    assert f"| {name} | 30 |" in attacked(name, "--rounds", "30")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_inputs_made_to_exhaust_or_mislead_are_refused_or_converted(name: str) -> None:
    assert f"| {name} | 1 |" in attacked(name)
