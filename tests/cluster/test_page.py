"""The page of a cluster run, in a real browser: its figures are those of the JSON."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import uprof
from tests.cluster.summaries import Made, make, slow_text
from tests.report import browser
from tests.report.browser import Browser

WIDTHS = (390, 1280, 1920)
needs_browser = [pytest.mark.slow, browser.needed]


def paged(run: Path) -> Path:
    page = run.parent / f"{run.name}.html"
    done = uprof("cluster", "report", run, "-o", page)
    assert done.returncode == 0, done.stderr
    return page


def document(run: Path) -> Any:
    return json.loads(uprof("cluster", "report", run, "--json").stdout)


def data_of(page: Path) -> Any:
    text = page.read_text(encoding="utf-8")
    begin = text.index(">", text.index('id="data"')) + 1
    return json.loads(text[begin : text.index("</script>", begin)])


@pytest.mark.slow
def test_a_page_of_a_thousand_ranks_is_small_and_needs_nothing_else(tmp_path: Path) -> None:
    run = make(tmp_path / "run", Made(tp=8, dp=16, pp=8, steps=100, slow={137: 1.1}))
    page = paged(run)
    assert page.stat().st_size < 5_000_000
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    sent = data_of(page)["cells"]
    assert len(sent["ranks"]) == 1024
    assert len(sent["steps"]) + sent["steps_left_out"] == 100


def test_the_page_holds_the_figures_of_the_document(tmp_path: Path) -> None:
    run = make(tmp_path / "run", Made(slow={3: 1.3}, absent=[6]))
    sent, told = data_of(paged(run)), document(run)
    for name in ("findings", "steps", "groups", "run"):
        assert sent[name] == told[name]
    for mine, theirs in zip(sent["ranks"], told["ranks"], strict=True):
        blame = theirs["blame"] or {}
        assert all(value in (theirs.get(name), blame.get(name)) for name, value in mine.items())


def test_names_out_of_recordings_cannot_leave_the_data(tmp_path: Path) -> None:
    run = make(tmp_path / "run", Made(slow={3: 1.3}))
    evil = "</script><script>document.title = 'hacked'</script>"
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE RANK SET host = ?", [evil])
        db.execute("UPDATE FINDING SET text = ?", [evil])
        db.commit()
    page = paged(run)
    assert "<script>document" not in page.read_text(encoding="utf-8")
    assert data_of(page)["findings"][0]["text"] == evil


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made(tp=4, dp=4, pp=4, slow={37: 1.1}, slow_links=[(12, 28)], failed=[5])
    return make(tmp_path_factory.mktemp("page") / "run", made)


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return paged(run)


class TestInABrowser:
    pytestmark = needs_browser

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("dark", [False, True])
    def test_it_fits_every_window_and_complains_of_nothing(
        self, window: Browser, page: Path, width: int, dark: bool
    ) -> None:
        window.open(page, width=width, dark=dark)
        assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert window.console() == []
        assert window.run(
            "return [...document.querySelectorAll('canvas')].every(c => c.dataset.drawn)"
        )

    def test_the_verdict_is_the_first_that_is_read(self, window: Browser, page: Path) -> None:
        window.open(page)
        first = window.run("return document.querySelector('section.card').innerText")
        assert slow_text(37, 1.1) in first
        assert "6.00 ms/step" in first
        assert window.run("return document.querySelector('#rank h2').innerText") == "Rank 37"

    def test_figures_are_those_of_the_document(
        self, window: Browser, page: Path, run: Path
    ) -> None:
        window.open(page)
        told = document(run)
        shown = window.run(
            "return [...document.querySelectorAll('[data-figure]')]"
            ".map(e => [e.dataset.figure, parseInt(e.title)])"
        )
        assert dict(shown) == {name: told["run"]["mean_step"][name] for name, _ in shown}
        rank = window.run(
            "return [...document.querySelectorAll('#rank dd[data-key]')]"
            ".map(e => [e.dataset.key, Number(e.title)])"
        )
        theirs = told["ranks"][37]
        both = {**theirs, **theirs["blame"]}
        assert dict(rank) == {name: both[name] for name, _ in rank}

    def test_a_measure_and_an_order_can_be_chosen(self, window: Browser, page: Path) -> None:
        window.open(page)
        label = "return document.querySelector('#steps canvas').getAttribute('aria-label')"
        assert window.run(label).startswith("Compute by rank")
        window.run("document.querySelector('[data-value=idle_ns]').click()")
        assert window.run(label).startswith("Idle by rank")
        window.run("document.querySelector('[data-value=cost]').click()")
        assert window.run("return document.querySelector('#steps .side').innerText").startswith(
            "rank 37"
        )

    def test_cells_are_read_and_chosen_by_keys(self, window: Browser, page: Path) -> None:
        window.open(page)
        window.run("document.querySelector('[data-value=cost]').click()")
        window.run("document.querySelector('#steps canvas').focus()")
        window.press("\ue015", "\ue014")
        told = window.run("return document.querySelector('[role=status]').textContent")
        assert told.startswith("rank ")
        window.press("\ue007")
        shown = window.run("return document.querySelector('#rank h2').innerText")
        assert shown.split()[1] == told.split()[1].strip(",")

    def test_the_slowest_link_is_named_first(self, window: Browser, page: Path) -> None:
        window.open(page)
        assert window.run("return document.querySelector('#links tbody td').innerText") == "12 → 28"
