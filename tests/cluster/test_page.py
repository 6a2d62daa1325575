"""The page of a multi-rank run has the figures of its JSON document."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import uprof
from tests.cluster.summaries import Contents, slow_text, write_summary
from tests.report import browser
from tests.report.browser import Browser
from unified_prof.report import names

WIDTHS = (390, 1280, 1920)
needs_browser = [pytest.mark.slow, browser.needed]


def write_page(run: Path) -> Path:
    page = run.parent / f"{run.name}.html"
    done = uprof("cluster", "report", run, "-o", page)
    assert done.returncode == 0, done.stderr
    return page


def document(run: Path) -> Any:
    return json.loads(uprof("cluster", "report", run, "--json").stdout)


def embedded_data(page: Path) -> Any:
    text = page.read_text(encoding="utf-8")
    begin = text.index(">", text.index('id="data"')) + 1
    return json.loads(text[begin : text.index("</script>", begin)])


@pytest.mark.slow
def test_page_of_a_thousand_ranks_is_below_5_mb_and_self_contained(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run", Contents(tp=8, dp=16, pp=8, steps=100, slow={137: 1.1}))
    page = write_page(run)
    assert page.stat().st_size < 5_000_000
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    cells = embedded_data(page)["cells"]
    assert len(cells["ranks"]) == 1024
    assert len(cells["steps"]) + cells["steps_left_out"] == 100


def test_page_has_the_figures_of_the_document(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run", Contents(slow={3: 1.3}, absent=[6]))
    data, expected = embedded_data(write_page(run)), document(run)
    for name in ("steps", "groups", "run"):
        assert data[name] == expected[name]
    (finding,) = data["findings"]
    cost, said = "18.0 ms/step", "rank 3, host node0: computes 1.30 times its stage"
    assert [finding] == [{**one, "cost": cost, "said": said} for one in expected["findings"]]
    for row, rank in zip(data["ranks"], expected["ranks"], strict=True):
        blame = rank["blame"] or {}
        assert all(value in (rank.get(name), blame.get(name)) for name, value in row.items())


def test_missing_ranks_are_ranges_without_rows(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run", Contents(dp=4, absent=[2, 4, 5, 6], failed=[9]))
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db, db:
        db.execute("INSERT INTO META_DATA VALUES ('world_size_is_minimum', 'true')")
    data = embedded_data(write_page(run))
    absent = "absent: others name it, and it left no file"
    assert data["missing"] == [
        ["ranks 2, 4 to 6", absent],
        ["rank 9", "failed: rank.db is cut off"],
    ]
    assert data["count"] == "11 of at least 16 ranks"
    assert data["title"].startswith("run: at least 16 ranks")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_size_of_groups_without_recorded_members_is_a_minimum(
    tmp_path: Path, is_recorded: bool
) -> None:
    run = write_summary(tmp_path / "run", Contents(tp=1, dp=2, pp=1, absent=[1]))
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db, db:
        db.execute('DELETE FROM "GROUP" WHERE id = 1')
        db.execute("DELETE FROM COLLECTIVE WHERE group_id = 1")
        db.execute("UPDATE COLLECTIVE SET complete_n = 0, bus_gb_per_s = NULL")
        if is_recorded:
            db.execute("UPDATE \"GROUP\" SET size = 2, ranks = '[0, 1]'")
    label = "tp of 2" if is_recorded else "tp of at least 1"
    assert embedded_data(write_page(run))["group_labels"] == [label]
    text = uprof("cluster", "report", run).stdout
    assert f"{label}  all_reduce" in text
    assert "collectives, largest first (no times: recordings of members are missing)" in text
    assert document(run)["groups"][0]["size_is_minimum"] is not is_recorded


def test_names_in_recordings_cannot_inject_html(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run", Contents(slow={3: 1.3}))
    evil = "</script><script>document.title = 'hacked'</script>"
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE RANK SET host = ?", [evil])
        db.execute("UPDATE FINDING SET text = ?", [evil])
        db.commit()
    page = write_page(run)
    assert "<script>document" not in page.read_text(encoding="utf-8")
    assert embedded_data(page)["findings"][0]["text"] == evil


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    contents = Contents(tp=4, dp=4, pp=4, slow={37: 1.1}, slow_links=[(12, 28)], failed=[5])
    return write_summary(tmp_path_factory.mktemp("page") / "run", contents)


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return write_page(run)


class TestInABrowser:
    pytestmark = needs_browser

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("dark", [False, True])
    def test_page_fits_every_width_without_console_errors(
        self, window: Browser, page: Path, width: int, dark: bool
    ) -> None:
        window.open(page, width=width, dark=dark)
        assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert window.console() == []
        assert window.run(
            "return [...document.querySelectorAll('canvas')].every(c => c.dataset.drawn)"
        )

    def test_most_expensive_finding_is_shown_first(self, window: Browser, page: Path) -> None:
        window.open(page)
        first = window.run("return document.querySelector('section.card').innerText")
        assert slow_text(37, 1.1) in first
        assert "6.00 ms/step" in first
        assert window.run("return document.querySelector('#rank h2').innerText") == "Rank 37"

    def test_figures_equal_the_document(self, window: Browser, page: Path, run: Path) -> None:
        window.open(page)
        expected = document(run)
        shown = window.run(
            "return [...document.querySelectorAll('[data-figure]')]"
            ".map(e => [e.dataset.figure, parseInt(e.title)])"
        )
        assert dict(shown) == {name: expected["run"]["mean_step"][name] for name, _ in shown}
        rank = window.run(
            "return [...document.querySelectorAll('#rank dd[data-key]')]"
            ".map(e => [e.dataset.key, Number(e.title)])"
        )
        slow = expected["ranks"][37]
        figures = {**slow, **slow["blame"]}
        assert dict(rank) == {name: figures[name] for name, _ in rank}
        caused = window.run("return document.querySelector('[data-key=caused_wait_ns]').innerText")
        assert caused == names.format_duration(figures["caused_wait_ns"] / slow["steps"])

    def test_measure_and_order_can_be_selected(self, window: Browser, page: Path) -> None:
        window.open(page)
        label = "return document.querySelector('#steps canvas').getAttribute('aria-label')"
        assert window.run(label).startswith("Compute by rank")
        window.run("document.querySelector('[data-value=idle_ns]').click()")
        assert window.run(label).startswith("Idle by rank")
        window.run("document.querySelector('[data-value=cost]').click()")
        assert window.run("return document.querySelector('#steps .side').innerText").startswith(
            "rank 37"
        )

    def test_cells_are_selected_by_keyboard(self, window: Browser, page: Path) -> None:
        window.open(page)
        window.run("document.querySelector('[data-value=cost]').click()")
        window.run("document.querySelector('#steps canvas').focus()")
        window.press("\ue015", "\ue014")
        status = window.run("return document.querySelector('[role=status]').textContent")
        assert status.startswith("rank ")
        window.press("\ue007")
        shown = window.run("return document.querySelector('#rank h2').innerText")
        assert shown.split()[1] == status.split()[1].strip(",")

    def test_slowest_link_is_listed_first(self, window: Browser, page: Path) -> None:
        window.open(page)
        assert window.run("return document.querySelector('#links tbody td').innerText") == "12 → 28"

    def test_only_the_slow_link_has_its_color(self, window: Browser, page: Path) -> None:
        window.open(page)
        colors = window.run(
            "const c = document.querySelector('#links canvas').getContext('2d');"
            "return [[28, 12], [27, 12], [29, 12], [28, 11], [28, 13], [27, 11]]"
            ".map(([x, y]) => [...c.getImageData(x, y, 1, 1).data].join())"
        )
        assert colors[0] not in colors[1:]

    def test_ranks_without_recording_are_one_line(self, window: Browser, tmp_path: Path) -> None:
        run = write_summary(tmp_path / "run", Contents(dp=4, absent=range(4, 16)))
        with closing(sqlite3.connect(run / "cluster.sqlite")) as db, db:
            db.execute("UPDATE COLLECTIVE SET complete_n = 0, bus_gb_per_s = NULL")
        window.open(write_page(run))
        ids = window.run(
            "return [...document.querySelectorAll('main > *')].map(e => e.id || e.className)"
        )
        assert ids.index("figures") < ids.index("missing")
        assert window.run("return document.querySelector('#missing').innerText").splitlines()[
            :2
        ] == [
            "Only 4 of 16 ranks are complete",
            "ranks 4 to 15absent: others name it, and it left no file",
        ]
        cells = "document.querySelectorAll('#ranks tbody td:first-child')"
        rows = f"return [...{cells}].map(cell => cell.innerText)"
        assert window.run(rows) == ["0", "1", "2", "3"]
        assert window.run("return document.querySelector('#groups .legend')") is None

    def test_color_scale_ends_at_the_largest_value(self, window: Browser, tmp_path: Path) -> None:
        window.open(write_page(write_summary(tmp_path / "run", Contents(slow={3: 1.02}))))
        ends = window.run("return document.querySelector('#steps .scale').innerText").split("\n")
        assert [ends[0], ends[-1]] == ["60.0 ms", "61.2 ms"]

    @pytest.mark.parametrize(
        ("aligned", "says"),
        [
            ([True, False], "Step 7 on separate clocks"),
            ([True, True, False], "Step 7 on one clock"),
            ([True], "Step 7 of rank 0"),
        ],
    )
    def test_lanes_name_the_clock_that_they_share(
        self, window: Browser, page: Path, tmp_path: Path, aligned: list[bool], says: str
    ) -> None:
        columns = {
            "count": 0,
            "start": "",
            "duration": "",
            "label": "",
            "left_out": 0,
            "host": None,
        }
        ranks = [
            {"rank": rank, "aligned": one, "from_ns": 0, "to_ns": 1000, **columns}
            for rank, one in enumerate(aligned)
        ]
        lanes = {
            "step": 7,
            "start_ns": 0,
            "duration_ns": 1000,
            "error_ns": 5,
            "labels": ["kernels"],
        }
        data = json.dumps(embedded_data(page) | {"lanes": {**lanes, "ranks": ranks}})
        text = page.read_text(encoding="utf-8")
        begin = text.index(">", text.index('id="data"')) + 1
        changed = tmp_path / "changed.html"
        changed.write_text(text[:begin] + data + text[text.index("</script>", begin) :], "utf-8")
        window.open(changed)
        shown = window.run("return document.querySelector('#lanes').innerText")
        assert shown.splitlines()[0] == says
        assert ("Clocks agree" in shown) == (sum(aligned) > 1)
