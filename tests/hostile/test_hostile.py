"""Hostile input of every format is refused or counted: no traceback, hang, loss or exhaustion.

`python -m tests.hostile --rounds 1000` is the full form; docs/validation.md has its counts.
"""

import random
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.hostile import mutators
from tests.hostile.attacks import ATTACKS
from tests.hostile.formats import CONVERT, FORMATS
from tests.processes import python
from unified_prof.pipeline import sources
from unified_prof.pipeline.sources import SOURCES

PARTS = 4
ROUNDS = "12"


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
    names = ("kineto", "nsys", "nsys Parquet", "memory_snapshot")
    files = [file for name in names for file in mutators.files_of(made(name, tmp_path / name))]
    for name, mutate in mutators.MUTATORS.items():
        changed = []
        for file in files:
            before = file.read_bytes()
            assert mutate(file, random.Random(name)) or file.read_bytes() == before, name
            changed.append(file.read_bytes() != before)
            file.write_bytes(before)
        assert any(changed), name


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_inputs_are_refused_counted_or_converted(part: int) -> None:
    """The start of a process takes longer than most of its inputs, so each takes a part."""
    formats, attacks = [*FORMATS][part::PARTS], [*ATTACKS][part::PARTS]
    done = python(
        "-m", "tests.hostile", *formats, *attacks, "--rounds", ROUNDS, cwd=ROOT, timeout=580
    )
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failures == []
    assert done.returncode == 0, done.stderr
    for name in formats:
        assert f"| {name} | {ROUNDS} |" in done.stdout
    for name in attacks:
        assert f"| {name} | 1 |" in done.stdout
