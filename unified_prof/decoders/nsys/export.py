"""Decodes one export into a sink: reads its tables, joins them, writes those of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from unified_prof.columns import Sink, Tables
from unified_prof.decoders.gpu import tables as gpu_tables
from unified_prof.decoders.gpu.found import Found
from unified_prof.decoders.gpu.parts import Parts
from unified_prof.decoders.gpu.task_tables import HasColumn
from unified_prof.decoders.nsys import calls, ranges, session, tasks
from unified_prof.decoders.nsys.fields import Fields, Texts
from unified_prof.decoders.nsys.nccl import NcclCalls
from unified_prof.decoders.nsys.others import Others
from unified_prof.decoders.nsys.payloads import Payloads
from unified_prof.errors import RawFormatError

NAME = "nsys"

_ONE_OF = (tasks.KERNELS, tasks.COPIES, tasks.GRAPHS, ranges.RANGES, calls.CALLS)


def decode(
    path: object,
    tables: Tables,
    sink: Sink,
    *,
    has_column: HasColumn = lambda table, column: True,
    data_types: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Found:
    """Decode the tables of an export, in memory that their length does not change.

    Args:
        path: What messages call the export.
        tables: Its tables.
        sink: Takes the rows of the msprof tables and of those of torch_npu and uprof.
        has_column: Whether the revision being written has (table, column).
        data_types: ENUM_HCCL_DATA_TYPE of that revision, name -> id.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: it holds nothing that can be shown.
        UprofError: the file is damaged.
    """
    if not any(tables.columns(table) for table in _ONE_OF):
        raise RawFormatError(
            f"{path}: holds no events of Nsight Systems",
            hint=f"expected one of the tables {', '.join(_ONE_OF)}",
            slug="not-a-recording",
        )
    when = session.times(tables)
    texts = Texts(tables)
    try:
        with Parts(sink) as parts:
            fields = Fields(parts, tables, texts)
            progress("reading events")
            payloads = Payloads(tables)
            calls.read_calls(fields, NcclCalls(fields, payloads))
            tasks.Tasks(fields).read()
            calls.read_waits(fields)
            others = Others(fields)
            others.read()
            last = when.window[1] if when.window is not None else when.duration_ns
            if last is None:
                last = parts.span[1] if parts.span is not None else 0
            marked = ranges.Ranges(fields, others, payloads, last, when.base_ns)
            marked.read()
            others.write_metrics(when.base_ns)
            if parts.span is None:
                raise RawFormatError(
                    f"{path}: holds no event, its tables are empty", slug="empty-recording"
                )
            session.name_threads(fields)
            joined = gpu_tables.write(
                parts,
                when.base_ns,
                has_column=has_column,
                data_types=data_types,
                progress=progress,
            )
            facts = session.write(fields, when, marked.categories)
            return Found(
                events=sum(parts.counts.values()),
                counts=dict(parts.counts),
                tasks=parts.gpu.rows,
                tasks_joined=joined,
                operations=marked.operations,
                rank=facts["rank"],
                facts=facts,
            )
    finally:
        texts.close()
