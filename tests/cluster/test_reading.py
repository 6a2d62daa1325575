"""Report of a multi-rank run as text, JSON, CSV and Markdown."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_report import refused, uprof
from tests.cluster.summaries import MS, Contents, write_summary
from tests.sql import execute
from unified_prof.cluster.overview import Overview, format_ranges
from unified_prof.cluster.stored_run import STEP_PARTS, FindingRecord, open_run
from unified_prof.report.cluster_document import finding_line


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_summary(tmp_path / "run.cluster", Contents(slow={3: 1.3}))


def document(*arguments: str | Path) -> dict[str, Any]:
    done = uprof("cluster", "report", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("times", "caused"), [(0, None), (3, 0)])
def test_caused_waits_are_unknown_without_complete_collectives(
    tmp_path: Path, times: int, caused: int | None
) -> None:
    run = write_summary(tmp_path / "run.cluster")
    execute(run / "cluster.sqlite", "UPDATE BLAME SET caused_wait_ns = 0, times = ?", times)
    assert document(run)["ranks"][0]["blame"]["caused_wait_ns"] == caused
    text = uprof("cluster", "report", run, "--by", "rank").stdout
    assert ("causes wait" in text) == (caused == 0)


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


@pytest.mark.slow
def test_report_of_a_thousand_ranks_fits_50_lines(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster", Contents(tp=8, dp=16, pp=8, slow={137: 1.1}))
    text = uprof("cluster", "report", run).stdout
    assert text.index("rank 137, host node17") < text.index("most expensive first")
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 200


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


def test_common_reason_of_several_ranks_is_shown_once(tmp_path: Path) -> None:
    run = write_summary(tmp_path / "run.cluster")
    why = "UPDATE RANK SET status = 'partly', why = 'no steps recorded' WHERE rank IN (0, 1, 3)"
    execute(run / "cluster.sqlite", why)
    with open_run(run) as opened:
        text = Overview(opened).coverage
    assert text.endswith("; ranks 0, 1, 3: no steps recorded")


def test_names_of_kernels_in_sentences_are_short() -> None:
    kernel = "void at::native::vectorized_layer_norm_kernel<c10::Half, float>(int, float)"
    text = f"slow kernel: rank 3: {kernel} takes 1.50 times as long; costs 2.00 ms per step"
    found = FindingRecord("slow_kernel", (3,), (), (), (0,), 2.0, {"kernel": kernel}, text)
    said = "slow kernel: rank 3: vectorized_layer_norm_kernel takes 1.50 times as long"
    assert finding_line(found) == ("2.00 ms/step", said)
