"""Databases of recordings, compared with those of the vendor's exporter."""

from __future__ import annotations

import runpy
import tarfile
from contextlib import redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from unified_prof.decoders.prof import recording
from unified_prof.decoders.prof.slices import Workspace
from unified_prof.pipeline.convert import convert

GOLDENS = Path(__file__).resolve().parents[3].parent / "shared" / "goldens"
# Recordings and the tables in which the exporter is wrong: docs/validation.md has the evidence.
EXPORTER_IS_WRONG = {
    "50_B1_kfc_two": ("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "OVERLAP_ANALYSIS"),
    "50_E12_950wrap": ("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO", "OVERLAP_ANALYSIS", "TASK"),
    "50_G7_dup_api": ("COMMUNICATION_OP",),
}
CASES = sorted(
    str(path.relative_to(GOLDENS))
    for folder in ("prof", "prof-new")
    for path in (GOLDENS / folder).glob("*")
)

# Cases that quick test runs include.
QUICK = ("prof/01_clocks", "prof/04_hccl", "prof/16_everything")


@cache
def canon(path: Path) -> dict[str, Any]:
    """Return the functions of the script that compares databases without their ids."""
    return runpy.run_path(str(path))


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("case", sorted(CASES, key=lambda case: (case not in QUICK, case)))
def test_database_equals_the_golden_with_any_window_size(
    case: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, script = shared / "goldens" / case, canon(shared / "goldens" / "canon.py")
    with tarfile.open(next(source.glob("PROF_*.tar.xz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (recorded,) = tmp_path.glob("PROF_*")
    ignore = EXPORTER_IS_WRONG.get(source.name, ())
    expected = script["read"](str(source / "expected.txt.xz"), ignore=ignore)
    for name in ("usual.db", "small.db"):
        database = convert(recorded, tmp_path / name, schema="latest").database
        with redirect_stdout(StringIO()) as lines:
            different = script["compare"](expected, script["dump"](str(database), ignore=ignore))
        assert not different, name + lines.getvalue()
        monkeypatch.setattr(recording, "Workspace", partial(Workspace, 37, run_bytes=1500))
