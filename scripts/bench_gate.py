"""Measure the error rate of the gate: on synthetic runs, and on pairs of real training scripts.

    python scripts/bench_gate.py --synthetic 100 --real 0
    python scripts/bench_gate.py --synthetic 0 --real 40

Pairs are judged with the default limits. No unchanged pair may be a regression, and no pair that is
20 % slower may pass; `inconclusive` means that more runs are needed. Real pairs are those of
gate_workloads.py, judged by `uprof gate --until-sure --metric total`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.compare.comparable import TOTAL, Operations, Run
from unified_prof.compare.confidence import Noise
from unified_prof.compare.diff import diff
from unified_prof.compare.gate import Limits, gate

WORKLOADS = Path(__file__).with_name("gate_workloads.py")
Floats = NDArray[np.float64]
SLOWER = 1.2
MEDIAN_NS = 3e6
ITERATIONS = 10
# Standard deviation of the logarithm of a run's speed.
NOISES = {"dedicated machine": 0.01, "quiet host": 0.03, "busy host": 0.12}


def run_of(processes: Sequence[Floats]) -> Run:
    """Return the measurements of several processes as one side of a comparison."""
    return Run(
        "",
        frozenset({"skyline-run-time"}),
        "operation",
        {},
        Operations.none(),
        (),
        {TOTAL: np.concatenate(processes)},
        lengths={TOTAL: tuple(map(len, processes))},
    )


def outcome(base: Sequence[Floats], new: Sequence[Floats], noise: Noise | None = None) -> str:
    """Judge iterations in ns of two sides; asserts that `diff` agrees with the gate."""
    sides = run_of(base), run_of(new)
    found = gate(*sides, [TOTAL], Limits(), noise).outcome
    verdict = diff(*sides, noise=noise).totals[TOTAL].verdict()
    assert found != "regression" or verdict == "slower", (found, verdict)
    return found


def synthetic(pairs: int) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """Yield (name, outcomes of unchanged pairs, outcomes of slower pairs)."""
    for name, relative in NOISES.items() if pairs else ():
        for count in (1, 2, 3, 5, 8):
            generator = np.random.default_rng(count)

            def side(
                factor: float,
                count: int = count,
                relative: float = relative,
                generator: np.random.Generator = generator,
            ) -> list[Floats]:
                levels = MEDIAN_NS * factor * np.exp(generator.normal(0, relative, count))
                return [level * (1 + generator.gamma(1, 0.02, ITERATIONS)) for level in levels]

            unchanged = Counter(outcome(side(1), side(1)) for _ in range(pairs))
            slower = Counter(outcome(side(1), side(SLOWER)) for _ in range(pairs))
            yield f"{name} ({relative:.0%}), {count} runs per side", unchanged, slower
            if count == 1:
                learned = Noise(relative, 9)
                unchanged = Counter(outcome(side(1), side(1), learned) for _ in range(pairs))
                slower = Counter(outcome(side(1), side(SLOWER), learned) for _ in range(pairs))
                yield f"{name} ({relative:.0%}), 1 run per side, noise known", unchanged, slower


def matrix(
    workloads: Sequence[str], changes: Sequence[float], pairs: int, minutes: float
) -> Iterator[tuple[str, float, list[tuple[str, float, int]]]]:
    """Yield (workload, change in percent, [(outcome, seconds, rounds)]) of pairs of real runs.

    The pairs of all workloads and changes take turns, until the time is up.
    """
    found: dict[tuple[str, float], list[tuple[str, float, int]]] = {
        (name, change): [] for change in changes for name in workloads
    }
    began = time.monotonic()
    for _ in range(pairs):
        for (name, change), outcomes in found.items():
            if time.monotonic() - began < 60 * minutes:
                outcomes.append(lock_step(name, change))
                print(name, change, *outcomes[-1], file=sys.stderr, flush=True)
    for (name, change), outcomes in found.items():
        yield name, change, outcomes


def lock_step(name: str, change: float) -> tuple[str, float, int]:
    """Gate a workload against itself, with `change` percent more CPU time per iteration."""
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for side, percent in (("base", 0.0), ("new", change)):
            sides.append(Path(folder) / side)
            sides[-1].mkdir()
            text = WORKLOADS.read_text(encoding="utf-8").replace("sys.argv[2]", repr(str(percent)))
            (sides[-1] / "train.py").write_text(text, encoding="utf-8")
        command = ["gate", *map(str, sides), "--until-sure", f"--backend cpu train.py {name}"]
        options = ["--metric", "total", "--quiet", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "unified_prof", *command, *options],
            stdout=subprocess.PIPE,
            check=False,
        )
        verdict = json.loads(done.stdout)
        return verdict["outcome"], verdict["effort"]["seconds"], verdict["effort"]["rounds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synthetic", type=int, default=200, help="pairs of each kind")
    parser.add_argument("--real", type=int, default=40, help="pairs of each workload and change")
    parser.add_argument("--workload", nargs="+", default=["gpt", "cnn", "rnn"])
    parser.add_argument("--change", type=float, nargs="+", default=[0, 5, 10, 25], help="percent")
    parser.add_argument("--minutes", type=float, default=600, help="limit of the real pairs")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print("| samples | unchanged: pass / inconclusive / regression | 20 % slower: the same |")
    print("|---|---|---|")
    for label, same, slower in synthetic(arguments.synthetic):
        print(f"| {label} | {' | '.join(map(counts_text, (same, slower)))} |", flush=True)
    print("| workload | change | pass / inconclusive / regression | median (max) s | rounds |")
    print("|---|---|---|---|---|")
    for name, change, found in matrix(
        arguments.workload, arguments.change, arguments.real, arguments.minutes
    ):
        if found:
            outcomes, seconds, rounds = zip(*found, strict=True)
            print(
                f"| {name} | +{change:g} % | {counts_text(Counter(outcomes))} "
                f"| {np.median(seconds):.0f} ({max(seconds):.0f}) | {np.median(rounds):g} |"
            )


def counts_text(found: Counter[str]) -> str:
    """Return the numbers of outcomes."""
    return " / ".join(str(found[one]) for one in ("pass", "inconclusive", "regression"))


if __name__ == "__main__":
    main()
