"""Records calls and host records of all kinds, like the host's profiler."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.prof_generator.encode import HostFiles, Names, Records, host_records, records
from tests.prof_generator.recipe import PROCESS_ID, Recipe
from tests.prof_generator.tables import Tables
from tests.prof_generator.timing import Int64, Timing
from tests.prof_generator.workload import IS_MIX, NO_CONTEXT, Placed, Workload
from unified_prof.decoders.prof.layouts import HOST_MAGIC

ACL, NODE, COMMUNICATION, RUNTIME, MARKS = 20000, 10000, 5500, 5000, 20500
US = 1000
FIRST_CALL_NS = 1_000 * US
"""Start of the workload, in ns after the session's start."""


class HostRecorder:
    """The files of the host and the workload that it launches."""

    def __init__(self, recipe: Recipe, timing: Timing, tables: Tables) -> None:
        self.recipe, self.timing, self.tables = recipe, timing, tables
        self.files, self.names = HostFiles(), Names()
        self.workload = Workload(recipe)
        self.rng = np.random.default_rng([recipe.seed, 1])

    def call(
        self,
        level: int,
        name: str,
        thread: Any,
        begin_ns: Any,
        end_ns: Any,
        item: Any = 0,
        shown: Any = None,
    ) -> None:
        """Record calls; `shown` is the name in the database if it differs from `name`."""
        count = len(np.atleast_1d(begin_ns))
        begin, end = self.timing.host_ticks(begin_ns), self.timing.host_ticks(end_ns)
        call = records(
            "api_event", count, magic=HOST_MAGIC, level=level, type=self.names.type_id(level, name),
            thread_id=thread, begin=begin, end=end, item_id=item,
        )  # fmt: skip
        self.files.add("unaging.api_event.data", call, "begin")
        self.tables.add(
            "CANN_API", count, startNs=self.timing.host_ns(begin), endNs=self.timing.host_ns(end),
            type=level, globalTid=PROCESS_ID << 32 | np.asarray(thread, np.int64),
            name=name if shown is None else shown,
        )  # fmt: skip

    def record(
        self, file_name: str, layout: str, level: int, thread: Any, moment_ns: Any, **fields: Any
    ) -> Records:
        """Record one record per moment in a file of that name."""
        count = len(np.atleast_1d(moment_ns))
        kind = file_name.rpartition(".")[2]
        part = host_records(
            layout, count, level, self.names.type_id(level, kind), thread_id=thread,
            timestamp=self.timing.host_ticks(moment_ns), **fields,
        )  # fmt: skip
        self.files.add(file_name, part)
        return part

    def task_columns(self, placed: Placed, rows: Int64) -> dict[str, NDArray[Any]]:
        """Return the columns that identify tasks in other tables; none without a device."""
        if self.recipe.host_only:
            return {}
        mixed = IS_MIX[placed.tasks["kind"][rows]]
        # The task of a MIX is its context, which starts a tick later.
        start = self.timing.device_ticks(placed.start_ns[rows]) + mixed.astype(np.uint64)
        return {
            "startNs": self.timing.device_ns(start),
            "contextId": np.where(mixed, 0, NO_CONTEXT),
            "streamId": placed.tasks["stream"][rows],
            "taskId": placed.task_id[rows],
            "deviceId": placed.tasks["device"][rows],
        }
