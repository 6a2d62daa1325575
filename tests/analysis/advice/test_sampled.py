"""Traces from which most operations were removed: idle time is not that of the program."""

from pathlib import Path

import pytest

import unified_prof
from tests.analysis.advice.faulty_runs import advice
from tests.decoders.kineto import builders
from unified_prof.cli.app import main
from unified_prof.explain.api import open_reports
from unified_prof.pipeline.convert import convert
from unified_prof.report.report_document import anomaly_warnings

OPERATIONS = 20_000


@pytest.mark.parametrize("every", [50, pytest.param(1, marks=pytest.mark.slow)])
def test_only_the_sample_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int
) -> None:
    """A device that is always busy is idle 98 % of the time if one kernel in 50 is left."""
    events = []
    for number in range(0, OPERATIONS, every):
        begin, correlation = 100 * number, {"External id": number, "correlation": number}
        begin_args = {"External id": number}
        events += [
            builders.operation("aten::mm", begin, 50, args=begin_args),
            builders.call(begin + 1, 5, number, args=correlation),
            builders.kernel(begin + 6, 100, number, args=correlation),
        ]
    convert(builders.write(tmp_path / "trace.json", events), tmp_path / "run.db")
    found = advice(tmp_path / "run.db")
    assert [one.kind for one in found.findings] == (["sampled_trace"] if every > 1 else [])
    if every > 1:
        assert "400 of more than 18,432 operations are in the file" in found.findings[0].text
        assert {one.why for one in found.not_judged if one.applies} == {
            "most operations were removed from the trace"
        }
        with open_reports(tmp_path / "run.db") as opened:
            warnings = dict(anomaly_warnings(opened.analyses[0].summary))
        assert (
            warnings["most operations were removed from the trace"]
            == "400 of more than 18,432 operations are in the file"
        )
    with pytest.raises(SystemExit):
        main(["cluster", "build", f"0={tmp_path / 'run.db'}", "-o", str(tmp_path / "cluster.db")])
    # Estimates, comparisons and ranks have the same caveat.
    (estimated,) = unified_prof.what_if(tmp_path / "run.db")
    assert any("sampled trace" in one for one in estimated.limits) == (every > 1)
    for command, caveat in (
        (
            ["diff", str(tmp_path / "run.db"), str(tmp_path / "run.db")],
            "400 of more than 18,432 operations are in the file",
        ),
        (
            ["cluster", "report", str(tmp_path / "cluster.db")],
            "sampled traces of 1 of 1 recorded ranks: idle time and sums are not those",
        ),
    ):
        with pytest.raises(SystemExit):
            main(command)
        captured = capsys.readouterr()
        text = " ".join((captured.out + captured.err).split())
        assert (caveat in text) == (every > 1), command
