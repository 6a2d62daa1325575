r"""Measure how much longer the steps of a watched training take.

A small GPT trains with a data loader, clipping and a value read in each step; its batch is enlarged
until a step takes about the wanted time. Blocks of plain and watched steps alternate in one process
(plain, watched, watched, plain), without captures, and each block ends when the device is idle. The
overhead is the median ratio of neighboring blocks, with a bootstrap confidence interval of 95 %.

    python scripts/bench_watch.py [--device cpu|cuda|bench] [--step-ms 10] [--blocks 40] \
        [--steps 50]

On `bench`, the test device of `tests/device`, a smaller model trains and the duration of kernels is
chosen instead of the batch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from bench_tracking import VOCABULARY, Gpt

import unified_prof
from tests.device import bench as test_device
from unified_prof.pipeline.watch import WatchSettings

TOKENS = 128
# Replacing methods of torch's classes empties Python's caches of their subclasses.
WARM_UP_S = 0.2
_IN_FOUR = (False, True, True, False)


class Small(torch.nn.Module):  # type: ignore[misc]
    """A model of few operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Embedding(VOCABULARY, width),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, VOCABULARY),
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return torch.nn.functional.cross_entropy(self.layers(x).flatten(0, 1), target.flatten())


class Training:
    """A model with its optimizer and an endless loader."""

    def __init__(self, device: str, batch: int, width: int) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = (Small(width) if device == "bench" else Gpt(width, TOKENS)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        data = torch.randint(VOCABULARY, (batch * 64, TOKENS))
        texts = torch.utils.data.TensorDataset(data, data.roll(-1, 1))
        self.loader = torch.utils.data.DataLoader(texts, batch_size=batch)
        self._batches = itertools.chain.from_iterable(itertools.repeat(self.loader))

    def run(self, steps: int) -> float:
        """Return the seconds per step."""
        self.synchronize()
        began = time.perf_counter()
        for x, target in itertools.islice(self._batches, steps):
            x, target = x.to(self.device), target.to(self.device)
            self.optimizer.zero_grad()
            loss = self.model(x, target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            loss.item()
        self.synchronize()
        return (time.perf_counter() - began) / steps

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.accelerator.synchronize()


def training_of(device: str, step_s: float) -> Training:
    """Return a training whose steps take about this long: a width, then a batch that fills it."""
    if device == "bench":
        test_device.install()
        training, lengths = Training(device, 1, 64), []
        for ns in (50_000, 150_000):
            test_device.set_duration(ns)
            lengths.append(_least(training))
        kernels = (lengths[1] - lengths[0]) * 1e4  # per step
        test_device.set_duration(max(0, round((step_s - lengths[0]) * 1e9 / kernels) + 50_000))
        return training
    for width in (256, 128, 64):
        batch, length = 1, _least(Training(device, 1, width))
        if length <= step_s:
            break
    while length < step_s:
        batch *= 2
        length = _least(Training(device, batch, width))
    return Training(device, max(round(batch * step_s / length), 1), width)


def _least(training: Training) -> float:
    return min(training.run(5) for _ in range(4))


@contextlib.contextmanager
def watched(device: str, folder: Path) -> Iterator[None]:
    """Watch the block of a run without captures."""
    with unified_prof.watch(folder, device=device, settings=WatchSettings(share=0)):
        yield


def main() -> None:
    """Print the table row of one length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--step-ms", type=float, default=10)
    parser.add_argument("--blocks", type=int, default=40, help="blocks of each kind")
    parser.add_argument("--steps", type=int, default=50, help="steps per block")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    step_s = options.step_ms / 1e3
    training = training_of(options.device, step_s)
    times: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.blocks // 2):
            for is_watched in _IN_FOUR:
                where = Path(folder, f"{number}")
                block = watched(options.device, where) if is_watched else contextlib.nullcontext()
                with block:
                    training.run(max(5, round(WARM_UP_S / step_s)))
                    times[is_watched].append(training.run(options.steps))
    ratios = np.array(times[True]) / np.array(times[False])
    chosen = np.random.default_rng(0).integers(len(ratios), size=(10_000, len(ratios)))
    low, high = np.percentile(np.median(ratios[chosen], axis=1), (2.5, 97.5))
    print(
        f"| {options.device}, {np.median(times[False]) * 1e3:.2f} ms | "
        f"{np.median(ratios) - 1:+.2%} | {low - 1:+.2%} to {high - 1:+.2%} | {len(ratios)} |"
    )


if __name__ == "__main__":
    main()
