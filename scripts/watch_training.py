"""A training of steps of about 10 ms, healthy or with a fault, for `scripts/validate_watch.py`.

uprof watch scripts/watch_training.py SHAPE FAULT STEPS [BEGIN [SEED]]
"""

from __future__ import annotations

import gc
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SHAPES = [
    *("plain", "accumulation", "gan", "lengths", "noisy", "validation", "slow_stretches"),
    *("checkpoint", "tiny", "compiled", "long"),
]
FAULTS = ["loader_5", "loader", "drift", "leak", "gc"]
WIDTH = 32
SLOWER_S = 0.02
STEP_LOG = "steps.log"  # A record per step: its number, and the Unix ns of its end.
STEP_RECORD = struct.Struct("qq")
step = 0


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of which those of slow steps take longer."""

    def __init__(self, first: int, last: int, slower_s: float) -> None:
        self.slow, self.slower_s = range(first, last), slower_s

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.slow:
            time.sleep(self.slower_s)
        return torch.ones(WIDTH)


def batches(shape: str, fault: str, begin: int) -> Iterator[torch.Tensor]:
    """Yield batches of 4."""
    if shape == "tiny":
        while True:
            yield torch.ones(4, WIDTH)
    end = 4 * (begin + 5) if fault == "loader_5" else 1 << 40
    samples = Samples(4 * begin, end if "loader" in fault else 0, SLOWER_S)
    yield from torch.utils.data.DataLoader(samples, batch_size=4, sampler=range(1 << 40))


def length_s(shape: str, fault: str, begin: int) -> float:
    """Return how long the forward pass sleeps."""
    length = {"tiny": 0.0, "long": 0.06}.get(shape, 0.008)
    if shape == "lengths":
        length *= random.choice([0.6, 0.8, 1, 1.4, 2.0])
    if shape == "noisy":
        length *= random.lognormvariate(0, 0.15)
    if fault == "drift":
        length *= 1 + 0.12 * min(max((step - begin) / 500, 0), 1)
    return length


def after_step(shape: str, net: torch.nn.Module, batch: torch.Tensor) -> None:
    """Do what healthy trainings do between steps."""
    if shape == "validation" and step % 200 == 199:
        with torch.no_grad():
            for _ in range(20):
                time.sleep(0.008)
                net(batch)
    if shape == "slow_stretches" and step % 150 >= 130:
        time.sleep(0.016)
    if shape == "checkpoint" and step % 200 == 199:
        time.sleep(0.2)
        torch.save(net.state_dict(), "model.pt")


def train(shape: str, fault: str, steps: int, begin: int) -> None:
    """Train; the fault begins with step `begin`."""
    global step
    net: Any = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1)
    )
    if shape == "compiled":
        net = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), 1e-4)
    critic = torch.nn.Linear(WIDTH, 1)
    other = torch.optim.Adam(critic.parameters(), 1e-4)
    ballast = [[number] for number in range(200_000)] if fault == "gc" else None
    leaked = []
    log = os.open(STEP_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for step, batch in zip(range(steps), batches(shape, fault, begin), strict=False):
        is_faulty = step >= begin
        optimizer.zero_grad()
        for _ in range(4 if shape == "accumulation" else 1):
            time.sleep(length_s(shape, fault, begin))
            loss = net(batch).square().mean()
            loss.backward()
        if shape == "gan":
            other.zero_grad()
            critic(batch).mean().backward()
            other.step()
        optimizer.step()
        os.write(log, STEP_RECORD.pack(step, time.time_ns()))
        loss.item()
        if fault == "leak" and is_faulty:
            leaked.append(torch.ones(25_000))
        if ballast is not None and is_faulty:
            gc.collect()
        after_step(shape, net, batch)


if __name__ == "__main__":
    shape, fault, *numbers = sys.argv[1:]
    torch.set_num_threads(1)
    random.seed(int(numbers[2]) if len(numbers) > 2 else 0)
    train(shape, fault, int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 1 << 30)
    Path("model.pt").unlink(missing_ok=True)
