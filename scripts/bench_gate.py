"""How often the gate is wrong: on synthetic samples of several kinds of noise, and on real runs.

    python scripts/bench_gate.py --synthetic 200 --real 20

Each pair is judged by the default limits. Of unchanged pairs none may be a regression, of those a
fifth slower all should be; `inconclusive` asks to measure again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import unified_prof
from unified_prof.analysis.compare.comparable import TOTAL, Operations, Run
from unified_prof.analysis.compare.gate import Limits, gate

Floats = NDArray[np.float64]
SLOWER = 1.2
MEDIAN_NS = 3e6


def quiet(generator: np.random.Generator, count: int) -> Floats:
    """A device of one's own: two percent around the median."""
    return np.exp(generator.normal(0, 0.02, count))


def scattered(generator: np.random.Generator, count: int) -> Floats:
    """Ten percent around the median."""
    return np.exp(generator.normal(0, 0.1, count))


def shared(generator: np.random.Generator, count: int) -> Floats:
    """A machine whose other programs interrupt one iteration in three."""
    waits = generator.exponential(1.3, count) * (generator.random(count) < 0.33)
    return 1 + generator.gamma(1, 0.02, count) + waits


def drifting(generator: np.random.Generator, count: int) -> Floats:
    """A machine whose speed wanders by four percent within some ten iterations."""
    steps = generator.normal(0, 0.02, count)
    for index in range(1, count):
        steps[index] += 0.9 * steps[index - 1]
    return np.exp(steps + generator.normal(0, 0.02, count))


KINDS: tuple[Callable[[np.random.Generator, int], Floats], ...] = (
    quiet,
    scattered,
    shared,
    drifting,
)


def outcome(base: Floats, new: Floats) -> str:
    """Judge two samples of whole iterations in nanoseconds."""
    sides = [
        Run("", frozenset(), "operation", {}, Operations.none(), (), {TOTAL: samples})
        for samples in (base, new)
    ]
    return gate(*sides, [TOTAL], Limits()).outcome


def synthetic(pairs: int) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """Yield (name, outcomes of unchanged pairs, outcomes of slower pairs)."""
    for kind in KINDS:
        for count in (10, 20, 40):
            generator = np.random.default_rng(count)
            samples = MEDIAN_NS * np.array([kind(generator, count) for _ in range(3 * pairs)])
            base, same, slower = np.split(samples, 3)
            yield (
                f"{kind.__name__}, {count} iterations",
                Counter(map(outcome, base, same)),
                Counter(map(outcome, base, slower * SLOWER)),
            )


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


def real(pairs: int) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """The same for tracked runs of a model and of one with a fifth more layers, in turn."""
    for width in (96, 192) if pairs else ():
        for count in (10, 40):
            runs = [[train(layers, width, count) for layers in (20, 20, 24)] for _ in range(pairs)]
            ratio = np.median([np.median(new) / np.median(old) for old, _, new in runs])
            fastest = np.median([old.min() for old, _, _ in runs]) / 1e6
            yield (
                f"tracked, {fastest:.1f} ms a step, {count} iterations (x{ratio:.2f})",
                Counter(outcome(old, same) for old, same, _ in runs),
                Counter(outcome(old, new) for old, _, new in runs),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--synthetic", type=int, default=200, help="pairs of each kind")
    parser.add_argument("--real", type=int, default=20, help="pairs of each kind")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print("| samples | unchanged: pass / inconclusive / regression | a fifth slower: the same |")
    print("|---|---|---|")
    for source, pairs in ((synthetic, arguments.synthetic), (real, arguments.real)):
        for name, same, slower in source(pairs):
            shown = (
                " / ".join(str(found[one]) for one in ("pass", "inconclusive", "regression"))
                for found in (same, slower)
            )
            print(f"| {name} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
