"""Measure overhead and coverage of tracking on training steps.

The models are an MLP (also with L-BFGS), two sizes of a small GPT, and a hand-written recurrent
network with 8,994 small operations per step. Plain and tracked steps alternate in one thread, and
times are CPU times of the thread, so that other load does not affect them. The overhead is the
median ratio of pairs of steps: of those in which operations are timed, of those in which parts are,
and of those under torch's own recorder, with the time to collect its events.
The coverage is the sum of the times of all operations over the plain forward and backward time; for
these steps the tracker uses the thread's clock. Reading that clock is ten times slower, so the
reading time is subtracted from every interval, and the steps do not count for the overhead.

With `--device`, prints how close the sum of the operation times is to the time of their kernels,
and the cost of timing them; see `device_truth`. `bench` is the test device of `tests/device`, whose
kernels take exactly 3 us or 3 ms.

    python scripts/bench_tracking.py [--rounds N] [--json] [--device bench|cuda|npu]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import device_truth
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.autograd.profiler import profile

from unified_prof.base.run_spec import RunSpec
from unified_prof.tracking.assemble import SiteTable, select_calls
from unified_prof.tracking.device import HostClock
from unified_prof.tracking.session import Session
from unified_prof.tracking.stack_walker import Scope
from unified_prof.tracking.training_loop import StepWatcher

SIZES = {"small": (64, 32, 4), "medium": (256, 128, 4)}
LARGE = "large"
# Width, tokens per sequence, sequences per batch; a GPU has kernels of 0.1 ms for the large size.
_SHAPES = {**SIZES, LARGE: (1024, 512, 16)}
MANY = "many operations"
MLP, CLOSURE = "MLP", "MLP with L-BFGS"
TOKENS_BY_HAND = 899
VOCABULARY = 256


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 16
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the block, with residual connections."""
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Four blocks between an embedding and a head."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), target.view(-1))


class Mlp(nn.Module):
    """Two layers and their loss, a step of less than a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return F.mse_loss(self.layers(x), target)


class RecurrentByHand(nn.Module):
    """A gated recurrent network whose steps are a dozen operations in Python."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.back = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of the last state."""
        state = torch.zeros_like(x[0])
        for now in x:
            gate, new = (self.enter(now) + self.back(state)).chunk(2, 1)
            gate = torch.sigmoid(gate)
            state = gate * state + (1 - gate) * torch.tanh(new)
        return F.mse_loss(state, target)


class ThreadClock(HostClock):
    """CPU clock of this thread, minus the time to read it."""

    mark = staticmethod(time.thread_time_ns)

    def __init__(self) -> None:
        reads = [time.thread_time_ns() for _ in range(2001)]
        self._read_ns = statistics.median(b - a for a, b in pairwise(reads))

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Return the time from `start` to `end` in milliseconds."""
        return super().elapsed_ms(start, end - self._read_ns)


def workload(size: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and the arguments of its forward for one case."""
    torch.manual_seed(0)
    if size in (MLP, CLOSURE):
        return Mlp(), (torch.randn(4, 8), torch.randn(4, 8))
    if size == MANY:
        return RecurrentByHand(64), (torch.randn(TOKENS_BY_HAND, 16, 64), torch.randn(16, 64))
    width, tokens, batch = _SHAPES[size]
    return Gpt(width, tokens), tuple(torch.randint(VOCABULARY, (2, batch, tokens)))


def bench(size: str, rounds: int) -> dict[str, float]:
    """Return the figures for one case."""
    model, inputs = workload(size)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    if size == CLOSURE:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    here = Path(__file__).parent
    spec = RunSpec(target="", reports=("run-time",), output_dir=here, project_root=here)
    session = Session("cpu", spec)
    session.install(())
    steps = StepWatcher(
        session.interception,
        boundary=lambda: None,
        joined=lambda: None,
        step_begins=session.optimizer_begins,
        step_ended=session.optimizer_ended,
    )
    steps.install()
    session.add_model(model)
    tracker = session.run_time
    tracker.iterations_per_sample = 2
    table = SiteTable(session.sites, Scope("module"))

    passes_ms = [0.0, 0.0]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        start = time.thread_time()
        loss: torch.Tensor = model(*inputs)
        middle = time.thread_time()
        loss.backward()
        passes_ms[0] += (middle - start) * 1e3
        passes_ms[1] += (time.thread_time() - middle) * 1e3
        return loss

    def step() -> tuple[float, float]:
        passes_ms[:] = 0.0, 0.0
        if size == CLOSURE:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        return passes_ms[0], passes_ms[1]

    def tracked_step(index: int = 0) -> None:
        tracker.begin_iteration(index)
        step()
        tracker.end_iteration(index)

    def recorded_step() -> float:
        """Return the time to collect the events of one step, in ms."""
        recorder = profile()
        with recorder:
            start = time.thread_time()
            step()
            step_ms = (time.thread_time() - start) * 1e3
            recorded_ms.append(step_ms)
            start = time.thread_time()
        recorder.kineto_results.events()
        return (time.thread_time() - start) * 1e3

    def timed(run: Any) -> tuple[Any, float]:
        start = time.thread_time()
        result = run()
        return result, (time.thread_time() - start) * 1e3

    thread_clock = ThreadClock()
    plain_ms, tracked_ms, parts_ms, forward, backward = [], [], [], [], []
    recorded_ms: list[float] = []
    collected_ms: list[float] = []
    for number in range(-5, rounds):
        step()  # brings the step back into the caches
        (plain_forward, plain_backward), plain = timed(step)
        tracker.clock = HostClock()
        tracker.start()
        tracked_step()
        tracked_step(1)
        _, tracked = timed(tracked_step)
        _, parts = timed(lambda: tracked_step(1))
        tracker.stop(complete=True)
        tracker.clear()
        tracker.clock = thread_clock
        tracker.start()
        tracked_step()
        tracker.stop(complete=True)
        measured = select_calls(tracker.iterations.pop(), table)
        kept = list(measured.calls)
        collecting = recorded_step()
        if number >= 0:
            plain_ms.append(plain)
            tracked_ms.append(tracked)
            parts_ms.append(parts)
            collected_ms.append(recorded_ms[-1] + collecting)
            forward.append((plain_forward, measured.iteration.forward_ms[kept].sum()))
            backward.append((plain_backward, np.nansum(measured.iteration.backward_ms[kept])))
    steps.remove()
    session.remove()
    median = statistics.median

    def ratio(times_ms: list[float]) -> float:
        return median(t / p for p, t in zip(plain_ms, times_ms, strict=True))

    return {
        "plain_ms": median(plain_ms),
        "tracked_ms": median(tracked_ms),
        "ratio": ratio(tracked_ms),
        "parts_ratio": ratio(parts_ms),
        "recorder_ratio": ratio(recorded_ms[-rounds:]),
        "collected_ratio": ratio(collected_ms),
        "forward_coverage": median(tracked / plain for plain, tracked in forward),
        "backward_coverage": median(tracked / plain for plain, tracked in backward),
        "operations": len(kept),
    }


def bench_device(device: str, rounds: int) -> dict[str, device_truth.Truth]:
    """Return the figures of all cases on a device."""
    if device != "bench":
        sizes = (*SIZES, LARGE)
        return {size: device_truth.truth(device, *workload(size), rounds) for size in sizes}
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.device import bench as test_device

    test_device.install()
    found = {}
    for words, ns in (("kernels of 3 us", 3_000), ("kernels of 3 ms", 3_000_000)):
        test_device.set_duration(ns)
        found[words] = device_truth.truth(device, *workload("small"), rounds)
    return found


def main() -> None:
    """Print the figures of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device != "cpu":
        found = bench_device(arguments.device, min(arguments.rounds, 10))
        if arguments.json:
            print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=2))
        else:
            print("\n".join(device_truth.summary_line(name, one) for name, one in found.items()))
        # Kernels of a few microseconds and of milliseconds.
        raise SystemExit(any(abs(one.error) > 0.02 for one in found.values()))
    figures = {size: bench(size, arguments.rounds) for size in (MLP, CLOSURE, *SIZES, MANY)}
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    for size, one in figures.items():
        print(
            f"{size}: {one['plain_ms']:.2f} ms plain, {one['tracked_ms']:.2f} ms tracked "
            f"(x{one['ratio']:.2f}, parts x{one['parts_ratio']:.2f}, torch's recorder "
            f"x{one['recorder_ratio']:.2f}, with its events x{one['collected_ratio']:.2f}), "
            f"{one['operations']:.0f} operations cover "
            f"{one['forward_coverage']:.2f} of forward, {one['backward_coverage']:.2f} of backward"
        )


if __name__ == "__main__":
    main()
