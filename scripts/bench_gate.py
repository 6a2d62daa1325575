"""Measure the error rate of the gate on synthetic runs with several noise levels and on real runs.

    python scripts/bench_gate.py --synthetic 200 --real 40 --runs 3

Pairs are judged with the default limits. No unchanged pair may be a regression, and no pair that is
20 % slower may pass; `inconclusive` means that more runs are needed. Each run of a real pair is a
separate process, the sides alternate, and inconclusive pairs get more rounds, as with
`--until-sure`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unified_prof
from unified_prof.baselines import api
from unified_prof.compare import runs
from unified_prof.compare.comparable import FORWARD, TOTAL, Operations, Run
from unified_prof.compare.comparable import pool as pool_of
from unified_prof.compare.confidence import Noise
from unified_prof.compare.diff import diff
from unified_prof.compare.gate import Limits, gate

Floats = NDArray[np.float64]
SLOWER = 1.2
MEDIAN_NS = 3e6
ITERATIONS = 10
# Standard deviation of the logarithm of a run's speed.
NOISES = {"dedicated machine": 0.01, "quiet host": 0.03, "busy host": 0.12}


PROCESSES = multiprocessing.get_context("forkserver")


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


def train(layers: int, width: int) -> bytes:
    """Track a small model in this process and return the run as an encoded baseline."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

        def forward(self, x: Any) -> Any:
            for _ in range(layers):
                x = torch.tanh(x @ self.weight)
            return x

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(width // 2, width)
    with tempfile.TemporaryDirectory() as folder:
        with unified_prof.profile(
            Path(folder) / "run",
            device="cpu",
            reports=("run-time",),
            warmup=5,
            iterations=ITERATIONS,
            project_root=Path(__file__).parent,
        ):
            for _ in range(ITERATIONS + 6):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        return api.dump(runs.load([Path(folder) / "run"]))


def in_a_process(layers: int, width: int) -> Run:
    """Measure one run of the model in a process forked from a server that has loaded torch."""
    with PROCESSES.Pool(1) as pool:
        return api.load(pool.apply(train, (layers, width)), where="a run")


def judged(base: Sequence[Run], new: Sequence[Run], metric: str) -> str:
    """Judge the runs of two sides; asserts that `diff` agrees with the gate."""
    sides = (pool_of(base), pool_of(new))
    found = gate(*sides, [metric], Limits()).outcome
    said = diff(*sides).totals[metric].verdict()
    assert found != "regression" or said == "slower", (found, said)
    assert found != "pass" or said != "slower" or ratio(*sides, metric) < 1.05, (found, said)
    return found if found != "inconclusive" or said != "faster" else "faster"


def ratio(base: Run, new: Run, metric: str) -> float:
    """Return the ratio of a metric, candidate over baseline, as judged by the gate."""
    shift = gate(base, new, [metric], Limits()).checks[0].shift
    return 1.0 if shift is None else shift.ratio


def real(
    pairs: int, least: int, most: int, widths: Sequence[int], minutes: float
) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """Like `synthetic`, for tracked runs of a model, unchanged and with 20 % more layers."""
    for width in widths if pairs else ():
        first = {metric: (Counter[str](), Counter[str]()) for metric in (TOTAL, FORWARD)}
        last = (Counter[str](), Counter[str]())
        scatter, ratios, rounds = [], [], []
        began = time.monotonic()
        for _ in range(pairs):
            if time.monotonic() - began > minutes * 60:
                break
            sides: list[list[Run]] = [[], [], []]
            open_ = [True, True]
            while any(open_) and len(sides[0]) < most:
                order = list(zip(sides, (20, 20, 24), strict=True))
                for side, layers in order if len(sides[0]) % 2 else reversed(order):
                    side.append(in_a_process(layers, width))
                if len(sides[0]) < least:
                    continue
                for which, new in enumerate(sides[1:]):
                    if len(sides[0]) == least:
                        for metric, counts in first.items():
                            counts[which][judged(sides[0], new, metric)] += 1
                    outcome = judged(sides[0], new, TOTAL)
                    if open_[which] and (outcome != "inconclusive" or len(sides[0]) == most):
                        last[which][outcome] += 1
                        open_[which] = False
            rounds.append(len(sides[0]))
            times = [float(np.median(run.totals[TOTAL])) for run in sides[0]]
            scatter.append(float(np.std(np.log(times), ddof=1)))
            ratios.append(ratio(pool_of(sides[0]), pool_of(sides[2]), TOTAL))
        what = f"width {width}, x{np.median(ratios):.2f}, variation {np.median(scatter):.0%}"
        for metric, (same, slower) in first.items():
            yield f"{what}: {metric}, {least} runs per side", same, slower
        yield f"{what}: --until-sure, {np.mean(rounds):.1f} of at most {most} rounds", *last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synthetic", type=int, default=200, help="pairs of each kind")
    parser.add_argument("--real", type=int, default=20, help="pairs of each kind")
    parser.add_argument("--runs", type=int, default=3, help="initial runs per side of a real pair")
    parser.add_argument("--rounds", type=int, default=10, help="maximum runs per side")
    parser.add_argument("--width", type=int, nargs="+", default=[192], help="of the model")
    parser.add_argument("--minutes", type=float, default=60, help="limit per width of real pairs")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    PROCESSES.set_forkserver_preload(["torch", "unified_prof.pipeline.live", __name__])
    outcomes = "pass / inconclusive / regression"
    print(f"| samples | unchanged: {outcomes} | 20 % slower: {outcomes} |")
    print("|---|---|---|")
    measured = real(
        arguments.real, arguments.runs, arguments.rounds, arguments.width, arguments.minutes
    )
    for rows in (synthetic(arguments.synthetic), measured):
        for name, same, slower in rows:
            shown = (
                " / ".join(str(found[one]) for one in ("pass", "inconclusive", "regression"))
                + (f" (faster: {found['faster']})" if found["faster"] else "")
                for found in (same, slower)
            )
            print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
