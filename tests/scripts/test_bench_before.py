"""`scripts/bench_before.py` and its checkouts end in time and leave nothing behind."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("bench_before")


def test_command_over_its_time_limit_is_killed_with_its_children(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "command", lambda *words: ["sh", "-c", *words])
    child = tmp_path / "child"
    with pytest.raises(script.LeftOutError, match=r"this checkout takes longer than 0\.2 s"):
        script.cpu_s((f"sleep 60 & echo $! > {child}; wait",), script.ROOT, tmp_path, 0.2)
    assert ends(int(child.read_text()))


def test_command_unknown_to_a_checkout_is_named(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "command", lambda *words: ["sh", "-c", *words])
    comparison = script.Comparison(tmp_path, tmp_path, 9.0)
    comparison.measure({"new": ("exit 2",), "old": ("true",)}, 2, time.monotonic() + 60)
    assert comparison.left_out == {"new": "exit code 2 of this checkout"}
    assert len(comparison.pairs("old")) == 2
    assert comparison.pairs("new") == []


def test_no_pair_is_started_after_the_time_limit(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(script.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(script.Comparison, "_pair", lambda *_, turned: (1.0, 1.0 + turned))
    comparison = script.Comparison(tmp_path, tmp_path, 9.0)
    comparison.measure({"a": (), "b": ()}, 50, 6)
    assert comparison.pairs("a") == [(1.0, 2.0), (1.0, 1.0), (1.0, 2.0)]
    assert len(comparison.pairs("b")) == 2


def test_difference_is_between_two_commands_of_one_round(script: Any, tmp_path: Path) -> None:
    ((name, (more, less)),) = script.DIFFERENCES.items()
    comparison = script.Comparison(tmp_path, tmp_path, 9.0)
    comparison.rounds = [{more: (5.0, 4.0), less: (2.0, 3.0)}, {less: (2.0, 2.0)}]
    assert comparison.pairs(name) == [(3.0, 1.0)]
    assert script.row(name, [(3.0, 1.5)]).endswith(
        "| 3.00 s | 1.50 s | 0.50 (0.50-0.50) | 0.50 | 1 |"
    )


@pytest.mark.slow
def test_checkout_is_removed_if_a_signal_ends_the_process(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    before = worktrees()
    waits = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        "from checkouts import checkout\n"
        "with checkout('HEAD') as folder:\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", waits], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "unified_prof" / "__init__.py").is_file()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert worktrees() == before


def worktrees() -> list[str]:
    """Return the paths of the repository's worktrees."""
    listed = run("git", "-C", str(ROOT), "worktree", "list", "--porcelain", check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith("worktree ")]


def ends(process: int) -> bool:
    """Return whether a process that has no parent here ends soon."""
    until = time.monotonic() + 400
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False
