"""A row of KINDS declares a breakdown for the command line, the formats and the page."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.analysis.builders import training_step
from unified_prof.cli.app import app
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.recording.model import KINDS
from unified_prof.report import html_page as html
from unified_prof.report.formats import ReportRequest


def test_command_line_offers_every_breakdown() -> None:
    (by,) = (one for one in app.commands["report"].params if one.name == "by")
    assert list(by.to_info_dict()["type"]["choices"]) == list(KINDS)


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("by", KINDS)
def test_breakdown_is_computed_or_refused_with_its_reason(by: str, tmp_path: Path) -> None:
    training_step(path := tmp_path / "msprof_20260101000000.db")
    with open_analyses(path) as (analysis,):
        if by in analysis.summary.available:
            assert analysis.breakdown(by).by == by
        elif not KINDS[by].when_asked:
            with pytest.raises(UsageError, match=re.escape(KINDS[by].why_not)):
                analysis.breakdown(by)


def test_breakdown_modules_implement_exactly_the_declared_kinds() -> None:
    for module in {kind.module for kind in KINDS.values()}:
        specs = import_module(f"unified_prof.explain.{module}").BREAKDOWNS
        assert set(specs) == {kind.by for kind in KINDS.values() if kind.module == module}


def test_page_has_title_and_detail_heading_of_every_breakdown(tmp_path: Path) -> None:
    training_step(tmp_path / "msprof_20260101000000.db")
    with open_reports(tmp_path) as opened:
        page = html.produce_page(opened, ReportRequest())
    for kind in KINDS.values():
        assert f'"{kind.by}":{{"title":"{kind.title}","detail":"{kind.detailed}","count":' in page
