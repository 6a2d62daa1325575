"""api_statistic: the durations of the host's calls by level and name."""

from __future__ import annotations

import numpy as np

from unified_prof.analysis.read import whole_tables
from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import Delivery, cell
from unified_prof.export.mindstudio.numbers import half_away, trimmed
from unified_prof.export.mindstudio.recording import Ints, Recording
from unified_prof.export.mindstudio.registry import deliverable

_HEADER = (
    *("Device_id", "Level", "API Name"),
    *("Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance"),
)


@deliverable("api_statistic", tables=("CANN_API",))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, in the order of the names' bytes, then of the levels' numbers."""
    found = whole_tables.integers(
        recording.source, "CANN_API", ["startNs", "endNs", "type", "name"], narrow=["type", "name"]
    )
    keep = recording.times("CANN_API", found["startNs"], found["endNs"])
    found = {name: values[keep] for name, values in found.items()}
    levels = whole_tables.names(recording.source, "ENUM_API_TYPE")
    duration = found["endNs"] - found["startNs"]
    order = np.lexsort((found["type"], found["name"]))  # stable: calls stay in order in a group
    name, level, duration = found["name"][order], found["type"][order], duration[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (name[1:] != name[:-1]) | (level[1:] != level[:-1])
    starts = np.flatnonzero(new)
    rows = []
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        text, number = recording.text(int(name[start])), int(level[start])
        row = ("host", levels.get(number, ""), cell(text), *_figures(duration[start:end]))
        rows.append((text.encode("utf-8", "surrogateescape"), number, ",".join(row)))
    rows.sort()
    delivery.table("api_statistic", _HEADER, len(rows), [[line for _, _, line in rows]])


def _figures(duration_ns: Ints) -> tuple[str, ...]:
    """Return total, count, average, least, most and variance, in microseconds.

    Summed one after the other in float64, and the variance round the rounded average, as the
    vendor does: where a third decimal is a close call, that decides it.
    """
    us = numbers.as_doubles(duration_ns)
    count = len(us)
    total = float(np.add.accumulate(us)[-1])
    mean = half_away(total / count)
    squares = float(np.add.accumulate((us - mean) ** 2)[-1])
    return (
        trimmed(total),
        str(count),
        *(trimmed(one) for one in (mean, float(us.min()), float(us.max()))),
        trimmed(half_away(squares / count)),
    )
