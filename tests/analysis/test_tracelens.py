"""TraceLens' own reference figures of its public traces, beside ours of the same traces.

Transcribed from the reference tables that lie beside the traces in AMD-AGI/TraceLens, in
`tests/traces`: `ops_summary`, `ops_summary_by_category`, `GEMM`, `CONV_fwd`, `CONV_bwd`,
`SDPA_fwd`, `Normalization`, `BinaryElementwise`, `UnaryElementwise`, `InferenceAttention_fwd`,
`RMSNorm_fwd` and `RoPE_fwd`. Times there are differences of timestamps of some 5e12 microseconds,
which floating point keeps to a thousandth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

# Device time in microseconds, in tracelens.json: of what an operation launched itself (`direct`;
# launches of the runtime under no operation are "(launched by no operation)"), the part of it that
# checkpointing recomputed (`recomputed`), and by category, if our classes hold the same operations.
REFERENCE = json.loads(Path(__file__).with_name("tracelens.json").read_text("utf-8"))
DIRECT: dict[str, dict[str, float]] = REFERENCE["direct"]
RECOMPUTED: dict[str, float] = REFERENCE["recomputed"]
CATEGORIES: dict[str, dict[str, float]] = REFERENCE["categories"]


class Work(NamedTuple):
    """Work of one call of an operation."""

    name: str
    shapes: str
    """Start of the text of its inputs."""
    calls: int
    gflop: float | None
    """With the bias of a product; None: counted by another convention."""
    mib: float | None


WORK = {name: [Work(*row) for row in rows] for name, rows in REFERENCE["work"].items()}


@contextmanager
def analysis_of(name: str, shared: Path, folder: Path) -> Iterator[MsprofAnalysis]:
    """Import a trace, with the trace of its graphs' capture where there is one."""
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


def told_ns(expected_us: float, pieces: int) -> object:
    """Return a time as their arithmetic leaves it: each piece is off by up to a nanosecond."""
    return pytest.approx(expected_us * 1000, abs=1 + pieces)


@pytest.mark.parametrize("name", DIRECT)
def test_figures_are_those_of_their_reference(name: str, shared: Path, tmp_path: Path) -> None:
    with analysis_of(name, shared, tmp_path) as analysis:
        rows = {row.name: row for row in analysis.breakdown("self").rows}
        agree_in_time(name, rows)
        classes = {row.name: row for row in analysis.breakdown("class").rows}
        for category, expected_us in CATEGORIES.get(name, {}).items():
            row = classes[category]
            assert row.total_ns == told_ns(expected_us, row.count), category
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
                assert one.cost.moved_bytes == pytest.approx(work.mib * 2**20 * one.count), work


def agree_in_time(name: str, rows: Mapping[str, Row]) -> None:
    """Compare the time of each operation; theirs are all that launched work, but for what is ours.

    For the training they drop work without a launch, and name collectives elsewhere.
    """
    for operation, expected_us in DIRECT[name].items():
        row = rows[operation]
        pieces = int(row.extra.get("launches") or row.count)
        assert row.total_ns == told_ns(expected_us, pieces), operation
    more = {one for one, row in rows.items() if row.total_ns} - set(DIRECT[name])
    assert more <= {"(launched by no operation)"}
    if name == "mi300_resnet_act_checkpoint":
        for operation, expected_us in RECOMPUTED.items():
            again = rows[operation].extra["recomputed_ns"]
            assert again == told_ns(expected_us, 400), operation
    else:
        assert more == set()


# Kernel -> runs, mean, median, standard deviation of a sample, smallest and largest, in us.
KERNELS = REFERENCE["kernels"]


def test_statistics_of_kernels_are_those_of_their_reference(shared: Path, tmp_path: Path) -> None:
    with analysis_of("h100_bert-small", shared, tmp_path) as analysis:
        found = analysis.statistics("kernel")
        counts = {row.name: row for row in analysis.breakdown("kernel").rows}
        for part, ((count, mean, median), (deviation, least, most)) in KERNELS.items():
            (key,) = (one for one in found if part in one[0])
            row, figures = counts[key[0]], found[key]
            assert row.count == count
            assert row.total_ns == told_ns(mean * count, count)
            assert figures["median_ns"] == told_ns(median, 1)
            assert figures["stddev_ns"] == told_ns(deviation, 1)
            assert (figures["min_ns"], figures["max_ns"]) == (told_ns(least, 1), told_ns(most, 1))


# Difference of two BERTs: kernels under the lowest common operation, in us on each side.
DIFFERENCE = REFERENCE["difference"]


def test_the_difference_of_two_vendors_is_theirs(shared: Path, tmp_path: Path) -> None:
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
            assert row[side]["total_ns"] == told_ns(expected_us, row[side]["runs"])
