"""Compares what uprof says of simulated clusters with what was planted in them.

    python scripts/validate_cluster.py --tool PATH/make_cluster.py            8 and 64 ranks
    python scripts/validate_cluster.py --tool PATH/make_cluster.py --ranks 8,64,256,1024
    python scripts/validate_cluster.py --tool PATH/make_cluster.py --shapes   other shapes and seeds

The tool writes the recordings of every rank and a truth.json. The true cost of a fault is what a
step of the run with it takes longer than one of the same run without. Prints a table in Markdown;
exit code 1 if a planted fault is not the first finding, a healthy run has one, or a figure is
further off than 10 % (waiting: 2 %, clocks: 2 us).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.cluster import matching, rank_map
from unified_prof.cluster import waits as waiting
from unified_prof.cluster.clocks import align_clocks
from unified_prof.cluster.rank_partial import Partial
from unified_prof.cluster.summary import RunSummary, summarize_run
from unified_prof.errors import UprofError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import find_source

SIZES = {8: (2, 2, 2), 64: (4, 4, 4), 256: (4, 8, 8), 1024: (8, 16, 8)}
_OFF = 0.10
_WAIT_OFF = 0.02
_CLOCK_OFF_US = 2.0
# Faults that cost less, in ms per step, need no finding.
_MIN_COST_MS = 0.005
_LEAST_WAIT = 0.5
"""Waiting of less than so much of the mean is compared with that much."""


@dataclass(frozen=True)
class Case:
    """One run and what is planted in it."""

    shape: tuple[int, int, int]
    fault: str
    options: tuple[str, ...] = ()
    kineto: bool = False
    more: tuple[str, ...] = ()
    """Options of the run with the fault and of the one without."""

    @property
    def base(self) -> list[str]:
        """What the tool is given for the run with the fault and for the one without."""
        tp, dp, pp = self.shape
        base = ["--tp", str(tp), "--dp", str(dp), "--pp", str(pp), *self.more]
        return [*base, "--kineto"] if self.kineto else base


@dataclass
class Verdict:
    """What came of one."""

    case: Case
    summary: RunSummary
    truth: dict[str, Any]
    true_ms: float | None
    wait_off: float
    clock_off_us: float
    seconds: float
    faults: list[str] = field(default_factory=list)


def cases(ranks: Sequence[int], *, shapes: bool, kinds: Sequence[bool]) -> Iterator[Case]:
    if shapes:
        yield from _shapes(kinds)
        return
    for size in ranks:
        shape = SIZES[size]
        many = ("--mb", "2") if size >= 1024 else ()
        small = ("--per-host", "4") if size == 8 else ()
        for kineto in kinds:
            for fault, options in _faults(shape, 4 if size == 8 else 8):
                yield Case(shape, fault, options, kineto, (*many, *small))


def _faults(shape: tuple[int, int, int], per_host: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    tp, dp, pp = shape
    world = tp * dp * pp
    slow = world * 5 // 8 - 1 if world > 2 else 1
    yield "none", ()
    for factor in ("1.05", "1.1", "1.3"):
        yield f"rank {slow} x {factor}", ("--slow-rank", str(slow), "--slow", factor)
    if pp > 1 and tp * dp > 1:
        a, b = tp * dp // 2, tp * dp // 2 + tp * dp
        yield f"link {a}-{b} x 3", ("--slow-link", f"{a},{b}")
    if world > per_host:
        host = (world // per_host) // 2
        yield f"host {host}", ("--slow-host", str(host))
    yield f"input {world // 3}", ("--late-input-rank", str(world // 3))


def _shapes(kinds: Sequence[bool]) -> Iterator[Case]:
    variety = [
        ((4, 4, 4), ("--seed", "1")),
        ((4, 4, 4), ("--seed", "2", "--noise", "0.05")),
        ((4, 4, 4), ("--grad-norm", "--seed", "5")),
        ((4, 4, 4), ("--steps", "1", "--seed", "6")),
        ((4, 4, 4), ("--steps", "5", "--layers", "4", "--mb", "6", "--seed", "7")),
        ((1, 8, 1), ("--seed", "8")),
        ((1, 8, 1), ("--seed", "8", "--layers", "6", "--per-host", "4")),
        ((8, 1, 1), ("--seed", "9")),
        ((1, 2, 1), ("--seed", "10", "--steps", "4", "--layers", "4")),
        ((2, 2, 4), ("--seed", "11", "--per-host", "4", "--setup-ms", "20")),
        ((2, 8, 2), ("--seed", "12", "--layers", "8", "--grad-norm")),
        ((4, 2, 8), ("--seed", "13", "--mb", "16", "--skew-ms", "50")),
    ]
    for kineto in kinds:
        for shape, more in variety:
            per_host = int(more[more.index("--per-host") + 1]) if "--per-host" in more else 8
            for fault, options in _faults(shape, per_host):
                yield Case(shape, fault, options, kineto, more)


def run(tool: Path, case: Case, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, str(tool), str(folder), *case.base, *options]
    subprocess.run(command, check=True, capture_output=True)
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return truth


def partials(folder: Path, truth: dict[str, Any]) -> list[Partial]:
    found: list[Partial] = []
    for about in truth["ranks"].values():
        if about["file"] is None:
            continue
        path = folder / about["file"]
        with suppress(UprofError):
            if path.suffix != ".db":
                database = path.with_suffix(".db")
                convert(path, database, source=find_source(path))
                path = database
            found += rank_map.read_partials(path)
    return found


def step_ms(truth: dict[str, Any]) -> float:
    steps = truth["steps"]
    return float(steps[-1][1] - steps[0][0]) / len(steps) / 1e6


def judged(case: Case, found: list[Partial], truth: dict[str, Any], base_ms: float) -> Verdict:
    begin = time.process_time()
    summary = summarize_run(found)
    seconds = time.process_time() - begin
    matched = matching.match_collectives(found)
    waited = waiting.compute_waits(matched)
    known = waited.wait >= 0
    sums = np.zeros(len(matched.ranks))
    np.add.at(sums, matched.rows.rank[known], waited.wait[known])
    want = np.array([truth["ranks"][str(rank)]["wait_ns"] for rank in matched.ranks])
    wait_off = float((np.abs(sums - want) / np.maximum(want, _LEAST_WAIT * want.mean())).max())
    true_clock = [-truth["clock_ns"][truth["ranks"][str(rank)]["host"]] for rank in matched.ranks]
    clock = align_clocks(matched)
    off = 0.0
    for island in set(clock.island.tolist()):
        mine = clock.island == island
        away = clock.offset[mine] - np.array(true_clock)[mine]
        off = max(off, float(np.abs(away - np.median(away)).max()) / 1e3)
    verdict = Verdict(
        case,
        summary,
        truth,
        step_ms(truth) - base_ms if case.options else None,
        wait_off,
        off,
        seconds,
    )
    verdict.faults = list(_wrong(verdict))
    return verdict


def _wrong(verdict: Verdict) -> Iterator[str]:
    case, truth = verdict.case, verdict.truth["faults"]
    told = verdict.summary.findings
    if verdict.wait_off > _WAIT_OFF:
        yield f"waiting {verdict.wait_off:.1%} off"
    if verdict.clock_off_us > _CLOCK_OFF_US:
        yield f"clocks {verdict.clock_off_us:.1f} us off"
    if not case.options:
        if told:
            yield f"healthy, and says {told[0].text}"
        return
    if not told:
        if abs(verdict.true_ms or 0.0) > _MIN_COST_MS:
            yield "says nothing"
        return
    first = told[0]
    factor = first.figures.get("factor")
    if truth["slow_rank"] is not None:
        if (first.kind, first.ranks) != ("slow_rank", (truth["slow_rank"],)):
            yield f"says {first.text}"
        elif abs(factor - truth["slow"]) > max(_OFF * (truth["slow"] - 1), 0.01):
            yield f"factor {factor}"
    elif truth["slow_link"]:
        ends = {int(rank) for rank in truth["slow_link"].split(",")}
        if first.kind != "slow_link" or not ends <= set(first.ranks):
            yield f"says {first.text}"
        elif abs(factor / truth["link"] - 1) > _OFF and first.figures["link_known"]:
            yield f"factor {factor}"
    elif truth["slow_host"] is not None:
        if (first.kind, first.hosts) != ("slow_host", (f"node{truth['slow_host']:04d}",)):
            yield f"says {first.text}"
    elif (first.kind, first.ranks) != ("late_input", (truth["late_input_rank"],)):
        yield f"says {first.text}"
    elif abs(first.figures["late_ms"] / truth["late_ms"] - 1) > _OFF:
        yield f"late {first.figures['late_ms']} ms"
    assert verdict.true_ms is not None
    if abs(first.cost_ms_per_step - verdict.true_ms) > max(
        _OFF * abs(verdict.true_ms), _MIN_COST_MS
    ):
        yield f"cost {first.cost_ms_per_step:.3f} for {verdict.true_ms:.3f} ms"
    if len(told) > 1:
        yield f"and says {told[1].text}"


def row(verdict: Verdict) -> str:
    case, told = verdict.case, verdict.summary.findings
    first = told[0] if told else None
    tp, dp, pp = case.shape
    factor = first.figures.get("factor", first.figures.get("late_ms")) if first else None
    cost = "-" if first is None else f"{first.cost_ms_per_step:.3f}"
    truth = "-" if verdict.true_ms is None else f"{verdict.true_ms:.3f}"
    who = "-"
    if first is not None:
        who = first.kind
        if first.kind == "slow_link":
            who += f" {'-'.join(map(str, first.ranks))}" if len(first.ranks) == 2 else " in group"
        elif first.kind == "slow_host":
            who += f" {', '.join(first.hosts)}"
        else:
            who += f" {first.ranks[0]}"
    cells = (
        f"{math.prod(case.shape)} ({tp}x{dp}x{pp})",
        "CUDA" if case.kineto else "NPU",
        " ".join(case.more) or "-",
        case.fault,
        who,
        "-" if factor is None else f"{factor:.3f}",
        f"{cost} / {truth}",
        f"{verdict.wait_off:.2%}",
        f"{verdict.clock_off_us:.2f}",
        f"{verdict.seconds:.2f}",
        "; ".join(verdict.faults) or "yes",
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tool", type=Path, required=True, help="make_cluster.py")
    parser.add_argument("--ranks", default="8,64", help="of the runs, from 8, 64, 256, 1024")
    parser.add_argument("--shapes", action="store_true", help="other shapes and seeds instead")
    parser.add_argument("--kinds", default="npu,cuda")
    given = parser.parse_args()
    kinds = [kind == "cuda" for kind in given.kinds.split(",")]
    sizes = [int(size) for size in given.ranks.split(",")]
    print(
        "| ranks | device | options | planted | first finding | factor or ms | cost, ms a step: "
        "said / true | waiting off | clocks off, us | reduce, CPU s | right |\n" + "|---" * 11 + "|"
    )
    base: dict[tuple[str, ...], float] = {}
    wrong = 0
    for case in cases(sizes, shapes=given.shapes, kinds=kinds):
        with tempfile.TemporaryDirectory() as folder:
            key = tuple(case.base)
            truth = run(given.tool, case, Path(folder), case.options)
            if key not in base:
                base[key] = step_ms(truth)  # the first of each is healthy
            verdict = judged(case, partials(Path(folder), truth), truth, base[key])
        print(row(verdict), flush=True)
        wrong += bool(verdict.faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
