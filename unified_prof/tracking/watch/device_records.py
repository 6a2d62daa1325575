"""How whole a recording of torch.profiler's is, of what the device did."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from unified_prof.units import NS_PER_MS

_LAUNCH = re.compile(r"[a-z]+(LaunchKernel|LaunchCooperative|Memcpy|Memset|GraphLaunch)")
"""Calls of a device's runtime that put work on the device; operators have `::` in their names."""


def look_at(events: Any) -> tuple[dict[str, str], str | None]:
    """See whether what was launched has records of the device's, and on which streams.

    Returns facts, and what has to be said in a sentence.
    """
    from torch.autograd import DeviceType

    launches: set[int] = set()
    records: set[int] = set()
    busy_ns: dict[tuple[int, int], int] = {}
    kernels: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event.device_type() == DeviceType.CPU:
            if _LAUNCH.match(event.name()):
                launches.add(event.correlation_id())
            continue
        if event.is_user_annotation() or event.device_resource_id() < 0:
            continue  # a range drawn around work, or a wait for all streams: no work
        records.add(event.correlation_id())
        place = (event.device_index(), event.device_resource_id())
        busy_ns[place] = busy_ns.get(place, 0) + event.duration_ns()
        kernels[place] += 1
    lost = len(launches - records)
    facts = {
        "timeline_launches": str(len(launches)),
        "timeline_launches_without_record": str(lost),
    }
    note = None
    if launches and not records:
        note = (
            f"the timeline has no work of the device, although {lost:,} pieces were launched: "
            "does another profiler hold it (nsys, ncu, DCGM: one at a time is served), or may "
            "this user not look (NVreg_RestrictProfilingToAdminUsers, CAP_SYS_ADMIN)?"
        )
    elif lost:
        note = (
            f"the timeline lacks the device's records of {lost:,} of {len(launches):,} pieces "
            "of work: its buffers were full, or it failed"
        )
    main = {max((p for p in kernels if p[0] == d), key=kernels.__getitem__) for d, _ in kernels}
    beside = {place: ns for place, ns in busy_ns.items() if place not in main}
    if beside:
        facts["timeline_work_beside_main_streams"] = ", ".join(
            f"device {device} stream {stream}: {ns / NS_PER_MS:.3f} ms"
            for (device, stream), ns in sorted(beside.items())
        )
    return facts, note
