"""Upgrades killed at every moment, and concurrent upgrades of one file."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.migrate.databases import LATEST, make, opened, rows_of, tables_of
from unified_prof.migrate import runner
from unified_prof.migrate.upgrade import upgrade
from unified_prof.sqlite.opening import detect

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")

OLD = "1.2.0_20250922"
MOMENTS = {"os.rename", "os.link", "os.remove", "os.chmod", "sqlite3.connect"}


def make_old(path: Path) -> Path:
    return make(
        path,
        OLD,
        {
            "STRING_IDS": [(number, f"text {number}") for number in range(1000)],
            "COMPUTE_TASK_INFO": [(1, number, 24, *range(12)) for number in range(300)],
        },
        "ALTER TABLE COMPUTE_TASK_INFO ADD COLUMN waitNs INTEGER",
    )


def content(path: Path) -> dict[str, Any]:
    with opened(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return {table: rows_of(path, f"SELECT * FROM {table}") for table in tables_of(path)}


def status_of_child(work: Callable[[], object]) -> int:
    """Call `work` in a child process and return its wait status."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def upgrade_until(path: Path, moment: int) -> None:
    """Upgrade and get killed at a moment, which is a step of the schema or a file operation."""
    remaining = moment

    def pass_moment() -> None:
        nonlocal remaining
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        remaining -= 1

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in MOMENTS and str(path.parent) in str(arguments):
            pass_moment()

    record = runner._record

    def record_and_pass(*args: Any, **kwargs: Any) -> None:
        record(*args, **kwargs)
        pass_moment()

    runner._record = record_and_pass
    sys.addaudithook(audit)
    upgrade(path)


@pytest.mark.slow
def test_original_survives_a_kill_at_every_moment(tmp_path: Path) -> None:
    whole = make_old(tmp_path / "whole.db")
    before = content(whole)
    after = content(upgrade(whole, output=tmp_path / "upgraded.db").output)
    moment = 0
    revisions = set()
    while True:
        path = tmp_path / str(moment) / "report.db"
        path.parent.mkdir()
        path.write_bytes(whole.read_bytes())
        status = status_of_child(partial(upgrade_until, path, moment))
        revision = detect(path).revision
        assert content(path) == (before if revision == OLD else after), moment
        revisions.add(revision)
        backup = path.with_name("report.db.bak")
        if revision != OLD:
            assert content(backup) == before
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        moment += 1
    assert moment > 12
    assert revisions == {OLD, LATEST}


@pytest.mark.slow
def test_upgrade_succeeds_after_a_killed_upgrade(tmp_path: Path) -> None:
    path = make_old(tmp_path / "report.db")
    status = status_of_child(lambda: upgrade_until(path, 4))
    assert os.WTERMSIG(status) == signal.SIGKILL
    upgrade(path)
    assert detect(path).revision == LATEST


@pytest.mark.slow
def test_concurrent_upgrades_of_one_file_upgrade_it_once(tmp_path: Path) -> None:
    path = make_old(tmp_path / "report.db")
    before = content(path)
    after = content(upgrade(path, output=tmp_path / "upgraded.db").output)
    start, go = os.pipe()

    def work() -> None:
        os.close(go)
        os.read(start, 1)  # returns in all processes when the parent closes its end
        upgrade(path)

    pids = []
    for _ in range(4):
        if pid := os.fork():
            pids.append(pid)
            continue
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(start)
    os.close(go)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert content(path) == after
    assert content(tmp_path / "report.db.bak") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "report.db",
        "report.db.bak",
        "upgraded.db",
    ]
