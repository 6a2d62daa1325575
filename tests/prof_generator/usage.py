"""Samples of the host in a generated recording, and their expected rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.prof_generator.control import CARD, CARD_MBITS, CLOCK_HZ, DISK_HZ, MEMORY_KB
from tests.prof_generator.encode import SLICE_BYTES, write_slices
from tests.prof_generator.recipe import PROCESS_ID, Recipe
from tests.prof_generator.tables import Tables
from tests.prof_generator.timing import Timing

_STEP_NS = 20_000_000
_STEP_S = _STEP_NS / 1e9
_STAT = "{thread} (work er)) S 1 1 1 0 -1 0 0 0 0 0 {user} {system}" + " 0" * 23 + " {cpu} 0 0\n"
_CALLS = ("read", "futex", "ioctl", "not_a_call")
_THREAD_CALLS = ("pthread_mutex_lock", "pthread_once", "pthread_create")


class UsageSide:
    """Writes the chosen samples of the host."""

    def __init__(self, recipe: Recipe, timing: Timing, tables: Tables, folder: Path) -> None:
        self.recipe, self.timing, self.tables, self.folder = recipe, timing, tables, folder
        self.rng = np.random.default_rng([recipe.seed, 4])
        self.index = np.arange(recipe.samples)
        self.moment = (self.index + 1) * _STEP_NS
        self.host_ns = (timing.host_monotonic_ns + self.moment).tolist()

    def write(self) -> None:
        """Write the files that the recipe names."""
        if not self.recipe.samples:
            return
        for name in self.recipe.host_usage:
            write: Callable[[], None] = getattr(self, f"_{name}")
            write()

    def _file(self, name: str, text: str) -> None:
        write_slices(self.folder / f"host_{name}.data", text.encode(), SLICE_BYTES)

    def _mem(self) -> None:
        pages = self.rng.integers(1, 1 << 24, len(self.index))
        rows = zip(self.host_ns, pages.tolist(), strict=True)
        self._file("mem", "".join(f"{time} 9 {page} 8 7 0 6 0\n" for time, page in rows))
        self.tables.add(
            "HOST_MEM_USAGE",
            len(pages) - 1,
            timestampNs=self.timing.begin_ns + self.moment[:-1],
            usage=pages[1:] * 4 / MEMORY_KB * 100,
        )

    def _network(self) -> None:
        moved = self.rng.integers(1, 1 << 24, (len(self.index), 2))
        total = np.cumsum(moved, axis=0).tolist()
        zeros = " 0" * 7
        self._file(
            "network",
            "".join(
                f"time {time}\n{CARD}: {received}{zeros} {sent}{zeros}\nlo: 5{zeros} 5{zeros}\n"
                for time, (received, sent) in zip(self.host_ns, total, strict=True)
            ),
        )
        speed = moved[1:].sum(axis=1) / _STEP_S
        self.tables.add(
            "HOST_NETWORK_USAGE",
            len(speed),
            timestampNs=self.timing.begin_ns + self.moment[:-1],
            speed=speed,
            usage=speed / (CARD_MBITS * 125_000) * 100,
        )

    def _cpu(self) -> None:
        """Two threads on their own CPUs; each uses 0 to 2 of the 2 jiffies of an interval."""
        used = self.rng.integers(0, 3, (len(self.index), 2))
        total = np.cumsum(used, axis=0).tolist()
        blocks = []
        for place, (time, jiffies) in enumerate(zip(self.host_ns, total, strict=True)):
            blocks.append(f"time {time}\n{100 + place * _STEP_S:.2f} 50.00\n")
            for thread, count in enumerate(jiffies):
                blocks.append(
                    _STAT.format(
                        thread=PROCESS_ID + thread,
                        user=count // 2,
                        system=count - count // 2,
                        cpu=thread * 4,
                    )
                )
        self._file("cpu", "".join(blocks))
        count = len(self.index) - 1
        self.tables.add(
            "CPU_USAGE",
            2 * count,
            timestampNs=np.repeat(self.timing.begin_ns + self.moment[:-1], 2),
            cpuId=np.tile([0, 4], count),
            usage=used[1:].ravel() / (_STEP_S * CLOCK_HZ) * 100,
        )

    def _disk(self) -> None:
        read = self.rng.integers(0, 90_000, len(self.index)) / 100
        start = self.timing.host_monotonic_ns
        rows = zip(self.index.tolist(), read.tolist(), strict=True)
        self._file(
            "disk",
            f"start_time {start}\nTotal DISK READ : 0.00 B/s\n"
            + "".join(
                f"01:02:03 {PROCESS_ID} be/4 me {rate:.2f} K/s 2.00 M/s 0.00 % {place % 9}.50%\n"
                for place, rate in rows
            ),
        )
        self.tables.add(
            "HOST_DISK_USAGE",
            len(read),
            timestampNs=self.timing.begin_ns + self.index * (10**9 // DISK_HZ),
            readRate=read * 1024,
            writeRate=2.0 * 1024 * 1024,
            usage=self.index % 9 + 0.5,
        )

    def _syscall(self) -> None:
        lines = [
            f"  {7 + place * 0.5:.3f} ( 0.125 ms): py/{PROCESS_ID + place % 2}"
            f" {_CALLS[place % 4]}(fd: 1) = 0\n"
            for place in self.index.tolist()
        ]
        self._file("syscall", "".join(lines))
        listed = self.index[self.index % 4 < 3]
        start = self.timing.begin_ns + listed * 500_000
        self.tables.add(
            "OSRT_API",
            len(listed),
            name=np.array(_CALLS, object)[listed % 4],
            globalTid=PROCESS_ID << 32 | (PROCESS_ID + listed % 2),
            startNs=start,
            endNs=start + 125_000,
        )

    def _pthreadcall(self) -> None:
        lines = [
            f"[pid {PROCESS_ID}] {50 + place * 0.25:.6f} py->{_THREAD_CALLS[place % 3]}(1, 2) = 0"
            " <0.000250>\n"
            for place in self.index.tolist()
        ]
        self._file("pthreadcall", "".join(lines))
        shown = self.index[self.index % 3 != 1]
        start = self.timing.begin_ns + shown * 250_000_000
        self.tables.add(
            "OSRT_API",
            len(shown),
            name=np.array(_THREAD_CALLS, object)[shown % 3],
            globalTid=PROCESS_ID << 32 | PROCESS_ID,
            startNs=start,
            endNs=start + 250_000,
        )
