"""`uprof diff`, `gate` and `baseline` on report files, in one process."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.sql import execute
from unified_prof.base.run_spec import (
    ActivationRecord,
    Frame,
    GapRecord,
    IterationRecord,
    OperationRecord,
    TrackedRun,
)
from unified_prof.cli.app import app
from unified_prof.errors import UprofError
from unified_prof.sqlite import skyline_writer

ITERATIONS = 12


def write_run(
    folder: Path,
    *,
    slow_line: float = 1.0,
    pause_ms: float = 0.5,
    seed: int = 0,
    device: str = "cpu",
    waited_ms: float | None = None,
    parts_ms: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """Write both Skyline reports of a model whose second operation is slower by `slow_line`.

    Its forward pass waits `waited_ms` for a processor; None: unknown. Its iterations have the
    further parts `parts_ms`.
    """
    generator = np.random.default_rng(seed)
    waited = waited_ms or 0.0
    folder.mkdir()

    def times(ms: float) -> tuple[float, ...]:
        return tuple((ms * generator.uniform(1, 1.02, ITERATIONS)).tolist())

    def operation(name: str, line: int, ms: float) -> OperationRecord:
        frames = (Frame("model.py", line),)
        return OperationRecord(name, frames, "net", "Net", times(ms), times(2 * ms))

    operations = (
        operation("linear", 10, 2.0),
        operation("<script>", 11, 1.0 * slow_line),
        replace(operation("relu", 12, 0.1), gap=GapRecord("model.py", 11, 11, times(pause_ms))),
    )
    totals = np.sum([(*op.forward_ms,) for op in operations], axis=0) * 3
    run = TrackedRun(
        device=device,
        operations=operations,
        weights=(),
        activations=(
            ActivationRecord(
                "linear", "net", "Net", int(1e6 * slow_line), (Frame("model.py", 10),)
            ),
        ),
        iterations=tuple(
            IterationRecord(
                float(total) + waited + sum(parts_ms.values()),
                float(total) / 3 + waited,
                float(total) * 2 / 3,
                50_000_000,
                True,
                waited_ms,
                waited_ms,
                None if waited_ms is None else 0.0,
                parts_ms=dict(parts_ms),
            )
            for total in totals
        ),
        peak_usage_bytes=int(50e6 * slow_line),
        complete=True,
    )
    lines = {part: f"train.py:{len(part)}" for part in parts_ms}
    facts = {"device": device, "part_lines": json.dumps(lines)}
    skyline_writer.write_run_time(folder / "run_time.sqlite", run, facts, overwrite=False)
    skyline_writer.write_memory(folder / "memory.sqlite", run, facts, overwrite=False)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_run(tmp_path / "base")


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    return write_run(tmp_path / "slower", slow_line=1.5, seed=1)


@pytest.fixture
def same(tmp_path: Path) -> Path:
    return write_run(tmp_path / "same", seed=2)


@pytest.fixture(autouse=True)
def isolated_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # With a known run-to-run variation one run per side is enough.
    monkeypatch.setenv("UPROF_GATE_NOISE", "1%")
    monkeypatch.setenv("UPROF_DIFF_NOISE", "1%")


def uprof(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=True)


def error(result: Result) -> UprofError:
    assert isinstance(result.exception, UprofError), result.output
    return result.exception


def test_time_between_operations_is_compared_by_source_line(base: Path, tmp_path: Path) -> None:
    paused = write_run(tmp_path / "paused", pause_ms=3.0, seed=4)
    first = json.loads(uprof("diff", base, paused, "--json").stdout)["changes"][0]
    assert (first["status"], first["place"]["line"]) == ("slower", "model.py:11")
    assert first["place"]["kind"] == "between"
    assert first["delta_ns"] == pytest.approx(2.5e6, rel=0.1)
    table = uprof("diff", base, paused).stdout.partition("Time\n")[2].splitlines()
    assert "net (between operations)" in table[1]


@pytest.mark.parametrize("waited_ms", [0.0, 90.0])
def test_parts_of_an_iteration_are_rows_that_add_up(tmp_path: Path, waited_ms: float) -> None:
    """Data loading is 60 ms shorter, and no operation changed."""
    parts_ms = {"data_loading": 62.0, "optimizer": 1.0}
    before = write_run(tmp_path / "before", waited_ms=waited_ms, parts_ms=parts_ms)
    parts_ms["data_loading"] = 2.0
    after = write_run(tmp_path / "after", seed=1, waited_ms=0.0, parts_ms=parts_ms)
    document = json.loads(uprof("diff", before, after, "--json").stdout)
    rows = {row["name"]: row for row in document["iteration_parts"]}
    assert rows["data_loading"]["delta_ns"] == pytest.approx(-60e6)
    for side, path in (("base_ns", before), ("new_ns", after)):
        report = json.loads(uprof("report", path, "--json").stdout)["reports"][0]
        assert sum(row[side] for row in rows.values()) == report["totals"]["iteration_ns"]
    text = uprof("diff", before, after).stdout
    assert "largest change: data loading -60.0 ms at train.py:12" in " ".join(text.split())
    lines = filter(None, text.partition("Iteration\n")[2].splitlines())
    table = [line.split()[0] for line in lines]
    assert table[1] == ("waiting" if waited_ms else "data")
    assert len(rows) == table.index("times") - 1 == 5 + bool(waited_ms)


def test_parts_are_left_out_if_a_side_has_none(base: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", seed=1, parts_ms={"data_loading": 9.0})
    execute(other / "memory.sqlite", "UPDATE UPROF_ITERATIONS SET forward_ms = NULL")
    execute(other / "run_time.sqlite", "UPDATE UPROF_ITERATIONS SET forward_ms = NULL")
    result = uprof("diff", base, other)
    assert result.exit_code == 0
    assert "Iteration" not in result.stdout


def test_cpu_wait_time_is_excluded_from_all_metrics(base: Path, tmp_path: Path) -> None:
    quiet = write_run(tmp_path / "quiet", seed=5, waited_ms=0)
    busy = write_run(tmp_path / "busy", seed=6, waited_ms=30)
    document = json.loads(uprof("diff", quiet, busy, "--json").stdout)
    assert {one["verdict"] for one in document["totals"].values()} == {"same"}
    assert document["waiting"]["left_out"] is True
    message = "times exclude waiting for a processor"
    assert f"{message} (base 0.0 %, new 7" in uprof("diff", quiet, busy).stdout
    result = uprof("gate", quiet, busy, "--metric", "forward")
    assert result.exit_code == 0
    assert message in result.stdout
    assert message in uprof("gate", quiet, busy, "--format", "markdown").stdout
    assert message not in uprof("diff", base, base).stdout, "unknown waits are not mentioned"


def test_single_runs_say_what_would_decide(
    base: Path, slower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UPROF_DIFF_NOISE")
    text = " ".join(uprof("diff", base, slower).stdout.split())
    assert "inconclusive, run-to-run variation unknown with one run per side" in text
    assert "give several with --base and --new, or measure it" in text
    assert "only changes well above 2 x are certain" in text


def test_gate_and_diff_warn_if_devices_differ(base: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "npu", device="npu: Ascend910B", seed=3)
    assert "differ in device: cpu and npu: Ascend910B" in uprof("diff", base, other).stdout
    result = uprof("gate", base, other)
    assert "warning: the runs differ in device: cpu and npu: Ascend910B" in result.stderr
    assert "differ" not in result.stdout
    assert not uprof("gate", base, other, "--quiet").stderr


def test_verdict_is_appended_to_the_job_summary(
    base: Path, same: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    uprof("gate", base, same)
    assert summary.read_text().startswith("before\n## ")
    assert "pass" in summary.read_text()


def test_existing_output_is_kept_without_force(base: Path, same: Path, tmp_path: Path) -> None:
    out = tmp_path / "gate.xml"
    out.write_text("other")
    result = uprof("gate", base, same, "--format", "junit", "-o", out)
    assert error(result).exit_code == 9
    assert out.read_text() == "other"
    assert uprof("gate", base, same, "--format", "junit", "-o", out, "--force").exit_code == 0
    assert "<testsuite" in out.read_text()


@pytest.mark.parametrize(
    ("command", "name", "begins"),
    [
        ("diff", "o.md", "## "),
        ("diff", "o.json", "{"),
        ("diff", "o.txt", "base"),
        ("diff", "o", "base"),
        ("gate", "o.md", "## "),
        ("gate", "o.json", "{"),
        ("gate", "o.XML", "<?xml"),
        ("gate", "o.txt", "uprof gate: "),
    ],
)
def test_format_follows_the_output_extension(
    base: Path, same: Path, tmp_path: Path, command: str, name: str, begins: str
) -> None:
    result = uprof(command, base.name, same.name, "-o", name)
    assert (result.exit_code, result.stdout) == (0, "")
    written = (tmp_path / name).read_text(encoding="utf-8")
    ending = "pass" if command == "gate" else f", {len(written.encode()):,} bytes"
    assert result.stderr.startswith(f"{name}: ")
    assert result.stderr.endswith(f"{ending}\n")
    assert written.startswith(begins)


@pytest.mark.parametrize("command", ["diff", "gate", "report"])
def test_text_output_never_replaces_a_report(base: Path, same: Path, command: str) -> None:
    report = base / "memory.sqlite"
    before = report.read_bytes()
    sides = (base,) if command == "report" else (base, same)
    found = error(uprof(command, *sides, "--format", "text", "-o", report, "--force"))
    message = f"{report} is a database and is not overwritten with text"
    assert (found.exit_code, str(found)) == (9, message)
    assert report.read_bytes() == before


def test_dash_as_output_is_stdout(base: Path, same: Path, tmp_path: Path) -> None:
    for command in ("diff", "gate"):
        assert uprof(command, base, same, "-o", "-").stdout == uprof(command, base, same).stdout
    assert not (tmp_path / "-").exists()


def test_project_settings_are_used(base: Path, slower: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.uprof.gate]\nmax-regress = '90%'\n")
    assert uprof("gate", base, slower).exit_code == 0


def test_baseline_is_saved_listed_shown_and_gated(base: Path, slower: Path, same: Path) -> None:
    assert uprof("baseline", "save", "main", base).exit_code == 0
    assert uprof("gate", "--baseline", "main", slower).exit_code == 1
    assert uprof("gate", "--baseline", "main", same).exit_code == 0
    assert uprof("baseline", "save", "main", slower).exit_code == 0
    assert uprof("gate", "--baseline", "main", slower).exit_code == 0
    assert uprof("gate", "--baseline", "main@1", slower).exit_code == 1
    assert "main@2" in uprof("baseline", "list").stdout
    shown = json.loads(uprof("baseline", "show", "main", "--json").stdout)
    assert [entry["version"] for entry in shown] == [1, 2]


def test_store_variable_does_not_prevent_comparing_two_reports(
    base: Path, same: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPROF_GATE_STORE", "postgresql+psycopg://nobody@localhost:1/none")
    assert uprof("gate", base, same).exit_code == 0


def test_baseline_gives_the_same_verdict_as_its_report(base: Path, slower: Path) -> None:
    uprof("baseline", "save", "main", base)
    by_file = json.loads(uprof("gate", base, slower, "--json").stdout)
    by_name = json.loads(uprof("gate", "--baseline", "main", slower, "--json").stdout)
    assert by_file["checks"] == by_name["checks"]


def test_report_without_samples_is_inconclusive(base: Path, slower: Path) -> None:
    for folder in (base, slower):
        execute(folder / "run_time.sqlite", "DROP TABLE UPROF_RUN_TIME_SAMPLES")
        execute(folder / "run_time.sqlite", "DROP TABLE UPROF_ITERATIONS")
        (folder / "memory.sqlite").unlink()
    assert uprof("gate", base, slower).exit_code == 3
    assert "inconclusive" in uprof("diff", base, slower, "--all").stdout
    assert "faster" not in uprof("diff", slower, base, "--all").stdout.partition("Time")[2]


IMPOSSIBLE = (-1.0, float("inf"), 1e300, -5.0, "text", 0.0)


def write_impossible_times(folder: Path) -> None:
    """Replace all times of a run by impossible values."""
    with closing(sqlite3.connect(folder / "run_time.sqlite")) as db, db:
        for number in range(ITERATIONS):
            values = [IMPOSSIBLE[(number + shift) % len(IMPOSSIBLE)] for shift in range(3)]
            db.execute(
                "UPDATE UPROF_ITERATIONS SET total_ms = ?, forward_ms = ?, backward_ms = ?"
                " WHERE iteration = ?",
                (*values, number),
            )
        db.execute("UPDATE UPROF_RUN_TIME_SAMPLES SET forward_ms = 1e300 WHERE iteration < 6")
        db.execute("UPDATE UPROF_RUN_TIME_SAMPLES SET forward_ms = 'text' WHERE iteration = 7")
        db.execute("UPDATE run_time_entries SET forward_ms = 1e300 WHERE id = 2")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_impossible_times_are_not_samples(base: Path, slower: Path, form: str) -> None:
    write_impossible_times(slower)
    for sides in ((base, slower), (slower, base), (slower, slower)):
        assert uprof("diff", *sides, "--format", form).exit_code == 0
        assert uprof("gate", *sides, "--format", form).exit_code == 3


def test_json_handles_a_baseline_without_any_time(base: Path, tmp_path: Path) -> None:
    zero = write_run(tmp_path / "zero", slow_line=0)
    execute(zero / "run_time.sqlite", "UPDATE UPROF_ITERATIONS SET total_ms = 0")
    document = json.loads(uprof("gate", zero, base, "--json").stdout)
    assert document["outcome"] == "regression"
    assert document["checks"][0]["shift"]["ratio"] is None
    assert uprof("diff", zero, base, "--json").exit_code == 0


def test_runs_without_common_operations_give_a_warning(base: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other")
    execute(
        other / "run_time.sqlite", "UPDATE run_time_entries SET operation_name = 'other ' || id"
    )
    assert "no operation of" in uprof("diff", base, other).stdout


def test_gate_shows_what_a_regression_comes_from(
    base: Path, slower: Path, same: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = uprof("gate", base, slower).stdout
    assert text.partition("increases, operations\n")[2].splitlines()[1].endswith("model.py:11")
    assert "increases, memory" not in text, "an activation explains 2 % of the larger peak"
    assert "increases" not in uprof("gate", base, same).stdout
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    uprof("gate", base, slower, "--quiet")
    assert "### Largest increases, operations" in (tmp_path / "summary").read_text()


def test_gate_names_the_part_of_an_iteration_that_grew(tmp_path: Path) -> None:
    before = write_run(tmp_path / "before", waited_ms=0.0, parts_ms={"data_loading": 2.0})
    after = write_run(tmp_path / "after", waited_ms=20.0, parts_ms={"data_loading": 62.0})
    text = uprof("gate", before, after, "--metric", "total").stdout
    parts = text.partition("parts of an iteration\n")[2].splitlines()
    assert parts[1].startswith("data loading  2.00 ms  62.0 ms  +60.0 ms")
    assert "waiting for CPU" not in text, "the compared times exclude it"


def test_gate_refers_to_diff_if_no_operation_explains_a_regression(tmp_path: Path) -> None:
    before, after = write_run(tmp_path / "before"), write_run(tmp_path / "after")
    change = "UPDATE UPROF_ITERATIONS SET forward_ms = NULL, total_ms = 2 * total_ms"
    execute(after / "run_time.sqlite", change)
    assert "no operation explains" in uprof("gate", before, after, "--metric", "total").stdout
