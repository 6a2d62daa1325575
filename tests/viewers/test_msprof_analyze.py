"""Recipes of msprof-analyze on reports of uprof.

pip install msprof-analyze==26.2.0 'pandas<3'        in a separate environment
MSPROF_ANALYZE=.../bin/msprof-analyze python -m pytest -m clients tests/viewers
"""

import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.pipeline.test_sources import MAKERS
from tests.processes import run
from tests.prof_generator import Recipe, generate
from tests.viewers.contract import violations
from tests.viewers.test_contract import convert_reports, write_npu_training, write_training
from unified_prof.pipeline.discovery import ASCEND_PT, PLAIN

pytestmark = pytest.mark.clients

TOTALS = ("ClusterCommunicationTime", "ClusterCommunicationBandwidth", "ClusterCommunicationMatrix")
"""Tables in which every group has rows `Total Op Info`, which viewers show first."""

Tables = dict[str, tuple[str, ...]]

COMPUTING: Tables = {"compute_op_sum": ("ComputeOpAllRankStats", "ComputeOpPerRankStatsByOpName")}
CALLS: Tables = {"cann_api_sum": ("CannApiSum", "CannApiSumRank")}
COLLECTIVES: Tables = {
    "hccl_sum": ("HcclAllRankStats", "HcclPerRankStats", "HcclGroupNameMap"),
    "communication_time_sum": TOTALS[:2],
    "all": ("ClusterStepTraceTime", "HostInfo", "RankDeviceMap", *TOTALS[:2]),
}
# The members of a group are known from parallel_group_info, or from copies on the chip itself.
LINKS: Tables = {
    "communication_matrix_sum": TOTALS[2:],
    "all": ("ClusterStepTraceTime", "HostInfo", "RankDeviceMap", *TOTALS),
}
STEPS: Tables = {
    "cluster_time_summary": ("ClusterTimeSummary",),
    "free_analysis": ("FreeAnalysis",),
    "computational_op_masking": ("ComputationalOperatorMaskingLinearity",),
}


def both_ranks(make: Callable[[Path, int], Path], folder: Path) -> list[Path]:
    return [make(folder, rank) for rank in (0, 1)]


def generated(folder: Path) -> list[Path]:
    return [generate(folder, Recipe(operators=4, collectives=2)).path]


# Name: writer of the recordings, layout of the reports, number of ranks, tables by recipe.
Case = tuple[Callable[[Path], list[Path]], str, int, Tables]
CASES: dict[str, Case] = {
    "kineto": (
        lambda folder: both_ranks(write_training, folder),
        ASCEND_PT,
        2,
        COMPUTING | CALLS | COLLECTIVES | LINKS | STEPS,
    ),
    "nsys": (lambda folder: [MAKERS["nsys"](folder)], ASCEND_PT, 1, COMPUTING | CALLS),
    "rocm": (lambda folder: [MAKERS["rocm"](folder)], ASCEND_PT, 1, COMPUTING | CALLS),
    "ascend_pt": (
        lambda folder: both_ranks(write_npu_training, folder),
        PLAIN,
        2,
        COMPUTING | CALLS | COLLECTIVES,
    ),
    "generated": (generated, PLAIN, 1, COMPUTING | CALLS | COLLECTIVES),
}


@pytest.fixture(scope="module")
def program() -> str:
    found = os.environ.get("MSPROF_ANALYZE") or shutil.which("msprof-analyze")
    if found is None:
        pytest.skip("msprof-analyze is not installed (MSPROF_ANALYZE names it)")
    return found


@pytest.mark.parametrize(
    ("name", "recipe"), [(name, recipe) for name, case in CASES.items() for recipe in case[3]]
)
def test_recipe_has_rows(name: str, recipe: str, program: str, tmp_path: Path) -> None:
    make, layout, ranks, tables = CASES[name]
    converted = convert_reports(make(tmp_path / "in"), tmp_path / "made", layout)
    assert_rows(program, recipe, converted, ranks, tables[recipe], tmp_path)


@pytest.mark.parametrize(
    ("golden", "recipe"),
    [
        (golden, recipe)
        for golden in ("ascend_pt/04_cluster/raw", "prof/16_everything/PROF_*")
        for recipe in (COMPUTING | CALLS | COLLECTIVES)
    ],
)
def test_recipe_on_reference_recordings_has_rows(
    golden: str, recipe: str, program: str, shared: Path, tmp_path: Path
) -> None:
    tables = COMPUTING | CALLS | COLLECTIVES
    (packed,) = (shared / "goldens").glob(f"{golden}.tar.xz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "in", filter="data")
    converted = convert_reports([tmp_path / "in"], tmp_path / "made", PLAIN)
    assert_rows(program, recipe, converted, len(converted), tables[recipe], tmp_path)


def assert_rows(
    program: str,
    recipe: str,
    converted: list[Path],
    ranks: int,
    tables: tuple[str, ...],
    work: Path,
) -> None:
    """Run a recipe on the reports in `work`/converted, which it writes into."""
    for report in converted:
        assert violations(report) == []
    output = work / "out"
    output.mkdir(mode=0o750)
    # The recipe refuses directories that a group may write to.
    subprocess.run(["chmod", "-R", "go-w", str(work / "made")], check=True)
    options = ("-m", recipe, "-d", work / "made", "-o", output)
    done = run(program, "cluster", *options, env={"HOME": str(work)})
    log = done.stdout + done.stderr
    assert f"Finish allocate profiling data: {ranks} ranks" in log, log
    assert not re.search(r"\[ERROR\]|Traceback", log), log
    result = output / "cluster_analysis_output" / "cluster_analysis.db"
    with closing(sqlite3.connect(result)) as db:
        for table in tables:
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table
            if table in TOTALS:
                total = f"SELECT count(*) FROM {table} WHERE hccl_op_name = 'Total Op Info'"
                assert db.execute(total).fetchone()[0], table
