"""What findings, above the figures of a report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.analysis.advice.plants import US, Plant
from unified_prof.explain.advice import registry
from unified_prof.explain.api import open_reports
from unified_prof.report import html_page as html
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest


def recording(path: Path, *, every: int, kernels: int = 100) -> Path:
    with Plant(path) as plant:
        for at in range(kernels):
            begin = at * every
            plant.kernel(begin + US, begin + 11 * US, launched=begin, name="<b>|kernel")
    return path


SAID = "because nothing is enqueued"


def test_findings_stand_above_the_figures(tmp_path: Path) -> None:
    with open_reports(recording(tmp_path / "run.db", every=50 * US)) as opened:
        lines = report_formats.produce_text(opened, ReportRequest()).splitlines()
        told = json.loads(report_formats.produce_json(opened, ReportRequest()))
        marked = report_formats.produce_markdown(opened, ReportRequest())
        page = html.produce_page(opened, ReportRequest())
    assert lines[1] == "findings"
    assert re.match(r"[\d.]+ ms \(\d+\.\d %\)  host-bound: .*because nothing is enqueued", lines[2])
    assert "uprof advise" in lines[3]
    assert "device time" in "\n".join(lines[4:])
    (finding,) = told["reports"][0]["advice"]["findings"]
    assert finding["kind"] == "host_bound"
    assert marked.index("### Findings") < marked.index("**device time**")
    assert SAID in page


def test_a_healthy_run_has_no_block(tmp_path: Path) -> None:
    with open_reports(recording(tmp_path / "run.db", every=11 * US)) as opened:
        shown = report_formats.produce_text(opened, ReportRequest())
        marked = report_formats.produce_markdown(opened, ReportRequest())
    assert "findings of the multi-rank run" not in shown
    assert "To do first" not in marked


def test_of_a_large_recording_only_cheap_rules_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "QUICK_TASKS", 50)
    with open_reports(recording(tmp_path / "run.db", every=50 * US)) as opened:
        (analysis,) = opened.analyses
        quick, whole = analysis.advice(quick=True), analysis.advice()
    asked = {"small_kernels", "casts_and_copies", "unfused_attention"}
    assert not quick.complete
    assert whole.complete
    assert asked.isdisjoint(quick.judged)
    assert asked <= set(whole.judged)
    assert quick.findings == whole.findings
