"""`uprof report` of a directory of ranks."""

import json
import shutil
from pathlib import Path

import pytest

from tests.analysis.builders import training_step
from tests.cli.test_report import refused, uprof
from tests.cluster import ranks
from tests.cluster.summaries import Contents, slow_text, write_summary


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("two") / "run", world=2, slow_1=1.5)


@pytest.fixture(scope="module")
def six_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("many") / "run", world=6, slow_2=1.5)


def test_report_of_few_ranks_has_the_run_and_each_rank(two_ranks: Path) -> None:
    done = uprof("report", two_ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("findings") < done.stdout.index("msprof database")
    assert done.stdout.count("torch.profiler trace (msprof database") == 2
    found = json.loads(uprof("report", two_ranks, "--json").stdout)
    assert len(found["reports"]) == len(found["cluster"]["ranks"]) == 2
    assert found["coverage"]["missing"] == []


def test_report_of_six_ranks_has_the_run_only(six_ranks: Path) -> None:
    done = uprof("report", six_ranks)
    assert "findings" in done.stdout
    assert "msprof database" not in done.stdout
    assert "--rank N" in done.stderr
    assert json.loads(uprof("report", six_ranks, "--json").stdout)["reports"] == []


def test_rank_option_shows_the_report_of_one_rank(six_ranks: Path) -> None:
    shown = json.loads(uprof("report", six_ranks, "--rank", "2", "--json").stdout)
    (report,) = shown["reports"]
    assert report["facts"]["rank"] == "2"
    refused(uprof("report", six_ranks, "--rank", "6"), 2, "has no rank 6", "0 to 5")


def test_breakdown_is_shown_for_each_rank(two_ranks: Path) -> None:
    shown = uprof("report", two_ranks, "--by", "kernel").stdout
    assert "findings of the multi-rank run" not in shown
    assert shown.count("torch.profiler trace (msprof database") == 2


def test_page_of_ranks_is_the_page_of_the_run(six_ranks: Path, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert uprof("report", six_ranks, "-o", page).returncode == 0
    assert '"findings":' in page.read_text(encoding="utf-8")


def test_damaged_rank_is_reported_and_exits_with_code_7(six_ranks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(six_ranks, tmp_path / "run")
    victim = next(path for path in sorted(folder.rglob("*.db")) if "3" in path.stem)
    victim.write_bytes(victim.read_bytes()[:5000])
    done = uprof("report", folder)
    assert done.returncode == 7
    assert "5 of 6 ranks" in done.stdout
    assert "rank 3" in done.stderr


def test_summary_of_a_run_is_shown(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster", Contents(slow={3: 1.3}))
    for path in (run, run / "cluster.sqlite"):
        done = uprof("report", path)
        assert done.returncode == 0, done.stderr
        assert slow_text(3, 1.3) in done.stdout


def test_reports_without_ranks_are_not_shown_as_a_run(tmp_path: Path) -> None:
    for name in ("a.db", "b.db"):
        training_step(tmp_path / name)
    done = uprof("report", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "findings of the multi-rank run" not in done.stdout
    refused(uprof("report", tmp_path, "--rank", "0"), 2, "multi-rank run")
