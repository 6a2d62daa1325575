"""All formats have the same figures and escape names."""

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.report.on_page import embedded_data
from unified_prof.arrays.packed import encode_varints
from unified_prof.errors import UsageError
from unified_prof.explain.api import open_analyses, open_reports
from unified_prof.report import document, formats, report_document, report_formats, terminal
from unified_prof.report import html_page as html
from unified_prof.report.figures import Figures, collect_figures
from unified_prof.report.formats import ReportRequest

HOSTILE = [
    "<script>alert(1)</script>",
    "=HYPERLINK(0)",
    "a|b`c`*d*",
    "\x1b[2Jwiped",
    "</script><b>",
    '"quoted", with comma',
    "[link](http://x)",
]


def figures_of(path: Path, by: str | None = "operation", **options: Any) -> list[Figures]:
    with open_analyses(path) as analyses:
        return [collect_figures(one, None if by is None else [by], **options) for one in analyses]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return run_time_report(
        tmp_path / "r.sqlite",
        [(name, 1.0 + n, None, [("f.py", n)]) for n, name in enumerate(HOSTILE)],
    )


def test_rows_are_sorted_and_limited_by_the_options(tmp_path: Path) -> None:
    path = training_step(tmp_path / "msprof_1.db")
    (by_count,) = figures_of(path, "kernel", sort="count", top=2)
    (selection,) = by_count.selections
    assert selection.rows[0].name == "mm_kernel"
    assert (len(selection.rows), selection.left_out) == (2, 4)
    (by_name,) = figures_of(path, "kernel", sort="name")
    names = [row.name for row in by_name.selections[0].rows]
    assert names == sorted(names)


def test_sorting_by_an_unmeasured_figure_is_refused(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", [("a", 1.0, None, [])])
    with pytest.raises(UsageError, match="cannot sort by backward"):
        figures_of(path, sort="backward")


@pytest.mark.parametrize("width", [50, 80, 120])
def test_table_fits_the_terminal_width(tmp_path: Path, width: int) -> None:
    run_time_report(
        tmp_path / "run_time.sqlite",
        [("a_name_that_goes_on_and_on_" * 4, 1.5, 2.0, [("some/folder/model.py", 1)])],
    )
    memory_report(tmp_path / "memory.sqlite")
    shown = terminal.render_text(
        report_document.report_document(figures_of(tmp_path, details=False)),
        width=width,
        color=False,
    )
    assert max(map(len, shown.splitlines())) <= width
    assert "1.50 ms" in shown or "3.50 ms" in shown


def test_output_is_colored_only_if_requested(hostile: Path) -> None:
    plain = terminal.render_text(
        report_document.report_document(figures_of(hostile)), width=None, color=False
    )
    assert "\x1b" not in plain
    assert r"\x1b[2Jwiped" in plain
    colored = terminal.render_text(
        report_document.report_document(figures_of(hostile)), width=100, color=True
    )
    assert "\x1b[1m" in colored
    assert "\x1b[2J" not in colored


def test_csv_is_one_table_and_escapes_formulas(hostile: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(report_formats.breakdowns_csv(figures_of(hostile)))))
    names = [row["name"] for row in rows]
    assert "'=HYPERLINK(0)" in names
    assert '"quoted", with comma' in names
    assert {row["backward_ns"] for row in rows} == {""}
    assert rows[0]["total_ns"] == "7000000"


def test_markdown_escapes_names(hostile: Path) -> None:
    shown = document.render_markdown(report_document.report_document(figures_of(hostile)))
    table = [line for line in shown.splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table}
    assert len(cells) == 1, "every row has the same number of cells"
    assert "<" not in shown
    assert r"\[link\](http" in shown
    assert "\x1b" not in shown


def test_page_embeds_names_as_data_only(hostile: Path) -> None:
    with open_reports(hostile) as opened:
        page = html.produce_page(opened, ReportRequest())
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "alert(1)</script>" not in page
    data = embedded_data(page)
    rows = data["reports"][0]["figures"]["breakdowns"]["operation"]["rows"]
    assert sorted(row["name"] for row in rows) == sorted(HOSTILE)


def test_page_needs_no_network(tmp_path: Path) -> None:
    with open_reports(training_step(tmp_path / "msprof_1.db")) as opened:
        page = html.produce_page(opened, ReportRequest())
    references = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(\S+)", page)
    assert [one for one in references if not one.startswith(("`#", "#"))] == []
    assert "default-src 'none'" in page
    # The XML namespace is not fetched; Perfetto is opened by a click.
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {
        "http://www.w3.org/2000/svg", "https://ui.perfetto.dev",
    }  # fmt: skip


def test_source_lines_are_included_only_with_a_source_root(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("import torch\nhidden_line = 1\n", encoding="utf-8")
    (tmp_path / "outside.py").write_text("password = 1\n", encoding="utf-8")
    path = run_time_report(
        tmp_path / "r.sqlite",
        [
            ("a", 1.0, None, [("model.py", 2)]),
            ("b", 1.0, None, [("../outside.py", 1)]),
            ("c", 1.0, None, [("model.py", 99)]),
        ],
    )
    with open_reports(path) as opened:
        assert "hidden_line" not in html.produce_page(opened, ReportRequest())
        page = html.produce_page(opened, ReportRequest(source_root=project))
    assert '"source":{"model.py:2":"hidden_line = 1"}' in page
    assert "password" not in page


@pytest.mark.parametrize(
    "values", [[], [0], [127, 128, 16383, 16384], [2**53, 0, 1], list(range(300))]
)
def test_varints_encode_seven_bits_per_byte(values: list[int]) -> None:
    data = base64.b64decode(encode_varints(np.array(values, np.int64)))
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value = shift = 0
    assert found == values


def test_secrets_in_facts_are_redacted_in_every_format(tmp_path: Path) -> None:
    facts = {
        "command": json.dumps(["uprof", "run", "train.py", "--db", "postgres://u:hunter2@host/d"]),
        "arguments": "--password hunter2 --lr 0.1",
        "WANDB_API_KEY": "hunter2",
    }
    path = run_time_report(tmp_path / "r.sqlite", facts=facts)
    for one in formats.FORMATS:
        with open_reports(path) as opened:
            shown = one.produce(opened, ReportRequest())
        text = shown if isinstance(shown, str) else shown.decode("latin-1")
        assert "hunter2" not in text, one.name
    with open_reports(path) as opened:
        known = dict(opened.analyses[0].summary.facts)
    assert known["arguments"] == "--password *** --lr 0.1"
