"""Device and operation times equal those recomputed from the raw trace."""

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.test_skyline import breakdown_of, summary_of
from tests.cli.test_report import uprof

CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")
TASKS = ("kernel", "gpu_memcpy", "gpu_memset")


def interval_ns(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100_bert-small", "mi300_bert-small", "h100_vit", "mi300_vit"])
def test_operation_has_the_time_of_its_kernels(name: str, shared: Path, tmp_path: Path) -> None:
    trace = shared / "samples" / "kineto" / f"{name}.json.gz"
    with gzip.open(trace) as file:
        events = [one for one in json.load(file)["traceEvents"] if one.get("ph") == "X"]
    ranges: defaultdict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for one in events:
        if one.get("cat") == "cpu_op":
            ranges[one["tid"]].append((*interval_ns(one), one["name"]))
    calls = {one["args"]["correlation"]: one for one in events if one.get("cat") in CALLS}
    expected: Counter[str] = Counter()
    tasks = [one for one in events if one.get("cat") in TASKS]
    for one in tasks:
        call = calls[one["args"]["correlation"]]
        begin, end = interval_ns(call)
        enclosing = [op for op in ranges[call["tid"]] if op[0] <= begin and end <= op[1]]
        expected[max(enclosing)[2]] += interval_ns(one)[1] - interval_ns(one)[0]
    report = tmp_path / "report.db"
    assert uprof("import", trace, "-o", report).returncode == 0
    rows = breakdown_of(report, "self").rows
    (device,) = summary_of(report).devices
    assert {row.name: row.total_ns for row in rows if row.total_ns} == dict(expected)
    first, last = min(map(interval_ns, tasks))[0], max(interval_ns(one)[1] for one in tasks)
    assert device.window_ns == last - first
    # There is one stream: no tasks overlap.
    assert device.busy_ns == sum(expected.values())
