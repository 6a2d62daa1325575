"""One line makes a breakdown: the command line, the formats and the page take all from it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.analysis.builders import training_step
from unified_prof.cli.report import ByOption
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.recording.breakdown_kinds import KINDS
from unified_prof.recording.recording import breakdown_spec
from unified_prof.report import html_page as html
from unified_prof.report.formats import ReportRequest


def test_the_command_line_offers_every_breakdown() -> None:
    assert [one.value for one in ByOption] == list(KINDS)


@pytest.mark.parametrize("by", KINDS)
def test_a_breakdown_is_made_or_says_why_not(by: str, tmp_path: Path) -> None:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    with open_analyses(path) as (analysis,):
        if by in analysis.summary.available:
            assert analysis.breakdown(by).by == by
        elif not KINDS[by].when_asked:
            with pytest.raises(UsageError, match=re.escape(KINDS[by].why_not)):
                analysis.breakdown(by)


def test_modules_hold_no_breakdown_that_nobody_can_ask_for() -> None:
    for module in {kind.module for kind in KINDS.values()}:
        ways = import_module(f"unified_prof.explain.{module}").BREAKDOWNS
        assert set(ways) == {kind.by for kind in KINDS.values() if kind.module == module}


def test_the_page_has_the_words_for_what_it_shows(tmp_path: Path) -> None:
    training_step(tmp_path / "msprof_20260101000000.db")
    with open_reports(tmp_path) as opened:
        page = html.produce_page(opened, ReportRequest())
    for kind in KINDS.values():
        assert f'"{kind.by}":{{"title":"{kind.title}","detail":"{kind.detailed}"}}' in page


def test_naming_breakdowns_imports_nothing_heavy() -> None:
    code = "import sys, unified_prof.recording.breakdown_kinds; print('numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


def test_every_kind_has_a_specification() -> None:
    assert all(callable(breakdown_spec(kind).compute) for kind in KINDS.values())
