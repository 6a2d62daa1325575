"""`uprof advise`, its formats, and `unified_prof.advise`."""

import json
from pathlib import Path

import pytest

import unified_prof
from tests.analysis.advice.faulty_runs import US, FaultyRun
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


def test_equal_reasons_are_abbreviated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyRun(tmp_path / "msprof_1.db") as recording:
        recording.call(0, 100, "aten::add")
    lines = run(capsys, str(tmp_path / "msprof_1.db")).splitlines()
    (line,) = [line for line in lines if line.startswith("skipped: ")]
    first = line.split(";")[0]
    assert first.count(", ") == 3
    assert first.endswith("more (--json): no device tasks recorded")
    assert len(first) < 160


def test_damaged_report_is_reported(slow_host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = slow_host.parent / "msprof_2.db"
    damaged.write_bytes(slow_host.read_bytes()[:5000])
    document = json.loads(run(capsys, str(slow_host.parent), "--json", code=7))
    assert document["coverage"]["missing"][0]["what"]


def test_advise_function_returns_findings(slow_host: Path) -> None:
    (advice,) = unified_prof.advise(slow_host)
    assert [one.kind for one in advice.findings] == ["host_bound"]
    assert advice.findings[0].sure == "certain"
