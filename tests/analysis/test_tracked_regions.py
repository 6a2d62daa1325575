"""Regions of tracked reports: time, nesting and comparison."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import unified_prof
from tests.cli.test_report import uprof
from tests.records import run_with_regions, tracked_run
from tests.sql import execute
from unified_prof.base.run_spec import TrackedRun
from unified_prof.baselines import api
from unified_prof.compare import runs
from unified_prof.compare.diff import Difference
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import Breakdown, Row
from unified_prof.sqlite import skyline_writer

MS = 1_000_000


def write(folder: Path, run: TrackedRun) -> Path:
    folder.mkdir(exist_ok=True)
    skyline_writer.write_run_time(folder / "run_time.sqlite", run, {})
    skyline_writer.write_memory(folder / "memory.sqlite", run, {})
    return folder


@pytest.fixture
def regions(tmp_path: Path) -> Path:
    return write(tmp_path / "regions", run_with_regions())


def breakdown_of(path: Path, by: str = "annotation") -> Breakdown:
    with open_analyses(path) as (analysis,):
        return analysis.breakdown(by)


def by_name(path: Path) -> dict[str, Row]:
    return {row.name: row for row in breakdown_of(path).rows}


def slower(run: TrackedRun, index: int, factor: float) -> TrackedRun:
    """Return a run in which one operation takes longer."""
    operations = list(run.operations)
    one = operations[index]
    operations[index] = replace(one, forward_ms=tuple(ms * factor for ms in one.forward_ms))
    return replace(run, operations=tuple(operations))


def test_operation_counts_for_every_enclosing_region_once(regions: Path) -> None:
    rows = by_name(regions)
    totals = {name: row.total_ns for name, row in rows.items()}
    # linear 2 + 3, relu 0.6, linear 5 + 1
    assert totals == {"step": 11_600_000, "model": 11_600_000, "first": 5_600_000, "data": None}
    assert (rows["first"].forward_ns, rows["first"].backward_ns) == (2_600_000, 3 * MS)
    self_ns = {name: row.extra["self_ns"] for name, row in rows.items()}
    assert self_ns == {"step": None, "model": 6 * MS, "first": 5_600_000, "data": None}
    assert rows["first"].activation_bytes == rows["step"].activation_bytes == 128
    assert rows["first"].extra["peak_bytes"] == 2500
    assert rows["data"].extra["peak_bytes"] is None
    # Only averaged iterations count; the second one was not averaged.
    counts = {name: row.count for name, row in rows.items()}
    assert counts == {"step": 1, "model": 1, "first": 2, "data": 3}
    assert rows["first"].detail == "in step / model"
    assert breakdown_of(regions).total_ns == breakdown_of(regions, "operation").total_ns


@pytest.mark.parametrize(("name", "other"), [("run_time", "memory"), ("memory", "run_time")])
def test_either_report_has_regions(regions: Path, name: str, other: str) -> None:
    (regions / f"{other}.sqlite").unlink()
    rows = by_name(regions)
    assert rows.keys() == {"step", "model", "first", "data"}
    assert (rows["first"].total_ns is None) == (name == "memory")
    assert (rows["first"].activation_bytes is None) == (name == "run_time")


def test_report_without_regions_offers_no_annotation_breakdown(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", tracked_run())
    with open_analyses(plain) as (analysis,):
        assert "annotation" not in analysis.summary.available
    refused = uprof("report", plain, "--by", "annotation")
    assert refused.returncode == 2
    assert "torch.profiler.record_function" in refused.stderr


def test_invalid_region_rows_are_reported_as_anomalies(regions: Path) -> None:
    for file in regions.iterdir():
        execute(file, "UPDATE UPROF_REGIONS SET around = 77 WHERE name = 'model'")
        execute(file, "UPDATE UPROF_REGIONS SET peak_usage_bytes = 'much' WHERE region_id = 3")
        execute(file, "UPDATE UPROF_REGION_COUNTS SET count = 'often' WHERE region_id = 1")
        execute(file, "INSERT INTO UPROF_REGION_ENTRIES VALUES ('operation', 99, 99)")
    rows = by_name(regions)
    assert rows["step"].total_ns is None
    assert rows["model"].total_ns == 11_600_000
    with open_analyses(regions) as (analysis,):
        analysis.breakdown("annotation")
        names = [one.name for one in analysis.summary.anomalies]
    assert "impossible_region" in names


def test_every_format_shows_regions(regions: Path, tmp_path: Path) -> None:
    text = uprof("report", regions, "--by", "annotation").stdout
    assert "in step / model" in text
    document = json.loads(uprof("report", regions, "--format", "json").stdout)["reports"][0]
    names = [row["name"] for row in document["breakdowns"]["annotation"]["rows"]]
    assert names == ["step", "model", "first", "data"]
    csv = uprof("report", regions, "--by", "annotation", "--format", "csv").stdout
    assert "annotation,first," in csv
    page = tmp_path / "page.html"
    assert uprof("report", regions, "-o", page).returncode == 0
    assert "in step / model" in page.read_text(encoding="utf-8")
    (answer,) = unified_prof.figures(regions, by="annotation")
    assert answer.breakdown("annotation").rows == breakdown_of(regions).rows


def test_difference_by_region_adds_up_to_the_total_difference(tmp_path: Path) -> None:
    base = write(tmp_path / "base", run_with_regions())
    new = write(tmp_path / "new", slower(run_with_regions(), 1, 11.0))
    found = unified_prof.diff(base, new, by="annotation")
    assert isinstance(found, Difference)
    deltas = {change.place.name: round(change.delta_ns) for change in found.changes}
    # relu took 0.6 ms before; it belongs to all regions that enclose it.
    assert deltas == {"first": 6 * MS, "model": 6 * MS, "step": 6 * MS}
    counts = {change.place.name: change.count for change in found.changes}
    assert counts == {"first": 3, "model": 4, "step": 4}
    whole = unified_prof.diff(base, new)
    assert isinstance(whole, Difference)
    assert (found.base_ns, found.new_ns) == (whole.base_ns, whole.new_ns)
    assert found.slower_ns == pytest.approx(6 * MS)
    assert {round(change.explained_ns) for change in found.changes} == {6 * MS}


def test_difference_by_region_has_a_row_for_time_outside_regions(tmp_path: Path) -> None:
    run = run_with_regions()
    linear, relu, last = run.operations
    moved = replace(run, operations=(replace(linear, region=None), relu, replace(last, region=4)))
    base, new = write(tmp_path / "base", run), write(tmp_path / "new", moved)
    found = unified_prof.diff(base, new, by="annotation")
    assert isinstance(found, Difference)
    sides = {c.place.name: (c.base_ns, c.new_ns) for c in found.changes}
    assert sides["(outside any region)"] == (5.2 * MS, 5.2 * MS)
    assert sides["data"] == (6 * MS, 6 * MS)


def test_diff_command_compares_by_region(tmp_path: Path) -> None:
    base = write(tmp_path / "base", run_with_regions())
    new = write(tmp_path / "new", slower(run_with_regions(), 1, 11.0))
    text = uprof("diff", base, new, "--by", "annotation", "--all").stdout
    assert "first x3" in text
    document = json.loads(uprof("diff", base, new, "--by", "annotation", "--json").stdout)
    assert {row["place"]["kind"] for row in document["changes"]} == {"annotation"}
    assert document["operations"]["delta_ns"] == pytest.approx(6 * MS)
    plain = write(tmp_path / "plain", tracked_run())
    refused = uprof("diff", plain, plain, "--by", "annotation")
    assert refused.returncode == 2
    assert "has an operation in a region" in refused.stderr


def test_stored_run_keeps_its_regions(tmp_path: Path) -> None:
    run = runs.load([write(tmp_path / "base", run_with_regions())])
    assert set(run.operations.regions) == {
        ("step", "model", "first"),
        ("step", "model", "first", "first"),
        ("step", "model"),
    }
    kept = api.load(api.dump(run), where="here")
    assert kept.operations.regions == run.operations.regions
