"""Databases equal those that torch_npu's analysis writes for the same directories."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tests.decoders.prof.test_goldens import REVISION, canon
from unified_prof.pipeline.convert import convert

GOLDENS = Path(__file__).resolve().parents[3].parent / "shared" / "goldens" / "ascend_pt"
CASES = sorted(path.name for path in GOLDENS.iterdir()) if GOLDENS.is_dir() else []


def difference(
    script: Path, expected: Path, database: Path, ignore: Sequence[str] = (), rel: float = 0.0
) -> str:
    functions = canon(script)
    tables = functions["read"](str(expected), ignore=ignore)
    if "META_DATA" in tables:
        # The environment of the process that ran the analysis.
        columns, rows = tables["META_DATA"]
        tables["META_DATA"] = columns, [row for row in rows if row[0] != "ENV_VARIABLES"]
    with redirect_stdout(StringIO()) as lines:
        found = functions["dump"](str(database), ignore=ignore)
        differs = functions["compare"](tables, found, rel=rel)
    return lines.getvalue() if differs else ""


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize("case", CASES)
def test_databases_equal_those_of_torch_npu(case: str, shared: Path, tmp_path: Path) -> None:
    source = shared / "goldens" / "ascend_pt" / case
    script = shared / "goldens" / "canon.py"
    with tarfile.open(source / "raw.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    folders = sorted(tmp_path.glob("*_ascend_pt"))
    assert folders
    for folder in folders:
        database = convert(folder, schema=REVISION).database
        expected = source / "expected" / folder.name
        # Without PROF_*, it is the host of the analysis.
        ignored = () if any(folder.glob("PROF_*")) else ("HOST_INFO",)
        main = expected / f"{database.name}.txt.xz"
        assert not difference(script, main, database, ignored)
        analysis = database.with_name("analysis.db")
        analyzed = expected / f"{analysis.name}.txt.xz"
        assert analysis.exists() == analyzed.exists()
        if analyzed.exists():
            assert not difference(script, analyzed, analysis, rel=1e-9)
