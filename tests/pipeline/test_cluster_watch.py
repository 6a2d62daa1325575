"""`cluster build --watch` adds ranks while their files appear."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cluster import ranks
from tests.processes import run
from unified_prof.cli.app import app
from unified_prof.errors import OutputError
from unified_prof.pipeline.cluster import ClusterOutcome, build, watch
from unified_prof.pipeline.cluster_inputs import Input

pytest.importorskip("pyarrow")


def watched(source: str, target: str) -> Iterator[ClusterOutcome]:
    def refresh(found: Sequence[Input]) -> ClusterOutcome:
        return build([source], target, jobs=1, inputs=found)

    return watch([source], refresh, interval_s=0.0)


def tables(target: str) -> list[list[tuple[object, ...]]]:
    with closing(sqlite3.connect(Path(target) / "cluster.sqlite")) as database:
        return [
            database.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
            for name in ("RANK", "STEP_RANK", "COLLECTIVE", "FINDING")
        ]


def test_ranks_are_added_until_all_are_read_and_a_restart_continues(tmp_path: Path) -> None:
    made = ranks.traces(tmp_path / "made", slow_2=1.3)
    source, target = tmp_path / "in", str(tmp_path / "run.cluster")
    source.mkdir()
    for rank in (0, 1):
        shutil.copy(made / f"rank{rank}.json", source)
    outcomes = watched(str(source), target)
    first = next(outcomes)
    assert (first.ranks_read, first.absent, first.new) == (2, (2, 3), 2)
    shutil.copy(made / "rank2.json", source)
    second = next(outcomes)
    assert (second.ranks_read, second.new) == (3, 1)
    # A restart repeats the last state from the stored partials, then continues.
    outcomes = watched(str(source), target)
    assert (again := next(outcomes)).already
    assert again.ranks_read == 3
    shutil.copy(made / "rank3.json", source)
    (last,) = outcomes  # ends with the last rank
    assert (last.ranks_read, last.new, last.is_complete) == (4, 1, True)
    build([str(source)], str(tmp_path / "at_once.cluster"))
    assert tables(target) == tables(str(tmp_path / "at_once.cluster"))


def test_half_written_file_is_left_until_it_is_complete(tmp_path: Path) -> None:
    made = ranks.traces(tmp_path / "made")
    source, target = tmp_path / "in", str(tmp_path / "run.cluster")
    source.mkdir()
    for rank in (0, 1, 2):
        shutil.copy(made / f"rank{rank}.json", source)
    text = (made / "rank3.json").read_bytes()
    growing = [text[: len(text) * part // 4] for part in (4, 3, 2)]

    def refresh(found: Sequence[Input]) -> ClusterOutcome:
        outcome = build([str(source)], target, jobs=1, inputs=found)
        if growing:
            (source / "rank3.json").write_bytes(growing.pop())
        return outcome

    outcomes = watch([str(source)], refresh, interval_s=0.0)
    assert next(outcomes).ranks_read == 3
    # The writer pauses with half a file: the rank counts as incomplete, and is read again later.
    second = next(outcomes)
    assert not second.is_complete
    *_, last = outcomes
    assert (last.ranks_read, last.is_complete) == (4, True)
    assert len(list((Path(target) / "partials").iterdir())) == 4
    build([str(source)], str(tmp_path / "at_once.cluster"))
    assert tables(target) == tables(str(tmp_path / "at_once.cluster"))


def test_reason_for_waiting_is_said_once(tmp_path: Path) -> None:
    made = ranks.traces(tmp_path / "made", world=2)
    source, target = tmp_path / "in", str(tmp_path / "run.cluster")
    notes: list[str] = []

    def said(text: str) -> None:
        notes.append(text)
        shutil.copytree(made, source)

    def refresh(found: Sequence[Input]) -> ClusterOutcome:
        return build([str(source)], target, jobs=1, inputs=found)

    (outcome,) = watch([str(source)], refresh, interval_s=0.0, note=said)
    assert outcome.is_complete
    assert len(notes) == 1
    assert notes[0].startswith(f"waiting for recordings: {source}")


def test_output_that_is_no_run_is_refused_before_waiting(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    arguments = ["cluster", "build", str(tmp_path / "absent"), "-o", str(tmp_path / "mine")]
    result = CliRunner().invoke(app, [*arguments, "--watch"])
    assert isinstance(result.exception, OutputError), result.output


@pytest.mark.slow
def test_command_can_be_interrupted_and_continues(tmp_path: Path) -> None:
    made = ranks.traces(tmp_path / "made")
    source, target = tmp_path / "in", tmp_path / "run.cluster"
    shutil.copytree(made, source)
    (source / "rank3.json").unlink()
    command = [sys.executable, "-m", "unified_prof", "cluster", "build", str(source)]
    command += ["-o", str(target), "--watch"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 400
    while not (target / "cluster.sqlite").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=400)
    assert process.returncode == 130, messages
    shutil.copy(made / "rank3.json", source)
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert "4 ranks" in done.stderr
