"""Formats of a device comparison: all formats, the CSV table and the HTML page."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.analysis.builders import Device
from tests.analysis.compare.device.recordings import GPU, Op, npu_recording, recording
from tests.report.on_page import embedded_data
from unified_prof.cli.app import app
from unified_prof.report.formats import FORMAT_SUFFIXES


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return recording(tmp_path / "gpu.db"), npu_recording(tmp_path / "npu.db")


def uprof(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["diff", *map(str, arguments)])


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


@pytest.mark.slow
def test_every_format_has_its_extensions(sides: tuple[Path, Path], tmp_path: Path) -> None:
    (offered,) = (one for one in app.commands["diff"].params if one.name == "format_")
    choices = list(offered.to_info_dict()["type"]["choices"])
    assert choices == ["text", "json", "csv", "markdown", "html"]
    for name, suffixes in ((name, FORMAT_SUFFIXES[name]) for name in choices):
        printed = uprof(*sides, "--format", name)
        for suffix in suffixes:
            file = tmp_path / f"{name}{suffix}"
            assert uprof(*sides, "-o", file).exit_code == 0
            assert file.read_text("utf-8") == printed.stdout
            assert "norm" in printed.stdout


def test_csv_escapes_formulas(tmp_path: Path) -> None:
    evil = [Op("=HYPERLINK(1)", [("=cmd", "=cmd", 100)])]
    base = recording(tmp_path / "a.db", evil, collective=None)
    rows = table(uprof(base, recording(tmp_path / "b.db"), "--format", "csv").stdout)
    assert not [row for row in rows if row["name"].startswith(("=", "+", "@"))]
    assert any(row["name"].startswith("'=") for row in rows)


def test_page_has_the_figures_of_json(sides: tuple[Path, Path]) -> None:
    shown = embedded_data(uprof(*sides, "--format", "html").stdout)
    document = json.loads(uprof(*sides, "--json").stdout)
    assert shown["unit"] == "step"
    for by, rows in document["breakdowns"].items():
        found = {(row["name"], row.get("class", "")): row for row in shown["tables"][by]["rows"]}
        for row in rows:
            one = found[row["name"], row.get("class", "")]
            assert one["delta_ns"] == row["delta_ns"]
            assert one.get("short") != row["name"]
            assert one.get("ratio") == row["ratio"]
            assert one.get("base_ns") == (row["base"] and row["base"]["per_step_ns"])
    assert sum(one["base_ns"] for one in shown["parts"]) == pytest.approx(shown["base_ns"])
    assert any("devices differ" in one for one in shown["remarks"])


def test_page_embeds_names_as_data_only(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    base = recording(tmp_path / "a.db", [Op(evil, [(evil, evil, 100)])])
    text = uprof(base, recording(tmp_path / "b.db", GPU), "--format", "html").stdout
    assert "<script>alert" not in text
    assert text.count("<script") == 2


def test_shapes_that_are_not_listed_have_one_row(tmp_path: Path) -> None:
    for name, factor in (("base.db", 1), ("new.db", 2)):
        with Device(tmp_path / name) as device:
            device.call(0, 90_000, "ProfilerStep#0")
            for number in range(5):
                at, link = 10 + 1000 * number, number + 1
                device.call(at, at + 50, "aten::mm", inputs=(f"{link},8;8,8;", "float;float;"))
                device.call(at + 10, at + 40, "aten::mm", launches=link)
                begin = 10_000 * link
                device.task(begin, begin + factor * 100 * link, connection=link)
    text = uprof(tmp_path / "base.db", tmp_path / "new.db").stdout
    (rest,) = (line for line in text.splitlines() if "2 more (--by shape)" in line)
    assert rest.split("shape)")[1].split()[:7] == ["2", "300", "ns", "600", "ns", "+300", "ns"]
    everything = uprof(tmp_path / "base.db", tmp_path / "new.db", "--by", "shape").stdout
    assert " more" not in everything
