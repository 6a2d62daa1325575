"""The device's records of a generated workload: task logs, PMU counters, flips, frequencies."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.encode import Records, concatenated, records, write_slices
from tests.prof_generator.recipe import HWTS, V6, Recipe
from tests.prof_generator.tables import Tables
from tests.prof_generator.timing import DEVICE_COUNTER, Timing
from tests.prof_generator.workload import CORE, IS_MIX, KINDS, NO_CONTEXT, SQE, Placed
from unified_prof.decoders.prof.layouts import STARS_MAGIC, record_type

AI_CORES, VECTOR_CORES = 20, 40
CORE_MHZ = 1500
_FREQUENCIES_MHZ = (1500, 1200, 800)

EVENTS = {
    "ArithmeticUtilization": "0x49,0x4a,0x4b,0x4c,0x4d,0x4e,0x4f",
    "Custom": "0x8,0xa,0x500",
    "L2Cache": "0x500,0x502,0x504,0x506,0x508,0x50a",
    "Memory": "0x15,0x16,0x31,0x32,0xf,0x10,0x12,0x13",
    "MemoryAccess": "0x32,0x3d,0x3e,0x206,0x20c,0x50c,0x50d,0x50e",
    "MemoryL0": "0x1b,0x1c,0x21,0x22,0x27,0x28,0x29,0x2a",
    "MemoryUB": "0x10,0x13,0x37,0x38,0x3d,0x3e,0x43,0x44",
    "PipeUtilization": "0x8,0xa,0x9,0xb,0xc,0xd,0x54,0x55",
    "PipeUtilizationExct": "0x416,0x417,0x9,0x302,0xc,0x303,0x54,0x55",
    "ResourceConflictRatio": "0x64,0x65,0x66",
}
"""Events of the counters of each metric set."""
EVENTS_V6 = {
    "Custom": EVENTS["Custom"],
    "PipeUtilization": "0x501,0x301,0x1,0x701,0x202,0x203,0x34,0x35,0x714",
}

_TASK_START, _TASK_END, _CONTEXT_START, _CONTEXT_END = 0, 1, 34, 35
_CONTEXT_PMU, _BLOCK_PMU, _V6_PMU = 40, 41, 42
_SUBTASK_MIX = (6, 7)  # by main core
_FFTS_PLUS = 4
_FLIP, _MARK = 0x0E, 0x0A
_V6_MASTER = 1
_TIMES = ("timestamp", "end")


class DeviceSide:
    """Writes the records of one device that runs its share of a workload."""

    def __init__(
        self,
        recipe: Recipe,
        timing: Timing,
        tables: Tables,
        folder: Path,
        device: int,
        placed: Placed,
    ) -> None:
        self.recipe, self.timing, self.tables = recipe, timing, tables
        self.folder, self.device, self.placed = folder, device, placed
        self.rng = np.random.default_rng([recipe.seed, 2, device])
        rows = np.flatnonzero(placed.tasks["device"] == device)
        self.tasks = placed.tasks[rows]
        self.task_id, self.batch = placed.task_id[rows], placed.batch[rows]
        self.start = timing.device_ticks(placed.start_ns[rows])
        self.end = timing.device_ticks(placed.end_ns[rows])
        self.mixed = np.flatnonzero(IS_MIX[self.tasks["kind"]])

    def write(self) -> None:
        """Write all files of tasks."""
        self._write_task_log()
        self._write_flips()
        self._write_frequencies()
        if self.recipe.pmu:
            self._write_pmu()

    def add_to_task_log(self, extra: Records) -> None:
        """Add records of samples to those of tasks; call it before `write`."""
        self._extra = extra

    _extra: Records | None = None

    def _expect(self, rows: NDArray[np.int64], context: int, start: Any, end: Any) -> None:
        tasks = self.tasks[rows]
        self.tables.add(
            "TASK", len(rows), startNs=self.timing.device_ns(start),
            endNs=self.timing.device_ns(end), deviceId=self.device,
            taskType=np.array([k.name for k in KINDS], object)[tasks["kind"]], contextId=context,
            streamId=tasks["stream"], taskId=self.task_id[rows],
        )  # fmt: skip

    def _write_task_log(self) -> None:
        count = len(self.tasks)
        whole = np.setdiff1d(np.arange(count), self.mixed)
        self._expect(whole, NO_CONTEXT, self.start[whole], self.end[whole])
        if self.recipe.platform in HWTS:
            self._write_hwts()
            return
        sqe = SQE[self.tasks["kind"]]
        parts = []
        for function, ticks in ((_TASK_START, self.start), (_TASK_END, self.end)):
            fields: dict[str, Any] = {
                "w0": function | sqe << 10,
                "magic": STARS_MAGIC,
                "timestamp": ticks,
            }
            if self.recipe.platform in V6:
                fields.update(task_id_low=self.task_id & 0xFFFF, task_id_high=self.task_id >> 16)
                parts.append(records("stars_acsq_v6", count, **fields))
            else:
                fields.update(stream_id=self.tasks["stream"], task_id=self.task_id)
                parts.append(records("stars_acsq", count, **fields))
        parts += self._mix_context_log()
        times = [part["timestamp"] for part in parts]
        if self._extra is not None and self.recipe.platform not in V6:
            parts.append(self._extra)
            times.append(self._extra["timestamp"])
        self._write("stars_soc", parts, times)

    def _mix_context_log(self) -> list[Records]:
        """Return the log of the single context of every MIX task."""
        rows = self.mixed
        if not len(rows):
            return []
        core = CORE[self.tasks["kind"][rows]]
        start, end = self.start[rows] + np.uint64(1), self.end[rows] - np.uint64(1)
        self._expect(rows, 0, start, end)
        self._expect(rows, NO_CONTEXT, self.start[rows], self.end[rows])
        return [
            records(
                "stars_ffts_log",
                len(rows),
                w0=function,
                magic=STARS_MAGIC,
                timestamp=ticks,
                stream_id=self.tasks["stream"][rows],
                task_id=self.task_id[rows],
                subtask_type=np.array(_SUBTASK_MIX)[core],
                ffts_type_word=_FFTS_PLUS << 13,
            )
            for function, ticks in ((_CONTEXT_START, start), (_CONTEXT_END, end))
        ]

    def _write_hwts(self) -> None:
        parts = [
            records(
                "hwts_log",
                len(self.tasks),
                w0=tag,
                task_type=SQE[self.tasks["kind"]],
                task_id=self.task_id,
                timestamp=ticks,
                stream_word=self.tasks["stream"],
            )
            for tag, ticks in ((_TASK_START, self.start), (_TASK_END, self.end))
        ]
        self._write("hwts", parts, [part["timestamp"] for part in parts])

    def _write_flips(self) -> None:
        """Write a flip directly after the last task of every round."""
        if not len(self.placed.flips):
            return
        first = self.placed.flips[self.placed.tasks["device"][self.placed.flips] == self.device]
        tasks = self.placed.tasks[first]
        ticks = self.timing.device_ticks(self.placed.start_ns[first]) - np.uint64(1)
        part = records(
            "ts_task_flip",
            len(first),
            func_type=_FLIP,
            timestamp=ticks,
            stream_id=tasks["stream"],
            flip_num=self.placed.batch[first],
        )
        self._write("ts_track", [part], [ticks])

    def _write_frequencies(self) -> None:
        number = min(self.recipe.frequency_changes, 55)
        ticks = DEVICE_COUNTER + (np.arange(number) + 1) * 60_000
        mhz = np.array(_FREQUENCIES_MHZ)[np.arange(1, number + 1) % len(_FREQUENCIES_MHZ)]
        if number:
            words = np.zeros((1, 110), np.uint64)
            words[0, : 2 * number : 2], words[0, 1 : 2 * number : 2] = ticks, mhz
            part = records("lpm_freq", 1, count=number, words=words)
            self._write("lpmFreqConv", [part], [np.zeros(1)])
        if self.recipe.platform in (*HWTS, *V6):
            return
        times = np.r_[self.timing.begin_ns, self.timing.device_ns(ticks)]
        shown = np.r_[CORE_MHZ, mhz]
        if self.recipe.ended:
            times, shown = np.r_[times, self.timing.end_ns], np.r_[shown, shown[-1]]
        self.tables.add(
            "AICORE_FREQ", len(times), deviceId=self.device, timestampNs=times, freq=shown
        )

    def _write_pmu(self) -> None:
        core = CORE[self.tasks["kind"]]
        alone = np.flatnonzero((core >= 0) & ~IS_MIX[self.tasks["kind"]])
        if self.recipe.platform in HWTS:
            alone = alone[np.argsort(self.end[alone], kind="stable")]
            part = self._counters(
                "aicore_task", alone, task_id=self.task_id[alone],
                stream_word=self.tasks["stream"][alone],
            )  # fmt: skip
            self._expect_pmu(alone, NO_CONTEXT, core[alone], part["total_cycle"], part["pmu"])
            self._write("aicore", [part], [self.end[alone]])
            return
        if self.recipe.platform in V6:
            part = self._counters(
                "v6_pmu", alone, self.start, self.end, w0=_V6_PMU, flags=_V6_MASTER,
                core_type=core[alone], task_id_low=self.task_id[alone] & 0xFFFF,
                task_id_high=self.task_id[alone] >> 16,
            )  # fmt: skip
            self._expect_pmu(alone, NO_CONTEXT, core[alone], part["total_cycle"], part["pmu"])
            self._write("ffts_profile", [part], [part["end"]])
            return
        part = self._counters(
            "ffts_context_pmu", alone, self.start, self.end, w0=_CONTEXT_PMU,
            stream_id=self.tasks["stream"][alone], task_id=self.task_id[alone],
            ffts_type_word=core[alone] << 13,
        )  # fmt: skip
        self._expect_pmu(alone, NO_CONTEXT, core[alone], part["total_cycle"], part["pmu"])
        parts = [part, *self._mix_pmu(core)]
        self._write("ffts_profile", parts, [part["end"] for part in parts])

    def _mix_pmu(self, core: NDArray[np.int64]) -> list[Records]:
        """Return the counters of MIX tasks' main cores, and a record per block of the others."""
        rows = self.mixed
        if not len(rows):
            return []
        subtask = np.array(_SUBTASK_MIX)[core]
        ids = {"stream_id": self.tasks["stream"], "task_id": self.task_id}
        main = self._counters(
            "ffts_context_pmu", rows, self.start + np.uint64(1), self.end - np.uint64(1),
            w0=_CONTEXT_PMU, subtask_word=subtask[rows], ffts_type_word=_FFTS_PLUS << 13,
            **{name: values[rows] for name, values in ids.items()},
        )  # fmt: skip
        self._expect_pmu(rows, 0, core[rows], main["total_cycle"], main["pmu"])
        number = self.tasks["block_num"][rows] * self.tasks["ratio"][rows]
        owner = np.repeat(rows, number)
        blocks = self._counters(
            "ffts_block_pmu", owner, self.start + np.uint64(1), self.end - np.uint64(1),
            w0=_BLOCK_PMU, subtask_type=subtask[owner], ffts_type_byte=_FFTS_PLUS << 5,
            core=1 - core[owner], block_id=np.arange(len(owner)) % 64,
            **{name: values[owner] for name, values in ids.items()},
        )  # fmt: skip
        first = np.cumsum(number) - number
        cycles = np.add.reduceat(blocks["total_cycle"], first)
        self._expect_pmu(rows, 0, 1 - core[rows], cycles, np.add.reduceat(blocks["pmu"], first))
        return [main, blocks]

    def _counters(
        self, layout: str, rows: Any, start: Any = None, end: Any = None, **fields: Any
    ) -> Records:
        """Return PMU records of tasks with random counts."""
        count = len(rows)
        cycles = self.rng.integers(1_000, 1_000_000, count)
        shape = record_type(layout)["pmu"].shape
        pmu = (cycles[:, None] * self.rng.random((count, *shape))).astype(np.uint64)
        if start is not None:
            fields |= {"start": start[rows], "end": end[rows]}
        return records(layout, count, total_cycle=cycles, pmu=pmu, **fields)

    def _expect_pmu(self, rows: Any, context: int, core: Any, cycles: Any, pmu: Any) -> None:
        """Add the expected counts that no formula changes."""
        hwts = self.recipe.platform in HWTS
        one_kind = hwts or self.recipe.platform == 7
        prefix = np.array(["", ""] if one_kind else ["aic_", "aiv_"], object)[core]
        shown = [("total_cycles", cycles)]
        if self.recipe.pmu == "Custom":
            for place, event in enumerate(EVENTS["Custom"].split(",")):
                shown.append((f"r{event[2:]}", pmu[:, place]))
        for name, values in shown:
            self.tables.add(
                f"{'UPROF_' * hwts}TASK_PMU_INFO", len(rows), name=prefix + name,
                value=np.asarray(values, np.int64),
                startNs=self.timing.device_ns(self.start[rows] + np.uint64(context == 0)),
                contextId=context, streamId=self.tasks["stream"][rows], taskId=self.task_id[rows],
                deviceId=self.device,
            )  # fmt: skip

    def _write(self, name: str, parts: list[Records], times: list[Any]) -> None:
        """Write records in the order of time, cut anywhere."""
        order = np.argsort(np.concatenate(times), kind="stable")
        path = self.folder / f"{name}.data.{self.device}"
        write_slices(path, concatenated(parts)[order].tobytes(), self.recipe.device_slice_bytes)
