"""`uprof advise`, its formats, and `unified_prof.advise`."""

import json
import re
from pathlib import Path

import pytest

import unified_prof
from tests.analysis.advice.faulty_runs import US, FaultyRun
from tests.cluster import summaries
from tests.cluster.ranks import databases
from unified_prof.cli.app import main


@pytest.fixture
def slow_host(tmp_path: Path) -> Path:
    """Write a recording of a host-bound device, with kernel names that contain markup."""
    with FaultyRun(tmp_path / "msprof_1.db") as recording:
        for at in range(100):
            begin = at * 50 * US
            recording.kernel(begin + US, begin + 11 * US, launched=begin, name="a|b")
    return tmp_path / "msprof_1.db"


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["advise", *words])
    assert ended.value.code == code
    return capsys.readouterr().out


def test_text_has_cost_and_advice(slow_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, str(slow_host))
    assert "1. host_bound: 3.96 ms of the recorded time, certain" in text
    assert "a step" not in text
    assert "try: reduce launch overhead" in text
    assert "before Add" in text
    (skipped,) = [line for line in text.splitlines() if line.startswith("skipped: ")]
    assert re.search(r"unfused_optimizer and \d more \(--json\): no framework oper", skipped)
    assert skipped.endswith("more reasons (--json)")


def test_equal_reasons_are_abbreviated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyRun(tmp_path / "msprof_1.db") as recording:
        recording.call(0, 100, "aten::add")
    lines = run(capsys, str(tmp_path / "msprof_1.db")).splitlines()
    (line,) = [line for line in lines if line.startswith("skipped: ")]
    first = line.split(";")[0]
    assert first.count(", ") == 3
    assert first.endswith("more (--json): no device tasks recorded")
    assert len(first) < 160


def test_json_extends_that_of_clusters(slow_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, str(slow_host), "--json"))
    assert (document["format"], document["version"]) == ("uprof-advice", 1)
    (report,) = document["reports"]
    (finding,) = report["findings"]
    cluster_keys = "kind ranks hosts links steps cost_ms_per_step text figures".split()
    assert set(finding) == {*cluster_keys, "advice", "sure", "evidence"}
    assert finding["cost_ms_per_step"] == 3.96
    assert "input_wait" in {one["kind"] for one in report["not_judged"]}
    assert document["coverage"]["whole"] == 1


def test_markdown_escapes_names(
    slow_host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, str(slow_host), "-o", str(tmp_path / "advice.md"))
    text = (tmp_path / "advice.md").read_text("utf-8")
    assert "### 1. host\\_bound" in text
    assert "| evidence |" in text


def test_directory_is_taken_by_report(slow_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyRun(slow_host.parent / "msprof_2.db") as recording:
        recording.kernel(0, 1000)
    document = json.loads(run(capsys, str(slow_host.parent), "--format", "json"))
    assert [len(one["findings"]) for one in document["reports"]] == [1, 0]


def test_damaged_report_is_reported(slow_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = slow_host.parent / "msprof_2.db"
    damaged.write_bytes(slow_host.read_bytes()[:5000])
    document = json.loads(run(capsys, str(slow_host.parent), "--json", code=7))
    assert document["coverage"]["missing"][0]["what"]


def test_file_that_is_no_report_exits_with_code_7(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("nothing")
    with pytest.raises(SystemExit) as ended:
        main(["advise", str(tmp_path / "x.db")])
    assert ended.value.code == 7


def test_top_omits_cheaper_findings(slow_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(run(capsys, str(slow_host), "--json", "--top", "1"))
    assert document["reports"][0]["findings_left_out"] == 0


def test_advise_function_returns_findings(slow_host: Path) -> None:
    (advice,) = unified_prof.advise(slow_host)
    assert [one.kind for one in advice.findings] == ["host_bound"]
    assert advice.findings[0].sure == "certain"


def test_findings_of_the_run_are_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = databases(tmp_path / "ranks", slow_2=1.4)
    document = json.loads(run(capsys, str(folder), "--json"))
    slow = next(one for one in document["run"] if one["kind"] == "slow_rank")
    assert slow["ranks"] == [2]
    assert slow["advice"].startswith("uprof cluster report")
    assert len(document["reports"]) == 4
    one = json.loads(run(capsys, str(folder), "--json", "--rank", "2"))
    assert len(one["reports"]) == 1


def test_built_run_needs_no_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = summaries.write_summary(tmp_path / "run.cluster", summaries.Contents(slow={3: 1.5}))
    text = run(capsys, str(path))
    assert text.startswith("Findings of the multi-rank run")
    assert "rank" in text
    document = json.loads(run(capsys, str(path), "--json"))
    assert document["run"]
    assert document["reports"] == []
    assert "Findings of the multi" in run(capsys, str(path), "--format", "markdown")
