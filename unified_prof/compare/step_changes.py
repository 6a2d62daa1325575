"""Changes of a training that is running: slow steps, longer steps, growing memory.

This code runs within the training: it uses no NumPy, its memory is constant, and 100 steps cost it
less than 200 µs.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from unified_prof.base.text import SIZES, TIMES, scaled
from unified_prof.sqlite.watch_file import StepRow

WARM_UP = 20  # Steps at the beginning that are not judged.
RECENT = 100  # Steps of the running medians.
MIN_KNOWN = 20  # Steps after the warm-up that are required to call a step slow.
USUAL_SHARE = 0.95  # A slow step is 10 % longer than this share of recent steps ...
MIN_EXCESS_NS = 1_000_000  # ... and longer than the median by this time.
EPISODE = 20  # Slow steps at most this far apart are one episode.
EPISODES = 64  # Episodes that are remembered.
SIMILAR = 1.5  # An episode recurs if its excess is at most this multiple of two earlier ones ...
LATEST_GAPS = 2.0  # ... and it comes within this multiple of the longest time between those.

BLOCK = 20  # Steps per level of the length, and per minimum of memory.
BASELINE_BLOCKS = 10  # Blocks that the usual length requires; it uses up to twice as many.
LATEST_BLOCKS = 5  # Blocks whose median is the length after a change.
# A change is certain if the excesses of blocks over the usual length add up to a limit, in
# multiples of the threshold and of the scale of the noise. Each counts less an allowance, and at
# most by a share of the limit, so that an interruption of up to 50 steps is no drift.
LIMIT_THRESHOLDS, LIMIT_SCALES = 4.4, 8.0
ALLOWED_THRESHOLDS, ALLOWED_SCALES = 0.5, 1.25
BLOCK_SHARE = 0.36
MIN_SHARE = 0.8  # Share of the threshold that the change must have reached by then.

GROWTH_JOINED = 3  # Blocks that are joined to the shortest one in which growth is found.
GROWTH = 0.02  # Growth within the blocks to report, over the memory at their beginning.
GROWTH_BLOCKS = 12  # Minima that must grow one after the other.
GROWTH_LEVELS = 16  # Block lengths, each twice the one before.
MIN_GROWTH_BYTES = 8 << 20
LATE_SHARE = 0.8  # Growth in the second half over that in the first; less: it levels off.
MAX_JUMP = 3.0  # Largest growth between two minima over the mean; more: a jump.
REPEATED_GROWTH = 1.5  # Memory over that of the last report before growth is reported again.

_PARTS = {
    "data loading": "data_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "optimizer": "optimizer_ns",
    "host wait": "wait_ns",
    "garbage collection": "gc_ns",
}


class Change(NamedTuple):
    """A change that was found."""

    kind: str  # slow_step, drift or memory_growth, as in EVENT.kind.
    step: int  # The slow step, or the step after which the change was certain.
    text: str


class StepChanges:
    """Finds changes of the steps of a training as they are added.

    A slow step is at least `slow_factor` times as long as the median of the last 100 steps, and
    longer than all but 5 % of them. Slow steps that follow each other are one episode, reported
    once, and again if a step is twice as long. Episodes that recur, such as an evaluation every 500
    steps, are reported twice, unless one is longer than the others (by the sum of its steps) or
    comes after a longer time.

    Drift is found by a cumulative sum of the logarithms of the lengths of blocks of 20 steps (the
    mean of the middle half of each) over the usual length. That is determined from the first 200
    to 800 steady steps, depending on the noise, and anew after each change. Becoming faster is not
    reported, nor a return to a length that was reported before. A jump of 20 % is found within 100
    steps, an increase of 10 % over 500 steps within 300 steps after its end.

    Growing memory is found in minima of blocks of 60, 120, 240, ... steps, of which 12 in a row
    must grow without leveling off: 720 steps at least. Peaks, and growth that approaches a limit
    with a time constant of up to 500 steps, are not reported.

    False alarms of the noise models in tests/watch/test_step_changes.py: at most 10 slow steps per
    10,000 steps. Per million steps: growth 0; drift 4 if the lengths of batches differ by a factor
    of 3 at random, otherwise 0; drift 16 if the length itself wanders by 3 % (standard deviation)
    over hundreds of steps.

    Args:
        slow_factor: Length of a slow step over the median.
        drift_percent: Increase of the length of steps to report.

    Attributes:
        slow_limit_ns: Length from which a step is slow; `sys.maxsize` before 40 steps are known.
        usual_ns: Median length of the last 100 steps.
    """

    def __init__(self, *, slow_factor: float = 2.0, drift_percent: float = 10.0) -> None:
        self.slow_limit_ns = sys.maxsize
        self.usual_ns = 0
        self._episodes: deque[_Episode] = deque(maxlen=EPISODES)
        self._slow_factor = slow_factor
        self._warm_up = WARM_UP
        self._recent: deque[StepRow] = deque(maxlen=RECENT)
        self._usual: list[StepRow] = []
        self._block: list[StepRow] = []
        self._drift = _Drift(math.log1p(drift_percent / 100))
        self._growth = _Growth()

    def is_unusual(self, step: int, length_ns: int) -> bool:
        """Return True if a step longer than `slow_limit_ns` is to be reported.

        All of them must be passed, by the program's thread.
        """
        excess_ns, episodes = length_ns - self.usual_ns, self._episodes
        if episodes and step - episodes[-1].last <= EPISODE:
            latest = episodes.pop()
            is_longer = excess_ns > 2 * latest.longest_ns
            latest.last, latest.excess_ns = step, latest.excess_ns + excess_ns
            latest.longest_ns = max(latest.longest_ns, excess_ns)
        else:
            latest, is_longer = _Episode(step, step, excess_ns, excess_ns), False
        similar = [one for one in episodes if latest.excess_ns <= SIMILAR * one.excess_ns]
        gaps = [right.first - left.last for left, right in pairwise(similar)]
        recurs = gaps and latest.first - similar[-1].last <= LATEST_GAPS * max(gaps)
        episodes.append(latest)
        was_reported, latest.is_reported = latest.is_reported, latest.is_reported or not recurs
        return not recurs and (is_longer or not was_reported)

    def slow(self, row: StepRow) -> Change:
        """Describe a slow step; may be called by another thread than `add`."""
        rows = [*self._recent]
        usual_ns = median(one.length_ns for one in rows or [row])
        text = (
            f"step {row.step:,} took {scaled(row.length_ns, TIMES)}, "
            f"{row.length_ns / max(usual_ns, 1):.1f} times the median of {scaled(usual_ns, TIMES)}"
        )
        if found := grown(rows, [row]):
            text += f": {found[0]} took {scaled(found[1], TIMES)} more than usual"
        return Change("slow_step", row.step, text)

    def add(self, rows: Sequence[StepRow]) -> list[Change]:
        """Add the rows of complete steps in order, and return the drift and growth found.

        Rows with an event are ignored, as a capture slowed them.
        """
        changes: list[Change | None] = []
        healthy = [row for row in rows if row.event is None]
        place = min(self._warm_up, len(healthy))
        self._warm_up -= place
        while place < len(healthy):
            new = healthy[place : place + BLOCK - len(self._block)]
            place += len(new)
            self._recent.extend(new)
            self._block += new
            if len(self._block) == BLOCK:
                changes += self._drift_after(self._block), self._growth.add(self._block)
                self._block = []
        lengths = sorted([row.length_ns for row in self._recent])
        if len(lengths) >= MIN_KNOWN:
            self.usual_ns = usual_ns = lengths[len(lengths) // 2]
            recurring_ns = 1.1 * lengths[int(USUAL_SHARE * len(lengths))]
            self.slow_limit_ns = int(
                max(self._slow_factor * usual_ns, recurring_ns, usual_ns + MIN_EXCESS_NS)
            )
        return [change for change in changes if change is not None]

    def _drift_after(self, block: Sequence[StepRow]) -> Change | None:
        lengths = sorted([row.length_ns for row in block])
        if self._drift.is_collecting:
            self._usual = [*self._recent]
        middle = lengths[BLOCK // 4 : -BLOCK // 4]
        found = self._drift.add(block[0].step, math.log(max(sum(middle) / len(middle), 1)))
        if found is None:
            return None
        since, before_ns, after_ns = found
        text = (
            f"steps take {100 * (after_ns / before_ns - 1):.1f} % longer since about step "
            f"{since:,}: typically {scaled(after_ns, TIMES)}, before {scaled(before_ns, TIMES)}"
        )
        if part := grown(self._usual, [*self._recent][-3 * BLOCK :]):
            text += f"; {part[0]} takes {scaled(part[1], TIMES)} more"
        return Change("drift", block[-1].step, text)


class _Episode(Struct):
    """Slow steps that follow each other."""

    first: int
    last: int
    excess_ns: int
    """Time that its steps took longer than usual."""
    longest_ns: int
    """Longest excess of a step."""
    is_reported: bool = False


class _Drift:
    """Cumulative sums of the excess of the logarithms of lengths, in both directions."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._usual = self._scale = 0.0
        self._since = 0
        self._latest: deque[float] = deque(maxlen=LATEST_BLOCKS)
        self._reported: deque[float] = deque(maxlen=LATEST_BLOCKS)
        self._restart()

    def _restart(self) -> None:
        self._baseline: list[float] = []
        self._wanted = BASELINE_BLOCKS
        self._above = self._below = 0.0

    @property
    def is_collecting(self) -> bool:
        """True until the usual length is known."""
        return len(self._baseline) < self._wanted

    def add(self, step: int, level: float) -> tuple[int, float, float] | None:
        """Add a block that begins at `step`; return the start of drift and both lengths."""
        self._latest.append(level)
        if self.is_collecting:
            self._extend(level)
            return None
        excess = level - self._usual
        allowed = max(ALLOWED_THRESHOLDS * self._threshold, ALLOWED_SCALES * self._scale)
        limit = max(LIMIT_THRESHOLDS * self._threshold, LIMIT_SCALES * self._scale)
        if not self._above:
            self._since = step
        self._above = max(0.0, self._above + min(excess - allowed, BLOCK_SHARE * limit))
        self._below = max(0.0, self._below + min(-excess - allowed, BLOCK_SHARE * limit))
        if self._below >= limit:
            self._restart()
        elif self._above >= limit:
            self._above = limit
            after = median(self._latest)
            if after - self._usual >= MIN_SHARE * self._threshold:
                self._restart()
                known = any(abs(after - one) < self._threshold / 2 for one in self._reported)
                self._reported.append(after)
                return None if known else (self._since, math.exp(self._usual), math.exp(after))
        elif len(self._baseline) < 2 * self._wanted and not self._above and not self._below:
            self._extend(level)
        return None

    def _extend(self, level: float) -> None:
        self._baseline.append(level)
        if len(self._baseline) == BASELINE_BLOCKS:
            second = self._baseline[BASELINE_BLOCKS // 2 :]
            if median(self._baseline) - median(second) > self._threshold / 6:
                self._baseline = second  # Steps are still becoming faster.
        values = sorted(self._baseline)
        self._usual = median(values)
        # The upper quantile covers a slower regime that is a part of the healthy run.
        far = median(abs(value - self._usual) for value in values)
        self._scale = max(values[int(0.85 * len(values))] - self._usual, 1.48 * far)
        noisy = ALLOWED_SCALES * self._scale > ALLOWED_THRESHOLDS * self._threshold
        if len(values) == BASELINE_BLOCKS and noisy:
            self._wanted = 2 * BASELINE_BLOCKS


class _Growth:
    """Minima of memory in blocks of several lengths."""

    def __init__(self) -> None:
        self._reported_bytes = 0.0
        self._waiting: list[tuple[int, int]] = []
        self._clear()

    def _clear(self) -> None:
        self._minima = [deque[tuple[int, int]](maxlen=GROWTH_BLOCKS) for _ in range(GROWTH_LEVELS)]
        self._halves: list[tuple[int, int] | None] = [None] * GROWTH_LEVELS

    def add(self, block: Sequence[StepRow]) -> Change | None:
        """Add a block of steps; return growth that is now certain."""
        sizes = [row.allocated_bytes for row in block if row.allocated_bytes is not None]
        if sizes:
            self._waiting.append((block[0].step, min(sizes)))
        if len(self._waiting) < GROWTH_JOINED:
            return None
        first, now = self._waiting[0][0], min(least for _, least in self._waiting)
        least = now
        self._waiting.clear()
        for level, minima in enumerate(self._minima):
            minima.append((first, least))
            found = self._judged([*minima])
            if found is not None and now >= REPEATED_GROWTH * self._reported_bytes:
                self._reported_bytes = now
                self._clear()
                text = (
                    f"memory grows steadily by {scaled(found[1], SIZES)} per step since about step "
                    f"{found[0]:,} ({scaled(now, SIZES)} now)"
                )
                return Change("memory_growth", block[-1].step, text)
            half, self._halves[level] = self._halves[level], None
            if half is None:
                self._halves[level] = first, least
                break
            first, least = half[0], min(half[1], least)
        return None

    def _judged(self, minima: list[tuple[int, int]]) -> tuple[int, float] | None:
        """Return the start of growth, and bytes per step; None if it is not steady."""
        growth = [right[1] - left[1] for left, right in pairwise(minima)]
        total, half = sum(growth), len(growth) // 2
        late = sum(growth[-half:])
        if (
            len(minima) < GROWTH_BLOCKS
            or min(growth) <= 0
            or total < max(GROWTH * minima[0][1], MIN_GROWTH_BYTES)
            or max(growth) > MAX_JUMP * total / len(growth)
            or late < LATE_SHARE * sum(growth[:half])
        ):
            return None
        # The first minima may have grown by chance before the growth began.
        rate = late / max(minima[-1][0] - minima[-1 - half][0], 1)
        return max(minima[0][0], minima[-1][0] - int(total / rate)), rate


def _parts(row: StepRow) -> dict[str, int | None]:
    parts = {name: getattr(row, column) for name, column in _PARTS.items()}
    known = [value for name, value in parts.items() if name != "garbage collection"]
    others_ns = [value for value in known if value is not None]
    is_known = len(others_ns) == len(known)
    return {**parts, "other code": max(0, row.length_ns - sum(others_ns)) if is_known else None}


def grown(before: Sequence[StepRow], after: Sequence[StepRow]) -> tuple[str, float] | None:
    """Return the part whose median grew most, and by how much in ns."""
    if not before:
        return None
    excess_ns = median(row.length_ns for row in after) - median(row.length_ns for row in before)
    sides = [[_parts(row) for row in rows] for rows in (before, after)]
    growth = dict.fromkeys((*_PARTS, "other code"), 0.0)
    for name in growth:
        old, new = ([one for row in side if (one := row[name]) is not None] for side in sides)
        if old and new:
            growth[name] = median(new) - median(old)
    # Garbage collection is contained in other parts, and the host waits for parts on the device.
    collecting_ns, wait_ns = growth.pop("garbage collection"), growth.pop("host wait")
    if collecting_ns >= max(excess_ns / 2, 1):
        return "garbage collection", collecting_ns
    name = max(growth, key=growth.__getitem__)
    if growth[name] < excess_ns / 2 and wait_ns > growth[name]:
        return "host wait", wait_ns
    return (name, growth[name]) if growth[name] > 0 else None
