"""`uprof report` of a folder of ranks: their run comes first, and one of them on demand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.analysis.builders import training_step
from tests.cli.test_report import refused, uprof
from tests.cluster import ranks
from tests.cluster.summaries import Made, make, slow_text


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("two") / "run", world=2, slow_1=1.5)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ranks.databases(tmp_path_factory.mktemp("many") / "run", world=6, slow_2=1.5)


def test_of_few_ranks_the_run_comes_first_and_then_each(two: Path) -> None:
    done = uprof("report", two)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("findings") < done.stdout.index("msprof database")
    assert done.stdout.count("msprof database, revision") == 2
    found = json.loads(uprof("report", two, "--json").stdout)
    assert len(found["reports"]) == len(found["cluster"]["ranks"]) == 2
    assert found["coverage"]["missing"] == []


def test_of_many_ranks_the_run_is_all_there_is(many: Path) -> None:
    done = uprof("report", many)
    assert "findings" in done.stdout
    assert "msprof database" not in done.stdout
    assert "--rank N" in done.stderr
    assert "reports" not in json.loads(uprof("report", many, "--json").stdout)


def test_one_rank_is_its_own_report(many: Path) -> None:
    shown = json.loads(uprof("report", many, "--rank", "2", "--json").stdout)
    (report,) = shown["reports"]
    assert report["facts"]["rank"] == "2"
    refused(uprof("report", many, "--rank", "6"), 2, "has no rank 6", "0 to 5")


def test_a_breakdown_is_of_each_report_as_ever(two: Path) -> None:
    shown = uprof("report", two, "--by", "kernel").stdout
    assert "findings of the multi-rank run" not in shown
    assert shown.count("msprof database, revision") == 2


def test_a_page_of_ranks_is_the_page_of_the_run(many: Path, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert uprof("report", many, "-o", page).returncode == 0
    assert '"findings":' in page.read_text(encoding="utf-8")


def test_a_rank_that_is_missing_is_told_of_and_the_exit_code_says_so(
    many: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(many, tmp_path / "run")
    victim = next(path for path in sorted(folder.rglob("*.db")) if "3" in path.stem)
    victim.write_bytes(victim.read_bytes()[:5000])
    done = uprof("report", folder)
    assert done.returncode == 7
    assert "5 of 6 ranks" in done.stdout
    assert "rank 3" in done.stderr


def test_what_uprof_cluster_made_is_shown(tmp_path: Path) -> None:
    run = make(tmp_path / "run.cluster", Made(slow={3: 1.3}))
    for path in (run, run / "cluster.sqlite"):
        done = uprof("report", path)
        assert done.returncode == 0, done.stderr
        assert slow_text(3, 1.3) in done.stdout


def test_reports_that_are_of_no_common_run_stay_reports_beside_each_other(tmp_path: Path) -> None:
    for name in ("a.db", "b.db"):
        training_step(tmp_path / name)
    done = uprof("report", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "findings of the multi-rank run" not in done.stdout
    refused(uprof("report", tmp_path, "--rank", "0"), 2, "multi-rank run")
