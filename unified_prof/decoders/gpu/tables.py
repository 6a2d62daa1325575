"""Joins the parts of a recording and writes all tables of what ran on host and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unified_prof.decoders.gpu import extra_tables, hosts
from unified_prof.decoders.gpu.correlation import Correlator
from unified_prof.decoders.gpu.host_tables import HostTables
from unified_prof.decoders.gpu.memory import Allocations
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.gpu.task_tables import HasColumn, TaskTables
from unified_prof.vocabulary import NOT_AVAILABLE


def write(
    parts: Parts,
    base_ns: int,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> int:
    """Write everything but what describes the recording; return how many tasks were joined.

    Args:
        parts: All that was read.
        base_ns: What makes its times Unix times.
        has_column: Whether the revision being written has (table, column); what it lacks and
            uprof keeps in tables of its own is not written twice.
        data_types: ENUM_HCCL_DATA_TYPE of that revision, name -> id.
        progress: Told in a few words what is going on.
    """
    no_name = parts.sink.strings.intern(NOT_AVAILABLE)
    progress("joining host events")
    allocations = Allocations(
        parts.sink,
        base_ns,
        no_name,
        component=parts.memory_component,
        adds_up=parts.adds_up_allocations,
    )
    with hosts.walk(parts, HostTables(parts, base_ns), allocations) as calls:
        progress("joining launches and kernels")
        correlator = Correlator(parts, base_ns)
        with correlator.join(calls) as tasks:
            tables = TaskTables(
                parts,
                base_ns,
                main_process=parts.main_process,
                has_column=has_column,
                data_types=data_types or {},
            )
            tables.write(tasks)
    extra_tables.write(parts, base_ns)
    return correlator.joined
