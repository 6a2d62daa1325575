"""Findings above the figures of a report."""

import re
from pathlib import Path

import pytest

from tests.analysis.advice.faulty_runs import US, FaultyRun
from tests.analysis.builders import Device, run_time_report, training_step
from tests.cli.test_report import uprof
from tests.sql import execute
from unified_prof.explain.advice import registry
from unified_prof.explain.api import open_reports
from unified_prof.report import report_formats
from unified_prof.report.formats import ReportRequest


def recording(path: Path, *, every: int, kernels: int = 100, pause: int = 0) -> Path:
    with FaultyRun(path) as run:
        for at in range(kernels):
            begin = at * every + pause * (2 * at >= kernels)
            run.kernel(begin + US, begin + 11 * US, launched=begin, name="<b>|kernel")
    return path


def test_times_of_passes_add_up_to_the_device_time(tmp_path: Path) -> None:
    with open_reports(training_step(tmp_path / "msprof_1.db")) as opened:
        text = report_formats.produce_text(opened, ReportRequest(full_names=True))
    (line,) = re.findall("^device work .*", text, re.MULTILINE)
    assert " calls of the whole recording; forward " in line
    assert "unattributed 240 ns (37.5 %)" in line  # the collective and the copy
    assert sum(map(float, re.findall(r"\((\S+) %\)", line))) == pytest.approx(100, abs=0.2)


def test_idle_device_is_named_before_findings_without_a_saving(tmp_path: Path) -> None:
    """Few short kernels in fp32 are not what a program of pauses needs to change first."""
    with Device(tmp_path / "run.db") as device:
        for at in range(3):
            start = 1_000_000 * at
            device.task(start, start + 100_000, kernel=("ampere_sgemm_128x64_nn", "aten::mm"))
    with open_reports(tmp_path / "run.db") as opened:
        lines = report_formats.produce_text(opened, ReportRequest()).splitlines()
    assert lines[2].startswith("-  the device is idle 85.7 % of the time")
    assert lines[3].startswith("-  full precision: ")
    advice = uprof("advise", tmp_path / "run.db").stdout
    assert advice.index("the device is idle 85.7 % of the time: it ran 3 tasks\n") > 0
    assert advice.index("85.7 %") < advice.index("1. full precision [full_precision]: ")


@pytest.mark.parametrize(("pause", "is_first"), [(5_500 * US, True), (4_500 * US, False)])
def test_a_pause_comes_first_if_it_is_most_of_the_time(
    tmp_path: Path, pause: int, is_first: bool
) -> None:
    """Of the time without the pause, 100 kernels in 5 ms, four fifths are host-bound."""
    with open_reports(recording(tmp_path / "run.db", every=50 * US, pause=pause)) as opened:
        lines = report_formats.produce_text(opened, ReportRequest()).splitlines()
    (place,) = [at for at, line in enumerate(lines) if "not analyzed: a gap of " in line]
    (finding,) = [at for at, line in enumerate(lines) if "host-bound: " in line]
    assert (place < finding) == is_first


def test_healthy_run_has_no_findings_block(tmp_path: Path) -> None:
    with open_reports(recording(tmp_path / "run.db", every=11 * US)) as opened:
        shown = report_formats.produce_text(opened, ReportRequest())
        marked = report_formats.produce_markdown(opened, ReportRequest())
    assert "findings of the multi-rank run" not in shown
    assert "To do first" not in marked


def test_expensive_rules_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "QUICK_TASKS", 50)
    with open_reports(recording(tmp_path / "run.db", every=50 * US)) as opened:
        (analysis,) = opened.analyses
        quick, whole = analysis.advice(quick=True), analysis.advice()
    expensive = {"casts_and_copies", "unfused_attention"}
    assert not quick.complete
    assert whole.complete
    assert expensive.isdisjoint(quick.judged)
    assert expensive <= set(whole.judged)
    assert [one.kind for one in quick.findings] == [one.kind for one in whole.findings]


@pytest.mark.parametrize(
    ("gap_ns", "said"),
    [
        (1, "the device is busy 99.5 % of the time; 90.0 % of device time is in moe and add: only"),
        (2_000, "the device is idle 91.4 % of the time"),
    ],
)
def test_report_without_findings_explains_the_time(tmp_path: Path, gap_ns: int, said: str) -> None:
    with Device(tmp_path / "msprof_1.db") as device:
        begin = 0
        for name, length in (("moe", 400), ("add", 50), ("mul", 50)) * 3:
            device.task(begin, begin + length, kernel=(name, name))
            begin += length + gap_ns
    shown = " ".join(uprof("report", tmp_path / "msprof_1.db").stdout.split())
    assert "findings none (" in shown
    assert said in shown
    assert f"no findings; {said}" in " ".join(
        uprof("advise", tmp_path / "msprof_1.db").stdout.split()
    )


def test_time_of_a_tracked_run_is_that_of_one_iteration(tmp_path: Path) -> None:
    # Operations take 0.9 ms of each of ten iterations.
    run_time_report(
        tmp_path / "run_time.sqlite",
        [("linear", 0.2, 0.5, []), ("gelu", 0.2, None, [])],
        iterations=[(number, 1.0, 0.4, 0.5, None, 1) for number in range(10)],
    )
    shown = " ".join(uprof("report", tmp_path / "run_time.sqlite").stdout.split())
    assert "rules); 90.0 % of the time is in linear and gelu iteration" in shown


def test_time_of_a_recorded_host_is_that_of_all_steps(tmp_path: Path) -> None:
    """The operations of the first step count, too, although no rule analyzes them."""
    with Device(tmp_path / "msprof_1.db") as device:
        for step in range(4):
            device.call(step * 10_000, step * 10_000 + 10_000, f"ProfilerStep#{step}")
            device.call(step * 10_000 + 100, step * 10_000 + 9_100, "aten::linear")
    shown = " ".join(uprof("advise", tmp_path / "msprof_1.db").stdout.split())
    assert "90.0 % of the time is in aten::linear" in shown


def test_program_on_a_busy_machine_is_described_as_well(tmp_path: Path) -> None:
    path = run_time_report(
        tmp_path / "run_time.sqlite",
        [("linear", 0.2, 0.5, [])],
        iterations=[(number, 1.0, 0.4, 0.5, None, 1) for number in range(10)],
    )
    execute(path, "ALTER TABLE UPROF_ITERATIONS ADD COLUMN waited_ms DOUBLE")
    execute(path, "UPDATE UPROF_ITERATIONS SET waited_ms = 0.2")
    shown = " ".join(uprof("report", path).stdout.split())
    assert "because other processes use the cores" in shown
    assert "the program itself: no findings; 87.5 % of the time is in linear" in shown
    execute(path, "INSERT INTO UPROF_RUN VALUES ('torch_threads', '9'), ('processors', '2')")
    shown = " ".join(uprof("report", path).stdout.split())
    assert "because torch runs 9 threads on 2 cores" in shown
    assert "the program itself" not in shown


def test_parts_that_were_not_analyzed_are_named_below_the_findings(tmp_path: Path) -> None:
    with FaultyRun(tmp_path / "msprof_1.db") as run:
        for at in range(80):
            begin = at * 100 * US + (at // 40) * 50_000 * US
            run.kernel(begin + US, begin + 11 * US, launched=begin)
    done = uprof("report", str(tmp_path / "msprof_1.db"))
    assert "not analyzed: a gap of 50.1 ms, in which the device is idle" in done.stdout


def test_work_of_several_devices_says_so(tmp_path: Path) -> None:
    with Device(tmp_path / "run.db") as device:
        for number in (0, 1):
            device.task(0, 100, kernel=("mm", "aten::mm"), device=number)
    with open_reports(tmp_path / "run.db") as opened:
        text = report_formats.produce_text(opened, ReportRequest())
    assert re.search("^device work +200 ns in 2 calls on 2 devices", text, re.MULTILINE)
