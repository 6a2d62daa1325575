"""Figures of public traces equal TraceLens' published reference figures.

Transcribed from the reference tables in `tests/traces` of AMD-AGI/TraceLens:
`ops_summary`, `ops_summary_by_category`, `GEMM`, `CONV_fwd`, `CONV_bwd`,
`SDPA_fwd`, `Normalization`, `BinaryElementwise`, `UnaryElementwise`, `InferenceAttention_fwd`,
`RMSNorm_fwd` and `RoPE_fwd`. Their times are differences of timestamps of about 5e12 us, for
which float64 has a resolution of a thousandth.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.test_report import uprof
from unified_prof.explain.api import open_reports
from unified_prof.explain.msprof import MsprofAnalysis
from unified_prof.explain.roofline import breakdown
from unified_prof.recording.model import Row

pytestmark = pytest.mark.slow

CAPTURES = {
    "vllm_decode_graph_replay": "vllm_decode_graph_capture",
    "sglang_decode_graph_replay": "sglang_decode_graph_capture",
}

# Device time in us, from tracelens.json: tasks launched by the operation itself (`direct`; without
# an operation "(launched by no operation)"), the recomputed part (`recomputed`), and time by
# category where our classes contain the same operations.
REFERENCE = json.loads(Path(__file__).with_name("tracelens.json").read_text("utf-8"))
DIRECT: dict[str, dict[str, float]] = REFERENCE["direct"]
RECOMPUTED: dict[str, float] = REFERENCE["recomputed"]
CATEGORIES: dict[str, dict[str, float]] = REFERENCE["categories"]


BF16 = 2  # bytes


class Work(NamedTuple):
    """Reference figures for one call of an operation."""

    name: str
    shapes: str
    """Start of the text of its inputs."""
    calls: int
    gflop: float | None
    """Includes the bias; None: counted by another convention."""
    mib: float | None


WORK = {name: [Work(*row) for row in rows] for name, rows in REFERENCE["work"].items()}


@contextmanager
def analysis_of(name: str, shared: Path, folder: Path) -> Iterator[MsprofAnalysis]:
    """Import a trace and, if it exists, the trace that captured its graphs."""
    found: dict[str, Path] = {}
    for one in (name, CAPTURES.get(name)):
        if one is not None:
            found[one] = folder / f"{one}.db"
            trace = shared / "samples" / "kineto" / f"{one}.json.gz"
            run = uprof("import", trace, "-o", found[one])
            assert run.returncode == 0, run.stderr
    capture = found[CAPTURES[name]] if name in CAPTURES else None
    with open_reports(found[name], capture=capture) as opened:
        (analysis,) = opened.analyses
        assert isinstance(analysis, MsprofAnalysis)
        yield analysis


def within_rounding(expected_us: float, pieces: int) -> object:
    """Return the time within TraceLens' rounding, up to 1 ns per task."""
    return pytest.approx(expected_us * 1000, abs=1 + pieces)


@pytest.mark.parametrize("name", DIRECT)
def test_times_flops_and_bytes_equal_the_reference(name: str, shared: Path, tmp_path: Path) -> None:
    with analysis_of(name, shared, tmp_path) as analysis:
        rows = {row.name: row for row in analysis.breakdown("self").rows}
        check_times(name, rows)
        classes = {row.name: row for row in analysis.breakdown("class").rows}
        for category, expected_us in CATEGORIES.get(name, {}).items():
            row = classes[category]
            assert row.total_ns == within_rounding(expected_us, row.count), category
        found = breakdown.roofline_of(analysis.recording).rows
        for work in WORK[name]:
            placed = [
                one
                for one in found
                if one.name == work.name and f"{one.shapes} ".startswith(f"{work.shapes} ".lstrip())
            ]
            assert len(placed) == 1, (work, [one.shapes for one in placed])
            (one,) = placed
            assert one.count == work.calls, work
            assert one.cost is not None
            if work.gflop is not None:
                bias = one.cost.vector_flops if work.name == "aten::addmm" else 0
                assert one.cost.flops + bias == pytest.approx(work.gflop * 1e9 * one.count), work
            if work.mib is not None:
                # TraceLens counts each tensor once. After the statistics, the input is read again.
                expected = work.mib * 2**20
                if work.name == "aten::native_batch_norm":
                    expected += BF16 * prod(json.loads(work.shapes))
                assert one.cost.moved_bytes == pytest.approx(expected * one.count), work


def check_times(name: str, rows: Mapping[str, Row]) -> None:
    """Compare the time of each operation that launched tasks.

    TraceLens drops tasks without a launch in training, and names collectives differently.
    """
    for operation, expected_us in DIRECT[name].items():
        row = rows[operation]
        pieces = int(row.extra.get("launches") or row.count)
        assert row.total_ns == within_rounding(expected_us, pieces), operation
    extra = {one for one, row in rows.items() if row.total_ns} - set(DIRECT[name])
    assert extra <= {"(launched by no operation)"}
    if name == "mi300_resnet_act_checkpoint":
        for operation, expected_us in RECOMPUTED.items():
            recomputed = rows[operation].extra["recomputed_ns"]
            assert recomputed == within_rounding(expected_us, 400), operation
    else:
        assert extra == set()


# Kernel -> count, mean, median, sample standard deviation, minimum and maximum, in us.
KERNELS = REFERENCE["kernels"]


def test_kernel_statistics_equal_the_reference(shared: Path, tmp_path: Path) -> None:
    with analysis_of("h100_bert-small", shared, tmp_path) as analysis:
        found = analysis.statistics("kernel")
        counts = {row.name: row for row in analysis.breakdown("kernel").rows}
        for part, ((count, mean, median), (deviation, least, most)) in KERNELS.items():
            (key,) = (one for one in found if part in one[0])
            row, figures = counts[key[0]], found[key]
            assert row.count == count
            assert row.total_ns == within_rounding(mean * count, count)
            assert figures["median_ns"] == within_rounding(median, 1)
            assert figures["stddev_ns"] == within_rounding(deviation, 1)
            assert (figures["min_ns"], figures["max_ns"]) == (
                within_rounding(least, 1),
                within_rounding(most, 1),
            )


# MI300 and H100 BERT: kernel time by lowest common operation, in us on each side.
DIFFERENCE = REFERENCE["difference"]


def test_difference_between_vendors_equals_the_reference(shared: Path, tmp_path: Path) -> None:
    sides = []
    for name in ("mi300_bert-small", "h100_bert-small"):
        sides.append(tmp_path / f"{name}.db")
        trace = shared / "samples" / "kineto" / f"{name}.json.gz"
        assert uprof("import", trace, "-o", sides[-1]).returncode == 0
    run = uprof("diff", *sides, "--format", "json")
    found = json.loads(run.stdout)["breakdowns"]["operation"]
    assert {row["name"] for row in found} == set(DIFFERENCE)
    for row in found:
        for side, expected_us in zip(("base", "new"), DIFFERENCE[row["name"]], strict=True):
            assert row[side]["total_ns"] == within_rounding(expected_us, row[side]["runs"])
