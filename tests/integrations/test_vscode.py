"""The extension for Visual Studio Code builds from npm, and its bundle works."""

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.processes import run

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = ROOT / "editors" / "vscode"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js")
def test_extension_is_checked_built_tested_and_packaged(tmp_path: Path) -> None:
    shutil.copytree(EXTENSION, tmp_path / "e", ignore=shutil.ignore_patterns("node_modules"))

    def npm(*words: str) -> subprocess.CompletedProcess[str]:
        return run("npm", *words, cwd=tmp_path / "e")

    installed = npm("ci", "--no-audit", "--no-fund")
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the packages: {installed.stderr[-300:]}")
    for name in ("check", "build", "test", "package"):
        done = npm("run", name)
        assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / "e" / "dist" / "uprof.vsix") as package:
        assert "extension/dist/extension.js" in package.namelist()


def test_extension_offers_what_the_server_has() -> None:
    package = json.loads((EXTENSION / "package.json").read_text(encoding="utf-8"))
    source = (EXTENSION / "src" / "extension.ts").read_text(encoding="utf-8")
    server = (ROOT / "unified_prof" / "integrations" / "language_server.py").read_text()
    for name in ("uprof.reload", "uprof.openPage"):
        assert f'"{name}"' in source
        assert f'"{name}"' in server
    for command in package["contributes"]["commands"]:
        assert f'registerCommand("{command["command"]}"' in source
