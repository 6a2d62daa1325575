"""Times of devices and operations, worked out from real traces by TraceLens' definitions."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.test_skyline import breakdown_of, summary_of
from tests.cli.test_report import uprof

CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def ns(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100_bert-small", "mi300_bert-small", "h100_vit", "mi300_vit"])
def test_each_operation_has_the_work_that_it_launched_itself(
    name: str, shared: Path, tmp_path: Path
) -> None:
    trace = shared / "samples" / "kineto" / f"{name}.json.gz"
    with gzip.open(trace) as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    ranges: defaultdict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for one in events:
        if one.get("cat") == "cpu_op":
            ranges[one["tid"]].append((*ns(one), one["name"]))
    calls = {one["args"]["correlation"]: one for one in events if one.get("cat") in CALLS}
    expected: Counter[str] = Counter()
    work = [one for one in events if one.get("cat") in WORK]
    for one in work:
        call = calls[one["args"]["correlation"]]
        begin, end = ns(call)
        around = [own for own in ranges[call["tid"]] if own[0] <= begin and end <= own[1]]
        expected[max(around)[2]] += ns(one)[1] - ns(one)[0]
    report = tmp_path / "report.db"
    assert uprof("import", trace, "-o", report).returncode == 0
    rows = breakdown_of(report, "self").rows
    (device,) = summary_of(report).devices
    assert {row.name: row.total_ns for row in rows if row.total_ns} == dict(expected)
    assert device.window_ns == max(ns(one)[1] for one in work) - min(ns(one)[0] for one in work)
    # One stream: nothing runs beside anything.
    assert device.busy_ns == sum(expected.values())
