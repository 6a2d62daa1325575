"""Compare uprof's findings on simulated clusters with the planted faults.

    python scripts/validate_cluster.py --tool PATH/make_cluster.py            8 and 64 ranks
    python scripts/validate_cluster.py --tool PATH/make_cluster.py --ranks 8,64,256,1024
    python scripts/validate_cluster.py --tool PATH/make_cluster.py --shapes   other shapes and seeds

The tool writes the recordings of all ranks and truth.json. The true cost of a fault is the
difference in step time to the same run without it. Prints a Markdown table. The exit code is 1 if a
planted fault is not the first finding, a healthy run has a finding, or a figure is off by more than
10 % (waiting: 2 %, clocks: 2 us).
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
# Faults below this cost in ms per step need no finding.
_MIN_COST_MS = 0.005
# Relative errors of waiting times use at least this share of the mean as the reference.
_LEAST_WAIT = 0.5


@dataclass(frozen=True)
class Scenario:
    """A simulated run and its planted fault."""

    shape: tuple[int, int, int]
    fault: str
    options: tuple[str, ...] = ()
    kineto: bool = False
    # Options of both runs: with and without the fault.
    more: tuple[str, ...] = ()

    @property
    def base(self) -> list[str]:
        """Arguments of the tool for both runs: with and without the fault."""
        tp, dp, pp = self.shape
        base = ["--tp", str(tp), "--dp", str(dp), "--pp", str(pp), *self.more]
        return [*base, "--kineto"] if self.kineto else base


@dataclass
class Verdict:
    """Result of one run."""

    scenario: Scenario
    summary: RunSummary
    truth: dict[str, Any]
    true_ms: float | None
    wait_off: float
    clock_off_us: float
    seconds: float
    faults: list[str] = field(default_factory=list)


def scenarios(ranks: Sequence[int], *, shapes: bool, kinds: Sequence[bool]) -> Iterator[Scenario]:
    if shapes:
        yield from _shapes(kinds)
        return
    for size in ranks:
        shape = SIZES[size]
        many = ("--mb", "2") if size >= 1024 else ()
        small = ("--per-host", "4") if size == 8 else ()
        for kineto in kinds:
            for fault, options in _faults(shape, 4 if size == 8 else 8):
                yield Scenario(shape, fault, options, kineto, (*many, *small))


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


def _shapes(kinds: Sequence[bool]) -> Iterator[Scenario]:
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
                yield Scenario(shape, fault, options, kineto, more)


def run(tool: Path, scenario: Scenario, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    command = [sys.executable, str(tool), str(folder), *scenario.base, *options]
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


def step_ms(found: list[Partial], truth: dict[str, Any]) -> float:
    """Return the mean time of a step on the rank that ends last, as the next step waits for it."""
    late_ns = truth["clock_ns"]  # By host: how far its clock is ahead.
    ends_ns = [
        int(one.steps["end"].max()) - late_ns[truth["ranks"][str(one.facts.rank)]["host"]]
        for one in found
    ]
    return float(max(ends_ns) - truth["steps"][0][0]) / len(truth["steps"]) / 1e6


def judged(
    scenario: Scenario, found: list[Partial], truth: dict[str, Any], base_ms: float
) -> Verdict:
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
        scenario,
        summary,
        truth,
        step_ms(found, truth) - base_ms if scenario.options else None,
        wait_off,
        off,
        seconds,
    )
    verdict.faults = list(_wrong(verdict))
    return verdict


def _wrong(verdict: Verdict) -> Iterator[str]:
    scenario, truth = verdict.scenario, verdict.truth["faults"]
    findings = verdict.summary.findings
    if verdict.wait_off > _WAIT_OFF:
        yield f"waiting {verdict.wait_off:.1%} off"
    if verdict.clock_off_us > _CLOCK_OFF_US:
        yield f"clocks {verdict.clock_off_us:.1f} us off"
    if not scenario.options:
        if findings:
            yield f"healthy run has finding: {findings[0].text}"
        return
    if not findings:
        if abs(verdict.true_ms or 0.0) > _MIN_COST_MS:
            yield "no finding"
        return
    first = findings[0]
    factor = first.figures.get("factor")
    if truth["slow_rank"] is not None:
        if (first.kind, first.ranks) != ("slow_rank", (truth["slow_rank"],)):
            yield f"first finding: {first.text}"
        elif abs(factor - truth["slow"]) > max(_OFF * (truth["slow"] - 1), 0.01):
            yield f"factor {factor}"
    elif truth["slow_link"]:
        ends = {int(rank) for rank in truth["slow_link"].split(",")}
        if first.kind != "slow_link" or not ends <= set(first.ranks):
            yield f"first finding: {first.text}"
        elif abs(factor / truth["link"] - 1) > _OFF and first.figures["link_known"]:
            yield f"factor {factor}"
    elif truth["slow_host"] is not None:
        if (first.kind, first.hosts) != ("host_bound", (f"node{truth['slow_host']:04d}",)):
            yield f"first finding: {first.text}"
    elif (first.kind, first.ranks) != ("late_input", (truth["late_input_rank"],)):
        yield f"first finding: {first.text}"
    elif abs(first.figures["late_ms"] / truth["late_ms"] - 1) > _OFF:
        yield f"late {first.figures['late_ms']} ms"
    assert verdict.true_ms is not None
    if abs(first.cost_ms_per_step - verdict.true_ms) > max(
        _OFF * abs(verdict.true_ms), _MIN_COST_MS
    ):
        yield f"cost {first.cost_ms_per_step:.3f} ms, true {verdict.true_ms:.3f} ms"
    if len(findings) > 1:
        yield f"extra finding: {findings[1].text}"


def row(verdict: Verdict) -> str:
    scenario, findings = verdict.scenario, verdict.summary.findings
    first = findings[0] if findings else None
    tp, dp, pp = scenario.shape
    factor = first.figures.get("factor", first.figures.get("late_ms")) if first else None
    cost = "-" if first is None else f"{first.cost_ms_per_step:.3f}"
    truth = "-" if verdict.true_ms is None else f"{verdict.true_ms:.3f}"
    who = "-"
    if first is not None:
        who = first.kind
        if first.kind == "slow_link":
            who += f" {'-'.join(map(str, first.ranks))}" if len(first.ranks) == 2 else " in group"
        elif first.kind == "host_bound":
            who += f" {', '.join(first.hosts)}"
        else:
            who += f" {first.ranks[0]}"
    cells = (
        f"{math.prod(scenario.shape)} ({tp}x{dp}x{pp})",
        "CUDA" if scenario.kineto else "NPU",
        " ".join(scenario.more) or "-",
        scenario.fault,
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
    parser.add_argument("--ranks", default="8,64", help="numbers of ranks, from 8, 64, 256, 1024")
    parser.add_argument("--shapes", action="store_true", help="run other shapes and seeds instead")
    parser.add_argument("--kinds", default="npu,cuda")
    given = parser.parse_args()
    kinds = [kind == "cuda" for kind in given.kinds.split(",")]
    sizes = [int(size) for size in given.ranks.split(",")]
    print(
        "| ranks | device | options | planted | first finding | factor or ms | cost, ms per step: "
        "reported / true | waiting off | clocks off, us | reduce, CPU s | correct |\n"
        + "|---" * 11
        + "|"
    )
    base: dict[tuple[str, ...], float] = {}
    wrong = 0
    for scenario in scenarios(sizes, shapes=given.shapes, kinds=kinds):
        with tempfile.TemporaryDirectory() as folder:
            key = tuple(scenario.base)
            truth = run(given.tool, scenario, Path(folder), scenario.options)
            found = partials(Path(folder), truth)
            if key not in base:
                base[key] = step_ms(found, truth)  # the first run of each shape is healthy
            verdict = judged(scenario, found, truth, base[key])
        print(row(verdict), flush=True)
        wrong += bool(verdict.faults)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
