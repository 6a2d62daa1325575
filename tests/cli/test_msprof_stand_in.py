"""The msprof replacement in docs/from/torch-npu.md serves the calls of torch_npu."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.prof_generator import Recipe, generate


def stand_in(folder: Path) -> Path:
    text = (ROOT / "docs" / "from" / "torch-npu.md").read_text()
    script = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert script is not None
    for name, content in (
        ("msprof", script[1]),
        ("uprof", f'#!/bin/sh\nexec "{sys.executable}" -m unified_prof "$@"\n'),
    ):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    return folder / "msprof"


@pytest.mark.slow
def test_stand_in_msprof_serves_the_analysis_of_torch_npu(tmp_path: Path) -> None:
    msprof = stand_in(tmp_path)
    prof = generate(tmp_path / "a folder", Recipe(operators=3, collectives=1)).path
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def run(*arguments: str) -> str:
        return subprocess.run(
            [msprof, *arguments], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert "--type" in run("--help")
    for _ in range(2):  # torch_npu may analyze a directory twice
        run("--export=on", "--type=db", f"--output={prof}")
        assert len(list(prof.glob("msprof_*.db"))) == 1
    run("--analyze=on", "--type=db", f"--output={prof}")
    assert (prof / "analyze" / "communication_analyzer.db").is_file()
