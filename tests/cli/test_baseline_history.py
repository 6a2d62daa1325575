"""`uprof baseline show --history`: text, page, JSON and CSV of the same points."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.compare.test_history import versions_at
from tests.cli.test_import import uprof
from tests.report import browser
from tests.report.browser import Browser
from tests.report.on_page import embedded_data
from unified_prof.baselines import api

HOSTILE = "</script><script>document.title='x'</script>=1+1"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a store of nine versions, where the sixth is slower by 20 %."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, levels in (("main", [10] * 5 + [12] * 4), (HOSTILE, [5, 5])):
        new = [api.to_save(name, run) for run in versions_at(levels)]
        api.save_all(new, api.DEFAULT_STORE)
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert uprof("baseline", "history", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_each_version_has_a_row_with_its_change_marked(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert uprof("baseline", "history", "main") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "main, total"
    rows = [line for line in lines if line.lstrip().startswith("@")]
    assert len(rows) == 9
    assert all("●" in row and "├" in row for row in rows)
    assert [" slower +" in row for row in rows] == [False] * 5 + [True] + [False] * 3
    assert rows[0].index("●") < rows[5].index("●"), "slower is further to the right"
    assert "limits: 5 %" in lines[-1]


def test_unmeasured_metric_has_no_scale(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("baseline", "history", "main", "--metric", "peak-memory") == 0
    assert "0 B" not in capsys.readouterr().out


def test_all_formats_have_the_same_points(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "main", "--last", "6", "--metric", "total", "--metric", "peak-memory")
    assert [one["metric"] for one in found["series"]] == ["total", "peak-memory"]
    points = found["series"][0]["points"]
    assert [one["version"] for one in points] == [4, 5, 6, 7, 8, 9]
    assert [one["change"] for one in points] == [None, None, "worse", None, None, None]
    assert points[2]["low"] < points[2]["value"] < points[2]["high"]
    assert found["series"][1]["points"][0]["value"] is None
    assert uprof("baseline", "history", "main", "--last", "6", "--format", "csv") == 0
    rows = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert [float(row["value"]) for row in rows] == [one["value"] for one in points]
    assert rows[2]["change"] == "worse"
    assert uprof("baseline", "history", "main", "--last", "6", "-o", "page.html") == 0
    page = Path("page.html").read_text(encoding="utf-8")
    sent = embedded_data(page)["series"][0]["points"]
    assert [{name: one[name] for name in points[0]} for one in sent] == points


def test_self_contained_page_escapes_names(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("baseline", "history", "main", HOSTILE, "-o", "page.html") == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert text.count("<script") == 2
    assert uprof("baseline", "history", HOSTILE, "--format", "csv") == 0
    capsys.readouterr()


def test_unknown_metric_is_a_usage_error(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert uprof("baseline", "history", "other") == 2
    assert "has no baseline 'other'" in capsys.readouterr().err
    assert uprof("baseline", "history", "main", "--metric", "speed") == 2
    assert uprof("baseline", "history", "main", "-o", "x.pdf") == 2
    assert uprof("baseline", "history", "main", "-o", "page.html") == 0
    assert uprof("baseline", "history", "main", "-o", "page.html") == 9
    assert uprof("baseline", "history", "main", "-o", "page.html", "--force") == 0


@pytest.mark.slow
@browser.needed
@pytest.mark.parametrize("width", [390, 1280])
def test_chart_renders_in_browser(store: Path, window: Browser, width: int) -> None:
    assert uprof("baseline", "history", "main", HOSTILE, "-o", "page.html") == 0
    window.open(Path("page.html"), width=width, dark=width < 600)
    assert window.console() == []
    labels = window.run(
        "return [...document.querySelectorAll('#series-0 .point')]"
        ".map((one) => one.getAttribute('aria-label'))"
    )
    assert len(labels) == 9
    assert "slower +" in labels[5]
    assert "between" in labels[0]
    over = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert window.run(over) == 0
    assert window.run("return document.title") != "x"
    window.run("document.querySelector('#series-0 .point').dispatchEvent(new Event('focus'))")
    tip = "document.querySelector('#series-0 .tip')"
    hidden, text = window.run(f"return [{tip}.hidden, {tip}.textContent]")
    assert not hidden
    assert text == labels[0]
    window.run("document.querySelector('#series-0 details').open = true")
    rows = "return document.querySelectorAll('#series-0 tbody tr').length"
    assert window.run(rows) == 9
