"""A sink that collects decoded columns, with texts resolved from string ids."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.base.columns import Column

Tables = dict[str, dict[str, NDArray[Any]]]

TEXT_COLUMNS = {
    "CANN_API": ("name",),
    "COMMUNICATION_OP": ("opName", "groupName", "algType", "opType"),
    "COMMUNICATION_TASK_INFO": ("name", "taskType", "groupName"),
    "COMPUTE_TASK_INFO": (
        *("name", "taskType", "opType", "inputFormats", "inputDataTypes", "inputShapes"),
        *("outputFormats", "outputDataTypes", "outputShapes", "attrInfo", "opState"),
        *("hf32Eligible", "gridDim", "blockDim"),
    ),
    "HBM": ("type",),
    "LLC": ("mode",),
    "MSTX_EVENTS": ("message", "domainId"),
    "NPU_MEM": ("type",),
    "NPU_OP_MEM": ("operatorName", "type", "component"),
    "OSRT_API": ("name",),
    "QOS": ("eventName",),
    "SAMPLE_PMU_SUMMARY": ("metric", "coreType"),
    "SAMPLE_PMU_TIMELINE": ("coreType",),
    "SIO": ("name",),
    "TASK": ("taskType",),
    "TASK_PMU_INFO": ("name",),
    "UPROF_TASK_PMU_INFO": ("name",),
}
"""Columns that hold ids of STRING_IDS."""


class StringIds:
    """A string pool with dense ids in the order of first use."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def intern(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))

    def intern_all(self, texts: Iterable[str]) -> NDArray[np.int64]:
        return np.array([self.intern(text) for text in texts], np.int64)


class MemorySink:
    """Collects batches of columns, as a database would store them."""

    def __init__(self) -> None:
        self.strings = StringIds()
        self.anomalies: Counter[str] = Counter()
        self._batches: dict[str, list[dict[str, NDArray[Any]]]] = {}

    def write(self, table: str, columns: Mapping[str, Column]) -> int:
        arrays = {name: np.asarray(values) for name, values in columns.items()}
        lengths = {len(values) for values in arrays.values() if values.ndim}
        assert len(lengths) <= 1, f"{table}: columns of lengths {lengths}"
        rows = lengths.pop() if lengths else 1
        batch = {n: v if v.ndim else np.repeat(v[None], rows) for n, v in arrays.items()}
        self._batches.setdefault(table, []).append(batch)
        return rows

    def anomaly(self, name: str, count: int = 1, detail: str = "") -> None:
        if count:
            self.anomalies[name] += count

    def fact(self, name: str, value: object) -> None:
        """Ignore provenance: no test of a decoder reads it."""

    def tables(self) -> Tables:
        """Return every table that has rows."""
        result: Tables = {}
        texts = np.array([*self.strings.ids, ""], object)
        for table, batches in self._batches.items():
            columns = {
                name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]
            }
            for name in TEXT_COLUMNS.get(table, ()):
                if name in columns:
                    columns[name] = texts[columns[name].astype(np.int64)]
            if len(next(iter(columns.values()))):
                result[table] = columns
        return result


def with_tasks(tables: Tables) -> Tables:
    """Add stream, task, context and start to the rows about tasks that have a TASK row.

    Rows about other tasks are left out.
    """
    task = tables.get("TASK", {})
    if not task:
        return tables
    order = np.argsort(task["globalTaskId"], kind="stable")
    ids = task["globalTaskId"][order]
    result = dict(tables)
    pmu = ("TASK_PMU_INFO", "UPROF_TASK_PMU_INFO")
    for table in ("COMPUTE_TASK_INFO", "MEMCPY_INFO", *pmu):
        if table not in tables:
            continue
        columns = tables[table]
        place = np.minimum(np.searchsorted(ids, columns["globalTaskId"]), len(ids) - 1)
        known = ids[place] == columns["globalTaskId"]
        row = order[place[known]]
        result[table] = {name: values[known] for name, values in columns.items()} | {
            name: task[name][row]
            for name in ("startNs", "streamId", "taskId", "deviceId", "contextId")
        }
    return result
