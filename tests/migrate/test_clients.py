"""Third-party readers can open and use upgraded files."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import processes
from unified_prof.migrate.upgrade import upgrade

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("target", ["documented", "latest"])
def test_msprof_analyze_reads_upgraded_files(shared: Path, tmp_path: Path, target: str) -> None:
    program = os.environ.get("MSPROF_ANALYZE") or shutil.which("msprof-analyze")
    if program is None:
        pytest.skip("msprof-analyze is not installed (MSPROF_ANALYZE names it)")
    job = tmp_path / "job"
    for source in (shared / "samples" / "ascend" / "level1").rglob("*.db"):
        copy = job / source.relative_to(shared / "samples" / "ascend" / "level1")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        if copy.name.startswith("ascend_pytorch_profiler"):
            assert upgrade(copy, target, backup=False).before == "1.0.0_20241112"
    accept = [sys.executable, str(shared / "tools" / "accept.py"), str(job)]
    environment = {"ACCEPT_TMP": str(tmp_path), "HOME": str(tmp_path)}
    options = ("--no-insight", "--ranks", "2", "--msprof-analyze", program)
    run = processes.run(*accept, *options, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
