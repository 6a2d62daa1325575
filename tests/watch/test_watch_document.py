"""The summary of a watched run: parts add up to the step, for each clock."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.watch.runs import CAPTURED, MS, eventful, step, write_run
from unified_prof.cli.app import app
from unified_prof.report.document import Document
from unified_prof.report.terminal import render_text
from unified_prof.report.watch_document import run_figures, watch_document, watch_page
from unified_prof.sqlite.watch_file import StepRow, WatchEvent, WatchFile, read_folder


def summary_of(folder: Path, device: str, rows: list[StepRow]) -> Document:
    """Write steps of one rank and return their summary."""
    file = WatchFile(folder, 0, {"rank": "0", "began_ns": "1", "device": device})
    file.append(rows)
    return watch_document(run_figures(read_folder(folder), folder))


def row(step: int, passes_ns: tuple[int | None, int | None, int | None]) -> StepRow:
    """A step of 10 ms."""
    start_ns = 10**18 + step * 10**7
    return StepRow(
        step, start_ns, 10**7, 100_000, *passes_ns, 300_000, 0, None, None, None, None, None
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_parts_of_each_clock_add_up_to_the_step(tmp_path: Path, device: str) -> None:
    known = [row(step, (2_000_000, 4_000_000, 1_000_000)) for step in range(5, 50)]
    unknown = [row(step, (None, None, None)) for step in range(5)] if device == "cuda" else []
    text = render_text(summary_of(tmp_path, device, [*unknown, *known]))
    shares: dict[str, float] = {}
    for line in text.splitlines():
        if line.endswith(" %") and "largest part" not in line:
            words = line.split()
            clock = next((word for word in words if word in ("host", "device")), "host")
            if words[0] == "host" and words[1] == "wait":
                clock = "host"
            shares[clock] = shares.get(clock, 0.0) + float(words[-2])
    assert set(shares) == ({"host", "device"} if device == "cuda" else {"host"})
    assert all(total == pytest.approx(100, abs=0.3) for total in shares.values()), text


@pytest.mark.parametrize(("longest_ns", "mean"), [(10**7, ""), (9 * 10**7, ", mean 12.0 ms")])
def test_mean_step_is_shown_if_it_is_not_the_median(
    tmp_path: Path, longest_ns: int, mean: str
) -> None:
    rows = [row(step, (2_000_000, 4_000_000, 1_000_000)) for step in range(40)]
    rows[20] = rows[20]._replace(length_ns=longest_ns)
    text = render_text(summary_of(tmp_path, "cpu", rows))
    assert f"a step takes 10.0 ms{mean}; largest part: " in text
    assert f"median 10.0 ms{mean}, p90 10.0 ms" in text


@pytest.mark.parametrize("samples", [1, 2])
def test_memory_is_drawn_if_it_was_sampled_twice(tmp_path: Path, samples: int) -> None:
    rows = [row(step, (2_000_000, 4_000_000, 1_000_000)) for step in range(9)]
    rows[:samples] = [one._replace(allocated_bytes=1 << 20) for one in rows[:samples]]
    summary_of(tmp_path, "cpu", rows)
    page = watch_page(read_folder(tmp_path), tmp_path)
    assert ("memory" in re.findall(r'"chart": ?"(\w+)"', page)) == (samples > 1)


def test_ctrl_c_is_no_exit_code(tmp_path: Path) -> None:
    file = write_run(tmp_path, is_over=False)
    file.close({"exit_code": "130", "ended_ns": "2"})
    assert "1,000, interrupted\n" in report(tmp_path)


def report(*words: str | Path) -> str:
    """Run `uprof report` and return its output."""
    done = CliRunner().invoke(app, ["report", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_figures_agree_with_sql_and_statistics_of_the_standard_library(tmp_path: Path) -> None:
    write_run(tmp_path, change=eventful, events=CAPTURED)
    (one,) = json.loads(report(tmp_path, "--json"))["ranks"]
    with sqlite3.connect(tmp_path / "watch_rank0.db") as db:
        rows = db.execute("SELECT step, length_ns, data_ns, allocated_bytes FROM STEP").fetchall()
    steps, lengths, data, sizes = zip(*rows, strict=True)
    assert one["length"]["median_ns"] == statistics.median(lengths)
    assert one["clocks"][0]["step_ns"] == pytest.approx(statistics.fmean(lengths))
    assert one["clocks"][0]["parts_ns"]["data loading"] == pytest.approx(statistics.fmean(data))
    slope = statistics.linear_regression(steps, sizes).slope
    growth = one["memory"]["growth_per_1000_steps_bytes"]
    assert growth == pytest.approx(1_000 * slope, rel=0.02)
    assert one["memory"]["max_bytes"] == max(sizes)


parts = st.integers(0, 30 * MS)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@given(rows=st.lists(st.tuples(*[parts] * 6, st.booleans()), min_size=1, max_size=60))
def test_parts_add_up_for_any_steps(
    device: str, rows: list[tuple[int, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    def change(number: int) -> dict[str, int | None]:
        data, forward, backward, optimizer, wait, rest, known = rows[number]
        passes = {"forward_ns": forward, "backward_ns": backward, "optimizer_ns": optimizer}
        unknown = dict.fromkeys(passes) if device == "cuda" and not known else passes
        whole = data + wait + rest + (0 if device == "cuda" else sum(passes.values()))
        return {"length_ns": whole, "data_ns": data, "wait_ns": wait, **unknown}

    folder = tmp_path_factory.mktemp("run")
    write_run(folder, len(rows), change, device=device)
    (one,) = run_figures(read_folder(folder), folder).ranks
    assert [clock.clock for clock in one.clocks][:1] == ["host"]
    for clock in one.clocks:
        assert min(clock.parts_ns.values()) >= 0
        assert sum(clock.parts_ns.values()) == pytest.approx(clock.step_ns)
    assert one.length is not None
    assert one.clocks[0].step_ns == pytest.approx(
        statistics.fmean(change(number)["length_ns"] or 0 for number in range(len(rows)))
    )


@pytest.mark.parametrize("shape", ["csv", "parquet", "arrow"])
def test_tables_have_all_steps_of_all_ranks(tmp_path: Path, shape: str) -> None:
    for rank in range(2):
        write_run(tmp_path, 30, lambda number: {"event": 0 if number == 7 else None}, rank=rank)
    file = tmp_path / f"steps.{shape}"
    report(tmp_path, "-o", file)
    if shape == "csv":
        found = [
            {name: int(value) if value else None for name, value in row.items()}
            for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
        ]
    else:
        feather = pytest.importorskip("pyarrow.feather")
        parquet = pytest.importorskip("pyarrow.parquet")
        read = parquet.read_table if shape == "parquet" else feather.read_table
        found = read(file).to_pylist()
    events = [step(number)._replace(event=0 if number == 7 else None) for number in range(30)]
    assert found == [{"rank": rank} | row._asdict() for rank in range(2) for row in events]


def test_drift_without_a_capture_is_tried_before_a_capture_of_usual_steps(tmp_path: Path) -> None:
    drift = WatchEvent(1, 9, 900, "drift", "steps take longer: data loading takes 2 ms more")
    write_run(tmp_path, events=(CAPTURED[0], drift))
    text = render_text(watch_document(run_figures(read_folder(tmp_path), tmp_path)))
    (line,) = [line for line in text.splitlines() if line.startswith("try first")]
    assert "uprof watch --every 60 SCRIPT: steps take longer: data loading" in line
