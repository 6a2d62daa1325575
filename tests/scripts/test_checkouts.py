"""Checkouts of other revisions, which scripts compare with this one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys; sys.path.insert(0, {scripts!r})
import checkouts
checkouts.require_packages("v1", open({pyproject!r}).read())
"""


def require(tmp_path: Path, *dependencies: str) -> subprocess.CompletedProcess[str]:
    pyproject = tmp_path / "pyproject.toml"
    lines = "".join(f'    "{one}",\n' for one in dependencies)
    pyproject.write_text(f"[project]\ndependencies = [\n{lines}]\n")
    code = CODE.format(scripts=str(ROOT / "scripts"), pyproject=str(pyproject))
    return python("-c", code)


@pytest.mark.slow
def test_missing_packages_of_a_revision_are_named_with_the_command(tmp_path: Path) -> None:
    done = require(
        tmp_path, "numpy>=1.26", "no-such-package[extra]>=2", "absent; python_version < '3'"
    )
    assert done.returncode == 1
    assert "v1 requires no-such-package[extra]>=2, which this environment lacks" in done.stderr
    assert f"{sys.executable} -m pip install 'no-such-package[extra]>=2'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_requirements_of_this_revision_are_installed(tmp_path: Path) -> None:
    done = require(tmp_path, "numpy>=1.26", "msgspec>=0.18")
    assert (done.returncode, done.stderr) == (0, "")
