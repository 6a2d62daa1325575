"""Diff and gate on measured runs: the slower line is named, the verdict is right."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import unified_prof
from unified_prof.compare import runs
from unified_prof.compare.diff import Difference, diff
from unified_prof.compare.gate import Limits, Outcome, gate

pytestmark = pytest.mark.timing

# A step takes one to two milliseconds, which fits between two time slices of other programs.
WIDTH, BATCH, ITERATIONS = 64, 16, 40
REPETITIONS = 20
SLOWER = 15
"""Layers of a model whose step takes a fifth longer than that of ten layers."""

Measure = Callable[..., Path]


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Return a function that trains a model of some layers and returns the directory of the run."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder, numbers = tmp_path_factory.mktemp("runs"), count()

    def run(
        layers: int = 10, *, wide: int = WIDTH, nap_ms: float = 0.0, pause_ms: float = 0.0
    ) -> Path:
        torch.manual_seed(0)
        model = make_model(layers, wide, nap_ms, pause_ms)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(BATCH, WIDTH)
        output = folder / f"run{next(numbers)}"
        with unified_prof.profile(
            output,
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
        return output

    yield run
    torch.set_num_threads(threads)


def make_model(layers: int, wide: int, nap_ms: float, pause_ms: float) -> Any:
    import torch
    from torch import nn

    class Nap(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            pause(nap_ms)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
            self.expand = nn.Linear(WIDTH, wide)
            self.shrink = nn.Linear(wide, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(layers):
                x = torch.tanh(x @ self.weight)
            pause(pause_ms)  # the line that pauses
            x = self.expand(x)  # the wide line
            x = self.shrink(torch.relu(x))
            return Nap.apply(x)  # the line with a nap

    return Net()


def pause(duration_ms: float) -> None:
    if duration_ms:  # time.sleep(0) would yield the processor
        time.sleep(duration_ms / 1000)


def line_of(comment: str) -> str:
    """Return the line of this file that ends in `comment`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(n for n, line in enumerate(lines, start=1) if line.endswith(f"  # {comment}"))
    return f"{Path(__file__).name}:{number}"


def diff_runs(base: Path, new: Path) -> Difference:
    return diff(runs.load([base]), runs.load([new]))


def test_diff_names_the_line_with_the_larger_matrix_first(measure: Measure) -> None:
    found = diff_runs(measure(), measure(wide=24 * WIDTH))
    slower = found.changes[0]
    assert slower.status == "slower"
    assert slower.place.line in (line_of("the wide line"), next_line(line_of("the wide line")))
    assert slower.delta_ns > 0.1e6


def test_diff_names_the_line_that_pauses_between_operations_first(measure: Measure) -> None:
    slower = diff_runs(measure(), measure(pause_ms=0.5)).changes[0]
    assert slower.status == "slower"
    assert slower.place.line == line_of("the line that pauses")
    assert slower.delta_ns > 0.4e6


def next_line(line: str) -> str:
    """Return the line after `line`: the matrix is created on one line and used on the next."""
    file, _, number = line.rpartition(":")
    return f"{file}:{int(number) + 1}"


def test_diff_names_the_line_with_the_sleep_first(measure: Measure) -> None:
    found = diff_runs(measure(), measure(nap_ms=1.0))
    slower = found.changes[0]
    assert (slower.status, slower.place.line) == ("slower", line_of("the line with a nap"))
    assert slower.delta_ns > 0.9e6
    assert slower.explained_ns <= found.new_ns - found.base_ns


@pytest.fixture(scope="module")
def unchanged_and_slower(measure: Measure) -> tuple[list[Path], list[Path]]:
    """Return runs of one model and runs of a model that is a fifth slower, interleaved."""
    base, slower = [], []
    for _ in range(REPETITIONS + 1):
        base.append(measure())
        slower.append(measure(SLOWER))
    return [*base, measure(), measure()], slower


def verdict(
    base: Sequence[Path], new: Sequence[Path], again: Callable[[], tuple[Path, Path]]
) -> Outcome:
    """Run the gate; while it is inconclusive, add a run to both sides and repeat."""
    before, after = [*base], [*new]
    for _ in range(6):
        outcome = gate(runs.load(before), runs.load(after), ["total"], Limits()).outcome
        if outcome != "inconclusive":
            break
        for side, path in zip((before, after), again(), strict=True):
            side.append(path)
    return outcome


def test_unchanged_model_never_fails_the_gate(
    unchanged_and_slower: tuple[list[Path], list[Path]], measure: Measure
) -> None:
    base, _ = unchanged_and_slower
    outcomes = [
        verdict(base[i : i + 3 : 2], base[i + 1 : i + 4 : 2], lambda: (measure(), measure()))
        for i in range(REPETITIONS)
    ]
    assert outcomes.count("regression") == 0, outcomes


def test_fifth_slower_model_never_passes_the_gate_and_mostly_fails_it(
    unchanged_and_slower: tuple[list[Path], list[Path]], measure: Measure
) -> None:
    base, slower = unchanged_and_slower
    outcomes = [
        verdict(base[i : i + 2], slower[i : i + 2], lambda: (measure(), measure(SLOWER)))
        for i in range(REPETITIONS)
    ]
    assert outcomes.count("pass") == 0, outcomes
    assert outcomes.count("regression") > REPETITIONS // 2, outcomes
