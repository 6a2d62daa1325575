"""The summary that `uprof run` prints at its end."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.builders import Frame, memory_report, run_time_report, training_step
from tests.sql import execute
from unified_prof.cli.app import app
from unified_prof.explain.api import open_analyses
from unified_prof.recording.model import ModelUse
from unified_prof.report import report_document, terminal
from unified_prof.report.document import Document
from unified_prof.report.figures import collect_figures


def test_footer_has_headline_top_rows_anomalies_and_files(tmp_path: Path) -> None:
    operations: list[tuple[str, float, None, list[Frame]]] = [
        (f"op_{number}", 1.0 + number, None, []) for number in range(12)
    ]
    anomalies = [("unmatched_iterations", 2, "number 3")]
    run_time = run_time_report(tmp_path / "run_time.sqlite", operations, anomalies=anomalies)
    memory = memory_report(tmp_path / "memory.sqlite")
    shown = report_document.run_footer({"run-time": [run_time], "memory": [memory]})
    assert "operations    78.0 ms in 12 calls" in shown
    assert "memory        peak 97.7 KiB" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("op_")] == [
        f"op_{number}" for number in range(11, 1, -1)
    ]
    assert "and 5 more" in shown
    assert "different operations, excluded from medians: number 3 (2 times)" in shown
    assert "not measured" not in shown, "it is the same at the end of every run"
    files = [f"run-time report  {run_time}", f"memory report    {memory}"]
    assert shown.splitlines()[-2:] == files


def test_footer_has_the_figures_of_report(tmp_path: Path) -> None:
    path = training_step(tmp_path / "msprof_1.db")
    shown = report_document.run_footer({"timeline": [path]}).splitlines()
    with open_analyses(path) as analyses:
        whole = terminal.render_text(
            report_document.report_document([collect_figures(analyses[0], ["operation"])]),
            width=None,
            color=False,
        )
    assert set(shown[:-2]) <= set(whole.splitlines())


def test_unreadable_report_is_a_warning_in_the_footer(tmp_path: Path) -> None:
    (tmp_path / "run_time.sqlite").write_bytes(b"")
    shown = report_document.run_footer({"run-time": [tmp_path / "run_time.sqlite"]})
    assert "warning: " in shown
    assert "is empty" in shown
    assert "run-time report" in shown


ITERATIONS = [
    # iteration, total_ms, forward_ms, backward_ms, peak_usage_bytes, matched
    (1, 10.0, 2.0, 7.0, None, 1),
    (2, 11.0, 7.0, 2.0, None, 1),
    (3, 30.0, 1.0, 1.0, None, 1),
]


def test_parts_of_the_median_iteration_add_up_to_its_duration(tmp_path: Path) -> None:
    """Medians of the parts would give forward 2, backward 2 for an iteration of 11 ms."""
    path = run_time_report(tmp_path / "r.sqlite", iterations=ITERATIONS)
    with open_analyses(path) as analyses:
        headline = dict(report_document.report_headline(collect_figures(analyses[0], [])))
        parts = report_document.iteration_parts(analyses[0].summary.totals)
    assert headline["iteration"] == "median 11.0 ms, max 30.0 ms (n = 3)"
    assert parts == [("forward", 7_000_000), ("backward", 2_000_000), ("other code", 2_000_000)]
    assert next(iter(headline)) == "iteration", "the length of a step comes first"


@pytest.mark.parametrize(
    ("samples", "rate"),
    [("32", ", 2,909 samples/s"), ("5.5", ", 500 samples/s"), ("many", ""), ("-1", ""), ("", "")],
)
def test_samples_per_second_are_of_the_median(samples: str, rate: str, tmp_path: Path) -> None:
    facts = {"samples_per_iteration": samples}
    path = run_time_report(tmp_path / "r.sqlite", iterations=ITERATIONS, facts=facts)
    with open_analyses(path) as analyses:
        headline = dict(report_document.report_headline(collect_figures(analyses[0], [])))
    assert headline["iteration"] == f"median 11.0 ms, max 30.0 ms (n = 3){rate}"


def test_advice_has_the_median_that_the_headline_has(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", iterations=ITERATIONS)
    shown = CliRunner().invoke(app, ["advise", str(path)])
    assert shown.exit_code == 0
    assert "3 steps, median 11.0 ms" in shown.output


def test_median_of_two_iterations_is_their_mean(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", iterations=ITERATIONS[:2])
    with open_analyses(path) as analyses:
        totals = analyses[0].summary.totals
    assert (totals.iteration_ns, totals.iteration_forward_ns) == (10_500_000, 4_500_000)
    assert totals.iteration_backward_ns == 4_500_000


def test_time_waiting_for_a_cpu_is_reported(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", iterations=ITERATIONS[:1])
    execute(path, "ALTER TABLE UPROF_ITERATIONS ADD COLUMN waited_ms DOUBLE")
    execute(path, "UPDATE UPROF_ITERATIONS SET waited_ms = 4.0")
    with open_analyses(path) as analyses:
        headline = dict(report_document.report_headline(collect_figures(analyses[0], [])))
    assert headline["iteration"].endswith("; 4.00 ms of it waiting for a CPU (busy machine)")
    execute(path, "CREATE TABLE IF NOT EXISTS UPROF_RUN (name VARCHAR, value VARCHAR)")
    execute(path, "INSERT INTO UPROF_RUN VALUES ('torch_threads', '16'), ('processors', '2')")
    with open_analyses(path) as analyses:
        headline = dict(report_document.report_headline(collect_figures(analyses[0], [])))
    assert headline["iteration"].endswith("waiting for a CPU (16 threads on 2 cores)")


def test_footer_begins_with_findings_if_there_are_any(tmp_path: Path) -> None:
    path = run_time_report(tmp_path / "r.sqlite", iterations=ITERATIONS[:1])
    document = Document()
    command = report_document.add_run_footer(document, {"run-time": [path]}, top=3)
    assert command == "uprof report --by line"
    assert "findings" not in terminal.render_text(document, width=None, color=False)
    execute(path, "ALTER TABLE UPROF_ITERATIONS ADD COLUMN waited_ms DOUBLE")
    execute(path, "UPDATE UPROF_ITERATIONS SET waited_ms = 4.0")
    document = Document()
    command = report_document.add_run_footer(document, {"run-time": [path]}, top=3)
    assert command == "uprof advise"
    shown = terminal.render_text(document, width=None, color=False).splitlines()
    assert shown[0] == "findings"
    assert "CPU wait" in shown[1]


@pytest.mark.parametrize(
    ("frames", "modules", "command"),
    [
        ([("model.py", 12)], [("layer", "Linear")], "uprof report --by line"),
        ([], [("layer", "Linear")], "uprof report --by module"),
        ([], [], "uprof report"),
    ],
)
def test_next_command_shows_a_breakdown_of_the_report(
    frames: list[Frame], modules: list[tuple[str, str]], command: str, tmp_path: Path
) -> None:
    path = run_time_report(tmp_path / "r.sqlite", [("linear", 1.5, 3.0, frames)], modules=modules)
    assert report_document.add_run_footer(Document(), {"run-time": [path]}, top=3) == command
    shown = CliRunner().invoke(app, [*command.split()[1:], str(path)])
    assert shown.exit_code == 0, shown.output


def test_next_command_of_a_timeline_is_advise(tmp_path: Path) -> None:
    path = training_step(tmp_path / "t.db")
    footer = report_document.add_run_footer(Document(), {"timeline": [path]}, top=3)
    assert footer == "uprof advise"


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (0.039, "2.00 TFLOP in the 3.9 % of kernel time with known shapes"),
        (0.6, "2.00 TFLOP in a window of 100 ms: 20.0 TFLOP/s, MFU 10.0 % of 200 bf16 TFLOP/s"),
    ],
)
def test_no_rate_is_shown_if_few_shapes_are_known(known: float, text: str) -> None:
    use = ModelUse("device 0", 2 * 10**12, 10**8, None, 0.1, known, "200 bf16", False)
    (shown,) = report_document._model_use([use])
    assert shown.startswith(text)
    assert ("/s" in shown) == (known > 0.5)
