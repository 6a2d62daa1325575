"""Cluster summaries are not opened as reports of a process."""

from pathlib import Path

import pytest

from tests.analysis.builders import run_time_report
from unified_prof.errors import StoreError, UsageError
from unified_prof.explain.api import open_reports
from unified_prof.migrate.upgrade import create


def test_cluster_summary_is_refused_with_the_command_that_reads_it(tmp_path: Path) -> None:
    create(tmp_path / "cluster.sqlite", "cluster", "latest")
    summary = tmp_path / "cluster.sqlite"
    with pytest.raises(UsageError, match="of a multi-rank run") as caught, open_reports(summary):
        pass
    assert "uprof cluster report" in str(caught.value.hint)
    with pytest.raises(StoreError, match="no readable report"), open_reports(tmp_path):
        pass


def test_cluster_summary_beside_reports_is_ignored(tmp_path: Path) -> None:
    create(tmp_path / "cluster.sqlite", "cluster", "latest")
    run_time_report(tmp_path / "run_time.sqlite")
    with open_reports(tmp_path) as opened:
        assert [one.summary.family for one in opened.analyses] == ["skyline-run-time"]
        assert opened.coverage.sentence == ""
