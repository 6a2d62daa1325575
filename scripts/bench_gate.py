"""How often the gate is wrong: on synthetic runs of machines of several noises, and on real runs.

    python scripts/bench_gate.py --synthetic 200 --real 40 --runs 3

Each pair is judged by the default limits. Of unchanged pairs none may be a regression, of those a
fifth slower none may pass; `inconclusive` asks for more runs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unified_prof
from unified_prof.analysis.compare.between import Noise
from unified_prof.analysis.compare.comparable import TOTAL, Operations, Run
from unified_prof.analysis.compare.diff import diff
from unified_prof.analysis.compare.gate import Limits, gate

Floats = NDArray[np.float64]
SLOWER = 1.2
MEDIAN_NS = 3e6
ITERATIONS = 10
NOISES = {"a device of one's own": 0.01, "a quiet host": 0.03, "a busy host": 0.12}
"""Standard deviation of the logarithm of a run's speed."""


def run_of(runs: Sequence[Floats]) -> Run:
    """Return what several processes measured as one side."""
    return Run(
        "",
        frozenset({"skyline-run-time"}),
        "operation",
        {},
        Operations.none(),
        (),
        {TOTAL: np.concatenate(runs)},
        lengths={TOTAL: tuple(map(len, runs))},
    )


def outcome(base: Sequence[Floats], new: Sequence[Floats], noise: Noise | None = None) -> str:
    """Judge two sides' iterations in nanoseconds; `diff` may not say otherwise than the gate."""
    sides = run_of(base), run_of(new)
    found = gate(*sides, [TOTAL], Limits(), noise).outcome
    verdict = diff(*sides, noise=noise).totals[TOTAL].verdict()
    assert found != "regression" or verdict == "slower", (found, verdict)
    return found


def synthetic(pairs: int) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """Yield (name, outcomes of unchanged pairs, outcomes of slower pairs)."""
    for name, relative in NOISES.items():
        for runs in (1, 2, 3, 5, 8):
            generator = np.random.default_rng(runs)

            def side(
                factor: float,
                runs: int = runs,
                relative: float = relative,
                generator: np.random.Generator = generator,
            ) -> list[Floats]:
                levels = MEDIAN_NS * factor * np.exp(generator.normal(0, relative, runs))
                return [level * (1 + generator.gamma(1, 0.02, ITERATIONS)) for level in levels]

            unchanged = Counter(outcome(side(1), side(1)) for _ in range(pairs))
            slower = Counter(outcome(side(1), side(SLOWER)) for _ in range(pairs))
            yield f"{name} ({relative:.0%}), {runs} a side", unchanged, slower
            if runs == 1:
                learned = Noise(relative, 9)
                unchanged = Counter(outcome(side(1), side(1), learned) for _ in range(pairs))
                slower = Counter(outcome(side(1), side(SLOWER), learned) for _ in range(pairs))
                yield f"{name} ({relative:.0%}), 1 a side, noise learned", unchanged, slower


def train(layers: int, width: int, iterations: int) -> Floats:
    """Track a small model and return the samples of its iterations in nanoseconds."""
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
    with (
        tempfile.TemporaryDirectory() as folder,
        unified_prof.profile(
            Path(folder) / "run",
            device="cpu",
            reports=("run-time",),
            warmup=5,
            iterations=iterations,
            project_root=Path(__file__).parent,
        ) as profile,
    ):
        for _ in range(iterations + 6):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    assert profile.tracked is not None
    return np.array([one.total_ms * 1e6 for one in profile.tracked.iterations])


def real(pairs: int, runs: int) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """The same for tracked runs of a model and of one with a fifth more layers, in turn."""
    for width in (96, 192) if pairs else ():
        same, slower, ratios = Counter[str](), Counter[str](), []
        for _ in range(pairs):
            sides: list[list[Floats]] = [[], [], []]
            for _ in range(runs):
                for side, layers in zip(sides, (20, 20, 24), strict=True):
                    side.append(train(layers, width, ITERATIONS))
            same[outcome(sides[0], sides[1])] += 1
            slower[outcome(sides[0], sides[2])] += 1
            ratios.append(np.median(np.concatenate(sides[2])) / np.median(np.concatenate(sides[0])))
        yield (
            f"tracked, width {width}, {runs} runs a side (x{np.median(ratios):.2f})",
            same,
            slower,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synthetic", type=int, default=200, help="pairs of each kind")
    parser.add_argument("--real", type=int, default=20, help="pairs of each kind")
    parser.add_argument("--runs", type=int, default=3, help="runs a side of a real pair")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print("| samples | unchanged: pass / inconclusive / regression | a fifth slower: the same |")
    print("|---|---|---|")
    for rows in (synthetic(arguments.synthetic), real(arguments.real, arguments.runs)):
        for name, same, slower in rows:
            shown = (
                " / ".join(str(found[one]) for one in ("pass", "inconclusive", "regression"))
                for found in (same, slower)
            )
            print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
