"""`make compat` runs existing tests and prints the row of the table."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def compat(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script, with this interpreter instead of a new environment."""
    spec = importlib.util.spec_from_file_location("compat", ROOT / "scripts" / "compat.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "CACHE", tmp_path / "compat")
    monkeypatch.setattr(script, "environment", lambda *_, **__: Path(sys.executable))
    return script


def test_listed_tests_exist(compat: Any) -> None:
    assert [path for path in (*compat.TESTS, "tests/wild") if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_output_shows_torch_python_and_the_test_results(
    compat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_one(): pass\n"
        "def test_two(): assert False\n"
        "@pytest.mark.skip\n"
        "def test_three(): pass\n"
    )
    monkeypatch.setattr(compat, "TESTS", (str(tests),))
    monkeypatch.setattr(sys, "argv", ["compat.py", "2.6.0"])
    assert compat.main() == 1
    last = capsys.readouterr().out.splitlines()[-1]
    _, torch, python, counts, _ = last.split("|")
    assert torch.strip()[:1].isdigit()
    assert python.strip() == ".".join(map(str, sys.version_info[:3]))
    assert counts.strip() == "1 failed, 1 passed, 1 skipped"


def test_kept_environment_is_reused_others_go(compat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "run_tests", lambda *_, **__: 0)
    folder = compat.CACHE / f"torch-2.6.0-{Path(sys.executable).name}"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["compat.py", "2.6.0", "--keep"])
    assert compat.main() == 0
    assert folder.exists()
    monkeypatch.setattr(sys, "argv", ["compat.py", "2.6.0"])
    assert compat.main() == 0
    assert not folder.exists()


def test_make_passes_its_variables_to_the_script() -> None:
    command = ["make", "-n", "compat", "TORCH=2.6.0", "PYTHON=python3.12", "KEEP=1"]
    # A make that runs this test passes its options on and would print its directories.
    ours = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(command, cwd=ROOT, env=ours, capture_output=True, text=True, check=True)
    assert (
        done.stdout.split()
        == "python3.12 scripts/compat.py 2.6.0 --python python3.12 --keep".split()
    )
