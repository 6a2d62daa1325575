"""HTML output in notebooks: every public object, escaped, inert and of limited size."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import unified_prof
from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from unified_prof.pipeline.live import Profile
from unified_prof.recording.model import Advice, Finding, NotJudged
from unified_prof.report.api import object_html
from unified_prof.report.document import Document, render_fragment

TAGS = {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td"}
HOSTILE = '<script>alert(1)</script><img src=x onerror="a()">\u202e&amp;\x1b[2J' + "A" * 700
LARGEST = 110_000


class Parsed(HTMLParser):
    """Parsed HTML; fails on tags and attributes that a notebook must not get."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.cells: list[str] = []
        self._open: list[str] = []
        assert len(text) < LARGEST
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= {"style", "title"}
        assert all("url(" not in (value or "") for name, value in attrs if name == "style")
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert "\x1b" not in data
        assert "\u202e" not in data
        self.words.append(data)
        if self._open[-1] == "td":
            self.cells.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def parse_html(thing: Any) -> Parsed:
    return Parsed(thing._repr_html_())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    steps = [(number, 7.0, 2.5, 4.0, 100_000, 1) for number in range(5)]
    run_time_report(tmp_path / "run_time.sqlite", iterations=steps)
    memory_report(tmp_path / "memory.sqlite")
    return tmp_path


def test_profile_is_shown_like_the_end_of_a_run(run: Path) -> None:
    files = {"run-time": run / "run_time.sqlite", "memory": run / "memory.sqlite"}
    found = parse_html(Profile(run, files))
    assert "linear" in found.cells
    assert str(run / "memory.sqlite") in found.text
    assert "incomplete" in parse_html(Profile(run, files, failure="it ended early")).text
    assert "uprof report" not in found.text, "a hint for terminals"
    assert "does not exist" in parse_html(Profile(run, {"memory": run / "gone.sqlite"})).text


def test_figures_are_shown_with_their_first_breakdowns(run: Path, tmp_path: Path) -> None:
    figures = unified_prof.figures(run)
    found = parse_html(figures)
    assert found.text.count("Skyline run time and memory reports") == 1
    assert "linear" in found.cells
    assert parse_html(figures[0]).cells == found.cells
    assert repr(figures) == f"[<figures of {figures[0].summary.path}, by operation, line, step>]"
    timeline = unified_prof.figures(training_step(tmp_path / "step.db"))
    assert (
        "mm_kernel" in parse_html(timeline[0]).cells
        or "more breakdowns" in parse_html(timeline[0]).text
    )


def test_public_objects_are_shown(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "total" in parse_html(unified_prof.diff(run, run)).text
    folder = tmp_path_factory.mktemp("timelines")
    one, other = (training_step(folder / f"{name}.db") for name in "ab")
    assert "a.db" in parse_html(unified_prof.diff(one, other)).text
    verdict = unified_prof.gate([run], [run], metrics=["total"])
    assert f"gate: {verdict.outcome}" in parse_html(verdict).text
    advice = unified_prof.advise(one)
    assert "findings" in parse_html(advice).text
    with unified_prof.open_report(one) as report:
        found = parse_html(report)
    assert "COMPUTE_TASK_INFO" in found.text
    assert parse_html(type(advice)()).text == "nothing"
    assert "and 0 more" not in parse_html(type(advice)([advice[0]] * 8)).text
    assert "and 1 more" in parse_html(type(advice)([advice[0]] * 9)).text


def hostile_report(path: Path, forward: float = 1.0) -> Path:
    frames = [(f"{HOSTILE[:200]}.py", 3)]
    operations = [(f"{HOSTILE}{number}", forward, 2.0, frames) for number in range(40)]
    return run_time_report(path, operations, anomalies=[("odd", 1, HOSTILE)])


def hostile_advice() -> Advice:
    finding = Finding(
        HOSTILE, (), (), (), (), 1.0, HOSTILE, {}, HOSTILE, "likely",
        tuple({"name": HOSTILE, "line": HOSTILE, "total_ns": 1} for _ in range(400)),
    )  # fmt: skip
    return Advice((finding,) * 50, (NotJudged(HOSTILE, HOSTILE),), steps=3, step_ms=1.0)


def hostile_timeline(path: Path, lasted: int = 5) -> Path:
    with Device(path) as device:
        for number in range(60):
            device.task(number * 10, number * 10 + lasted, kernel=(f"{HOSTILE}{number}", HOSTILE))
    return path


@pytest.mark.quick(cases=5)
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: unified_prof.figures(hostile_report(folder / "r.sqlite")),
        lambda folder: Profile(folder, {HOSTILE[:9]: hostile_report(folder / "r.sqlite")}),
        lambda folder: unified_prof.diff(
            hostile_report(folder / "a.sqlite"), hostile_report(folder / "b.sqlite", 3.0)
        ),
        lambda folder: unified_prof.diff(
            hostile_timeline(folder / "a.db"), hostile_timeline(folder / "b.db", 9)
        ),
        lambda folder: hostile_advice(),
        lambda folder: type(unified_prof.figures(hostile_report(folder / "r.sqlite")))(
            unified_prof.figures(hostile_report(folder / f"{n}.sqlite"))[0] for n in range(3)
        ),
    ],
)
def test_hostile_names_are_escaped_and_limited(make: Callable[[Path], Any], tmp_path: Path) -> None:
    found = parse_html(make(tmp_path))
    assert "<script>" in found.text, "escaped"


def test_too_long_document_is_truncated_with_a_remark() -> None:
    document = Document()
    for _ in range(1000):
        document.line("x" * 500)
    found = Parsed(render_fragment(document))
    assert found.text.endswith("more lines not shown")


def test_unknown_object_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        object_html(3)
