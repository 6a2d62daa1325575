"""A reduced form of `python -m tests.faults`, and tests of the checks themselves."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults import commands, kinds
from tests.faults.__main__ import plan, table
from tests.faults.commands import COMMANDS, Command, damage
from tests.faults.kinds import FAULTS, Fault
from tests.faults.trial import Outcome, Session

pytestmark = [
    pytest.mark.fresh_interpreter,
    pytest.mark.skipif(sys.platform != "linux", reason="uses /proc, /dev/full and mounts"),
]

TRIALS = len(FAULTS)


@pytest.mark.slow
def test_commands_with_faults_leave_complete_files_or_none(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    session = Session(tmp_path / "s")
    cheap = [command for command in COMMANDS if command.weight == 4]
    outcomes = []
    for number in range(TRIALS):
        command, fault = cheap[7 * number % len(cheap)], FAULTS[number % len(FAULTS)]
        if session.can_mount or not fault.needs_mount:
            outcomes.append(session.run(command, fault, number))
    failed = [outcome for outcome in outcomes if outcome.failures]
    assert failed == [], table(outcomes)
    assert sum(outcome.struck for outcome in outcomes) >= TRIALS // 4


@pytest.mark.slow
def test_left_files_and_processes_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program stands in for uprof: it fails, and leaves all that must not be left."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, subprocess, sys\n"
        "pathlib.Path('out.json').write_text('{')\n"
        "pathlib.Path('out.db.1-2-3.4.partial').touch()\n"
        "pathlib.Path(os.environ['TMPDIR'], 'uprof-x').touch()\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "raise KeyError('a bug')\n"
    )
    session = Session.__new__(Session)
    session.root, session.inputs, session.hashes = tmp_path, tmp_path / "in", {}
    session._number, session._references = 0, {"broken": kinds.Reference(1, 1, 1 << 30, 9, 100)}
    monkeypatch.setattr("tests.faults.trial.UPROF", [sys.executable, str(program)])
    monkeypatch.setattr("tests.faults.trial.ORPHANS_S", 0.2)
    broken = Command("broken", "-o out.json", (), is_file=True)
    outcome = session.run(broken, Fault("none", "none", lambda launch, reference, chance: None), 1)
    found = "\n".join(outcome.failures)
    for failure in (
        "exit code 1",
        "left a process: ",
        "stderr has 'Traceback'",
        "out.json is incomplete: JSONDecodeError",
        "left out.db.1-2-3.4.partial",
        "left uprof-x in TMPDIR",
    ):
        assert failure in found


@pytest.mark.parametrize("suffix", sorted(commands._PARSERS.keys() - {".parquet"}))
def test_truncated_file_is_recognized_as_incomplete(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out{suffix}"
    if suffix in (".db", ".bak", ".sqlite"):
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE t (x)")
            db.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 100)
        size = path.stat().st_size * 2 // 3
    else:
        ends = {".html": "</html>\n", ".xml": "</testsuites>\n", ".json": "[1, 2]\n"}
        path.write_text(ends.get(suffix, "a,b\n1,2\n"))
        size = path.stat().st_size - 3
    assert damage(path) == ""
    path.write_bytes(path.read_bytes()[:size])
    assert damage(path) != ""


def test_full_plan_has_every_command_with_every_fault() -> None:
    pairs = {(command.name, fault.name) for command, fault in plan(1000, seed=1)}
    assert len(pairs) == len(COMMANDS) * len(FAULTS)
    assert plan(1000, seed=1) == plan(1000, seed=1) != plan(1000, seed=2)
    kills = [fault for _, fault in plan(1000, seed=1) if fault.is_repaired]
    assert len(kills) >= 400


def test_table_counts_trials_and_failures() -> None:
    outcomes = [Outcome("report", "KILL", 1, failures=["hangs"]), Outcome("report", "KILL", 2)]
    assert "| KILL | 2 | 0 | 1 |" in table(outcomes)
    assert table(outcomes).endswith("2 trials, 1 failed")
