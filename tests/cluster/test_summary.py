"""The summary file is valid, and its rows are those of the simulated run."""

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cluster import summaries
from tests.cluster.simulated_run import Plan, partials_of, simulate
from tests.sql import execute
from unified_prof.cli.app import main
from unified_prof.cluster import summary_rows
from unified_prof.cluster.rank_partial import Partial, PartialSource, UnreadableRecording
from unified_prof.cluster.summary import RunSummary, summarize_run
from unified_prof.errors import StoreError
from unified_prof.migrate.check import check
from unified_prof.schema.catalogue import CLUSTER, REVISIONS
from unified_prof.sqlite import skyline_writer

PLAN = Plan(slow={5: 1.3}, setup_ns=1_000_000)


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    found = partials_of(simulate(PLAN))
    lost = UnreadableRecording("node/rank7.db", "it is cut off", 7)
    where = {one.facts.rank: PartialSource(f"{one.facts.rank}.db", "p") for one in found}
    return summarize_run([one for one in found if one.facts.rank not in (7, 11)], where, [lost])


@pytest.fixture(scope="module")
def file(summary: RunSummary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "cluster.sqlite"
    skyline_writer.write_cluster_summary(path, summary.tables, {"tool": "uprof"})
    return path


def test_summary_file_passes_the_check(file: Path) -> None:
    found = check(file)
    revision = found.detection.revision
    assert (found.detection.family, revision) == (CLUSTER, REVISIONS[CLUSTER][-1])
    assert found.findings == ()


def test_every_rank_has_a_row_or_reason_if_it_was_not_read(file: Path, summary: RunSummary) -> None:
    found = execute(file, "SELECT rank, status, why, file FROM RANK ORDER BY rank")
    assert [row[0] for row in found] == list(range(16))
    assert found[7][1:] == ("failed", "it is cut off", "node/rank7.db")
    assert found[11][1:] == ("absent", "recording missing", None)
    assert {row[1] for row in found if row[0] not in (7, 11)} == {"read"}
    assert (summary.world_size, summary.ranks_read, summary.absent) == (16, 14, (11,))


@pytest.mark.parametrize(("world", "expected"), [(None, 10), (16, 16)])
def test_damaged_ranks_count_as_ranks_of_the_run(world: int | None, expected: int) -> None:
    (one,) = partials_of(simulate(Plan(tp=1, dp=1, pp=1)))
    one = replace(one, facts=replace(one.facts, world_size=world))
    lost = UnreadableRecording("rank9.db", "it is cut off", 9)
    found = summarize_run([one], unread=[lost, UnreadableRecording("x.db", "it is empty", None)])
    assert (found.ranks_read, found.world_size) == (1, expected)


def test_ranks_have_their_place_in_the_layout(file: Path) -> None:
    for rank, tp, dp, pp in execute(
        file, "SELECT rank, tp, dp, pp FROM RANK WHERE status = 'read'"
    ):
        assert isinstance(rank, int)
        assert (tp, dp, pp) == (rank % 2, rank // 2 % 4, rank // 8)


def test_parts_of_a_step_add_up(file: Path) -> None:
    for start, end, compute, exposed_ns, idle, wait, exposed_wait, bubble in execute(
        file,
        "SELECT start_ns, end_ns, compute_ns, exposed_communication_ns, idle_ns, wait_ns,"
        " exposed_wait_ns, bubble_ns FROM STEP_RANK",
    ):
        assert compute + exposed_ns + idle == end - start
        assert 0 <= bubble <= exposed_wait <= wait


def test_late_rank_with_slow_kernels_is_blamed(file: Path) -> None:
    late = execute(file, "SELECT rank FROM BLAME ORDER BY caused_wait_ns DESC LIMIT 2")
    assert {rank for (rank,) in late} == {4, 5}  # 4 waits for 5 and is late in turn
    ((rank, ratio, cause, saved),) = execute(
        file, "SELECT rank, work_ratio, cause, saved_ns_per_step FROM BLAME WHERE cause IS NOT NULL"
    )
    assert (rank, cause) == (5, "slow_rank")
    assert ratio == pytest.approx(1.3, rel=0.02)
    (kind, text, cost), (other, *_) = execute(
        file, "SELECT kind, text, cost_ms_per_step FROM FINDING ORDER BY place"
    )
    assert (kind, other) == (cause, "collective_setup")
    assert re.match(
        r"slow kernels: rank 5 on host1: its kernels take 1\.(29|30) times as long", str(text)
    )
    assert saved == pytest.approx(float(str(cost)) * 1e6)


def test_links_have_their_bandwidth(file: Path) -> None:
    for across, p50, like in execute(
        file, "SELECT across_hosts, gb_per_s_p50, like_gb_per_s FROM LINK WHERE kind = 'p2p'"
    ):
        assert across == 1
        assert p50 == pytest.approx(19.5, rel=0.03)
        assert like == pytest.approx(p50, rel=0.03)


def test_collectives_are_summed_by_group_kind_step_and_size(file: Path) -> None:
    found = execute(
        file,
        'SELECT g.kind, c.kind, c.bytes, sum(n), sum(complete_n) FROM COLLECTIVE c JOIN "GROUP" g'
        " ON g.id = c.group_id GROUP BY 1, 2, 3 ORDER BY 1, 3",
    )
    assert found == [
        # 4 and 2 rows per step and group; groups of ranks 7 and 11 are incomplete.
        ("dp", "all_reduce", 64 << 20, 8, 4),
        ("tp", "all_reduce", 8 << 20, 64, 48),
        ("world", "all_reduce", 4096, 2, 0),
    ]


def test_summary_has_the_facts_of_the_run(file: Path) -> None:
    facts = {str(name): json.loads(str(v)) for name, v in execute(file, "SELECT * FROM META_DATA")}
    assert facts["world_size"] == 16
    assert facts["steps"] == [0, 1]
    assert facts["clock_islands"] == 1


def test_collectives_without_a_group_are_left_out() -> None:
    def ungrouped(one: Partial) -> Partial:
        communication = {**one.communication, "group": np.full_like(one.communication["group"], -1)}
        return replace(one, groups=(), communication=communication)

    result = summarize_run([*map(ungrouped, partials_of(simulate(Plan())))])
    assert result.tables["COLLECTIVE"] == []


def test_rank_of_a_run_with_another_world_size_is_left_out() -> None:
    found = partials_of(simulate(Plan()))
    odd = replace(found[2], facts=replace(found[2].facts, world_size=64))
    result = summarize_run([*found[:2], odd, *found[3:]])
    assert [(one.rank, one.why) for one in result.unread] == [
        (2, "from a run of 64 ranks, the others from one of 16")
    ]


def test_run_without_a_readable_rank_is_refused() -> None:
    with pytest.raises(StoreError, match=r"no rank's recording could be read; a\.db: it is empty"):
        summarize_run([], unread=[UnreadableRecording("a.db", "it is empty")])


def test_single_rank_is_summarized_without_findings() -> None:
    (one, *_) = partials_of(simulate(Plan(slow={0: 2.0})))
    result = summarize_run([one])
    assert result.findings == []
    assert result.tables["RANK"][0][7] == "read"


def test_ranks_with_different_steps_are_compared_in_their_common_steps() -> None:
    found = partials_of(simulate(Plan(steps=3)))
    shorter = partials_of(simulate(Plan(steps=2)))[4]
    result = summarize_run([*found[:4], shorter, *found[5:]])
    assert result.steps == (0, 1)
    assert result.findings == []


def test_parallelism_of_unnamed_groups_is_inferred_from_the_distance_of_their_ranks() -> None:
    def unnamed(one: Partial) -> Partial:
        groups = (
            replace(group, name=f"{group.ranks}", kind="other", title="")
            if group.kind in ("tp", "dp")
            else group
            for group in one.groups
        )
        return replace(one, groups=tuple(groups))

    found = partials_of(simulate(Plan()))
    places = [summarize_run(ranks).tables["RANK"] for ranks in (found, [*map(unnamed, found)])]
    assert places[0] == places[1]


def test_operations_beyond_the_limits_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_rows, "_MAX_OPERATIONS", 2)
    monkeypatch.setattr(summary_rows, "_MAX_WITH_MODULE", 2)
    cells = {  # calls, total, shortest, longest
        ("add", ""): [1, 50, 50, 50],
        ("mm", "a"): [2, 40, 10, 30],
        ("mm", "b"): [3, 30, 5, 20],
        ("gelu", "b"): [1, 60, 60, 60],
        ("mm", "c"): [4, 20, 4, 9],
        ("mm", "d"): [1, 10, 10, 10],
        ("norm", "a"): [1, 55, 55, 55],
    }
    # By kind: mm 100, gelu 60, norm 55, add 50; by module among mm and gelu: gelu in b, mm in a.
    assert summary_rows._longest(dict(cells)) == {
        ("(others)", ""): [2, 105, 50, 55],
        ("mm", "a"): [2, 40, 10, 30],
        ("mm", ""): [8, 60, 4, 20],
        ("gelu", "b"): [1, 60, 60, 60],
    }
    few = {key: cells[key] for key in [*cells][:2]}
    assert summary_rows._longest(few) == few


@pytest.mark.parametrize(
    ("is_absent", "length_ms", "says"),
    [
        (False, 100, "stands out ranks"),
        (
            True,
            100,
            "stands out among the recorded ranks; exposed communication takes 30.0 % of the step: "
            "10.0 % collective wait, the rest transfers or waits for the missing rank 1",
        ),
        (True, 300, "stands out ranks"),
    ],
)
def test_run_without_findings_names_ranks_that_others_may_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_absent: bool, length_ms: int, says: str
) -> None:
    folder = summaries.write_summary(tmp_path / "run.cluster")
    with closing(sqlite3.connect(folder / "cluster.sqlite")) as db, db:
        db.execute(f"UPDATE STEP_RANK SET end_ns = start_ns + {length_ms} * 1000000")
        if is_absent:
            db.execute("UPDATE RANK SET status = 'absent' WHERE rank = 1")
    with pytest.raises(SystemExit):
        main(["cluster", "report", str(folder)])
    text = " ".join(capsys.readouterr().out.split())
    assert f"none: no rank, host or link {says}" in text
