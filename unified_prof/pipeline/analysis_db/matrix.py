"""CommAnalyzerMatrix as torch_npu has it: of every kind of collective the best and worst links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from unified_prof.pipeline.analysis_db.collectives import Collective, ratio

# In the order in which they are tried where several begin at one place.
_KINDS = re.compile(
    "send|reduce|invalid|broadcast|allreduce|receive|allgather|reducescatter|scatter|alltoall|"
    "alltoallv|alltoallvc|batchsendrecv"
)


class _Link(NamedTuple):
    name: str
    transport: str | None
    size_mb: float
    ms: float
    bandwidth: float


def rows(placed: Iterable[tuple[Collective, str, str]]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of collectives with their step and type."""
    links: dict[tuple[str, str, str, str, tuple[str, str]], list[_Link]] = {}
    for one, step, kind in placed:
        for ranks, (transport, size, ms) in one.by_link().items():
            key = (step, kind, _operation(one.name), one.group, ranks)
            link = _Link(one.name, transport, size, ms, ratio(size, ms))
            links.setdefault(key, []).append(link)
    for (step, kind, operation, group, ranks), found in links.items():
        found.sort(key=lambda link: link.bandwidth, reverse=True)
        chosen = {"top1": found[0], "middle": found[len(found) // 2], "bottom1": found[-1]}
        if len(found) >= 2:
            chosen["bottom2"] = found[-2]
        if len(found) >= 3:
            chosen["bottom3"] = found[-3]
        size, ms = sum(one.size_mb for one in found), sum(one.ms for one in found)
        chosen["total"] = _Link("", found[0].transport, size, ms, ratio(size, ms))
        for place, link in chosen.items():
            yield (
                *(f"{operation}-{place}", group, *ranks, link.transport),
                *(link.size_mb, link.ms, link.bandwidth, step, kind, link.name),
            )


def _operation(name: str) -> str:
    found = _KINDS.search(name.lower())
    return found.group() if found else name.partition("__")[0]
