"""Report of a multi-rank run as text, JSON, CSV and Markdown."""

import csv
import io
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import refused, uprof
from tests.cluster.summaries import COMPUTE_NS, MS, Contents, slow_text, write_summary
from tests.sql import execute
from unified_prof.cluster.overview import Overview, format_ranges
from unified_prof.cluster.stored_run import STEP_PARTS, open_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_summary(tmp_path / "run.cluster", Contents(slow={3: 1.3}))


def document(*arguments: str | Path) -> dict[str, Any]:
    done = uprof("cluster", "report", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_most_expensive_finding_is_printed_before_the_tables(run: Path) -> None:
    text = uprof("cluster", "report", run).stdout
    line = next(line for line in text.splitlines() if slow_text(3, 1.3) in line)
    assert line.split("  ")[0].endswith("%)"), "the cost is in front"
    assert text.index("findings\n") < text.index(line) < text.index("mean step")
    assert text.index("mean step") < text.index("ranks, most expensive first")
    row = text[text.index("ranks, most expensive first") :].splitlines()[2].split()
    assert row[:3] == ["3", "node0", "0"]
    assert "1.30 x" in text


def test_healthy_run_reports_no_findings(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster")
    assert "none: no rank, host or link" in uprof("cluster", "report", run).stdout
    assert document(run)["findings"] == []


@pytest.mark.parametrize(("times", "caused"), [(0, None), (3, 0)])
def test_caused_waits_are_unknown_without_complete_collectives(
    tmp_path: Path, times: int, caused: int | None
) -> None:
    run = write_summary(tmp_path / "run.cluster")
    execute(run / "cluster.sqlite", "UPDATE BLAME SET caused_wait_ns = 0, times = ?", times)
    assert document(run)["ranks"][0]["blame"]["caused_wait_ns"] == caused
    text = uprof("cluster", "report", run, "--by", "rank").stdout
    assert ("causes wait" in text) == (caused == 0)


def test_summary_file_is_accepted_like_its_directory(run: Path) -> None:
    ranks = document(run)["ranks"]
    assert document(run / "cluster.sqlite")["ranks"] == ranks


def test_document_has_each_rank_step_group_and_link_once(run: Path) -> None:
    found = document(run)
    assert found["version"] == 1
    assert [one["rank"] for one in found["ranks"]] == list(range(8))
    assert [one["step"] for one in found["steps"]] == [0, 1, 2]
    assert found["run"]["layout"] == "tp 2 x dp 2 x pp 2"
    assert len(found["links"]) == 4
    slow = found["ranks"][3]
    assert slow["compute_ns"] == COMPUTE_NS * 1.3
    assert slow["blame"]["cause"] == "slow_rank"
    assert slow["input_late_ns"] is None
    (finding,) = found["findings"]
    keys = "kind ranks hosts links steps cost_ms_per_step figures text"
    assert set(finding) == set(keys.split())
    assert finding["cost_ms_per_step"] == pytest.approx(18.0)


def test_parts_of_the_mean_step_add_up_to_its_duration(run: Path) -> None:
    mean = document(run)["run"]["mean_step"]
    parts = mean["compute_ns"] + mean["exposed_communication_ns"] + mean["idle_ns"]
    assert parts == pytest.approx(mean["span_ns"], abs=3)


def test_waits_that_are_no_part_of_the_collective_wait_are_listed_beside_it(run: Path) -> None:
    output = uprof("cluster", "report", run).stdout
    assert re.search(r"collective wait \S+ ms \(pipeline wait \S+ ms of it\)", output)


def test_report_of_a_rank_compares_it_with_its_stage(run: Path) -> None:
    text = uprof("cluster", "report", run, "--rank", "3").stdout
    kernels = text[text.index("kernels") :].splitlines()
    assert kernels[2].split()[0] == "MatMul"
    assert "1.30 x" in kernels[2]
    found = document(run, "--rank", "3")
    assert [one["step"] for one in found["steps"]] == [0, 1, 2]
    ratios = {one["name"]: one["ratio"] for one in found["operations"]}
    assert ratios == {"MatMul": pytest.approx(1.3), "Add": pytest.approx(1.3)}
    assert [one["ranks"] for one in found["groups"]] == [[2, 3]]


def test_report_of_a_step_has_all_ranks(run: Path) -> None:
    found = document(run, "--step", "1")
    assert [one["rank"] for one in found["ranks"]] == list(range(8))
    assert all(one["blame"] is None for one in found["ranks"])  # known for the whole run only


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rank", "8"), ("has no rank 8", "0 to 7")),
        (("--step", "3"), ("has no step 3", "0 to 2")),
        (("--by", "kernel"), ("--by",)),
    ],
)
def test_missing_rank_step_or_table_is_a_usage_error(
    run: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(uprof("cluster", "report", run, *arguments), 2, *words)


@pytest.mark.parametrize("by", ["rank", "step", "group", "link", "operation"])
def test_csv_has_the_figures_of_the_document(run: Path, by: str) -> None:
    done = uprof("cluster", "report", run, "--by", by, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    if by == "operation":
        assert len(rows) == 16
        return
    expected = document(run)[f"{by}s"]
    assert len(rows) == len(expected)
    for row, one in zip(rows, expected, strict=True):
        for name, value in one.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert float(row[name]) == value


@pytest.mark.parametrize("by", ["rank", "step", "group", "link", "operation"])
def test_report_by_table_prints_only_that_table(run: Path, by: str) -> None:
    text = uprof("cluster", "report", run, "--by", by, "--top", "2").stdout
    assert text.count("\n\n") <= 2
    assert "findings" not in text


def test_markdown_escapes_names(run: Path) -> None:
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE RANK SET host = '<b>|node*'")
        db.commit()
    text = uprof("cluster", "report", run, "--format", "markdown").stdout
    assert "<b>" not in text
    assert r"\|node\*" in text


def test_missing_rank_is_reported_and_fails_only_with_strict(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster", Contents(absent=[2], failed=[5]))
    done = uprof("cluster", "report", run)
    message = "6 of 8 ranks; missing: 2; rank 5: rank.db is cut off"
    assert done.returncode == 0
    assert message in done.stdout
    assert message in done.stderr
    strict = uprof("cluster", "report", run, "--strict")
    assert (strict.returncode, strict.stdout) == (7, done.stdout)
    missing = document(run)["run"]["ranks_missing"]
    assert [(one["rank"], one["status"]) for one in missing] == [(2, "absent"), (5, "failed")]


def test_report_of_a_thousand_ranks_fits_50_lines(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster", Contents(tp=8, dp=16, pp=8, slow={137: 1.1}))
    text = uprof("cluster", "report", run).stdout
    assert text.index("rank 137, host node17") < text.index("most expensive first")
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 200


def test_path_that_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    refused(uprof("cluster", "report", tmp_path), 7, "has no cluster.sqlite", "cluster build")
    refused(uprof("cluster", "report", tmp_path / "none"), 7, "none")
    (tmp_path / "text.db").write_text("no database")
    refused(uprof("cluster", "report", tmp_path / "text.db"), 7, "text.db")
    file = run / "cluster.sqlite"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused(uprof("cluster", "report", run), 7, "cluster.sqlite")


def test_run_without_steps_is_shown_without_analysis(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster", Contents(steps=0))
    done = uprof("cluster", "report", run)
    assert (done.returncode, done.stderr) == (0, "")
    assert "8 of 8 ranks" in done.stdout
    assert "no analysis possible" in done.stdout
    assert "none: no rank, host or link" not in done.stdout
    assert document(run)["run"]["mean_step"]["span_ns"] is None


def test_unknown_part_of_a_step_is_not_zero(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster")
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE STEP_RANK SET wait_ns = NULL WHERE rank < 4")
        db.commit()
    with open_run(run) as opened:
        overview = Overview(opened)
        assert overview.ranks[0].parts["wait_ns"] is None
        # The mean is over the ranks where it is known.
        assert overview.mean_step["wait_ns"] == overview.ranks[4].parts["wait_ns"]
        assert set(overview.mean_step) == {"span_ns", *STEP_PARTS}
        assert overview.mean_step["input_late_ns"] is None


def test_slowest_group_and_link_are_listed_first(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster", Contents(slow_links=[(2, 6)]))
    with open_run(run) as opened:
        overview = Overview(opened)
        (row,) = overview.groups
        assert row.slowest_group is not None
        assert row.slowest_group.ranks == (6, 7)
        assert row.transfer_ns == 2 * MS
        worst = overview.links[0]
        assert (worst.src_rank, worst.dst_rank) == (2, 6)
        assert worst.ratio == pytest.approx(1 / 3)


def test_largest_of_the_collectives_of_unknown_cost_is_first(tmp_path: Path) -> None:
    """Costs are unknown if a member of each group is missing."""
    run = write_summary(tmp_path / "run.cluster", Contents(dp=4))
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE COLLECTIVE SET complete_n = 0, bytes = 1 << group_id * 3 % 8")
        db.commit()
    with open_run(run) as opened:
        rows = Overview(opened).groups
    assert {row.transfer_ns for row in rows} == {None}
    assert [row.bytes for row in rows] == [128, 64, 32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], ""),
        ([3], "3"),
        ([4, 3], "3, 4"),
        ([1, 2, 3, 7], "1 to 3, 7"),
        (range(0, 60, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more"),
    ],
)
def test_rank_numbers_are_abbreviated_as_ranges(numbers: list[int], words: str) -> None:
    assert format_ranges(numbers) == words


def test_link_in_an_impossible_place_is_damage(run: Path) -> None:
    with closing(sqlite3.connect(run / "cluster.sqlite")) as db:
        db.execute("UPDATE LINK SET across_hosts = 10")
        db.commit()
    refused(uprof("cluster", "report", run), 7, "is damaged: table LINK: Invalid enum value 10")
