"""Maps one database to partials: one a rank, without a look at any other rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.calls import KERNEL, Labels
from unified_prof.analysis.read.frames import MODULE_PREFIX
from unified_prof.analysis.read.framework import NOT_ATTRIBUTED, Framework
from unified_prof.analysis.read.source import Findings
from unified_prof.arrays import intervals
from unified_prof.cluster import partial as partials
from unified_prof.cluster import rank_columns as columns_of
from unified_prof.cluster import rank_steps
from unified_prof.cluster.partial import Partial
from unified_prof.cluster.rank_columns import Ints
from unified_prof.cluster.rank_communication import Communication
from unified_prof.cluster.rank_database import Database
from unified_prof.cluster.rank_identity import Identity
from unified_prof.cluster.timeline import Cover
from unified_prof.errors import StoreError
from unified_prof.models.catalogue import MSPROF
from unified_prof.store.reader import open_report

TABLES = frozenset(
    """META_DATA RANK_DEVICE_MAP NPU_INFO HOST_INFO UPROF_RUN UPROF_COLLECTIVES UPROF_GPU_TASKS
    STEP_TIME STRING_IDS COMMUNICATION_OP COMMUNICATION_TASK_INFO TASK COMPUTE_TASK_INFO
    COMMUNICATION_SCHEDULE_TASK_INFO MEMCPY_INFO ENUM_MEMCPY_OPERATION
    PYTORCH_API MSTX_EVENTS PYTORCH_CALLCHAINS CONNECTION_IDS CANN_API""".split()
)


def partials_of(path: Path, rank: int | None = None) -> list[Partial]:
    """Return the partial of every rank in a database.

    Args:
        path: an msprof database of any revision, by whomever it was made.
        rank: whose it is, where the user or a manifest says so.

    Raises:
        StoreError: the file is damaged, no such database, or does not say whose it is.
    """
    with open_report(path, any_revision=True, tables=TABLES) as report:
        if report.family != MSPROF:
            raise StoreError(
                f"{path} is a {report.family} file, expected an msprof database",
                slug="wrong-kind-of-report",
            )
        database = Database(report)
        identity = Identity(database)
        owners = identity.owners(rank)
        only = len(owners) == 1
        return [_partial(database, identity, *owner, only=only) for owner in owners]


def _partial(
    database: Database, identity: Identity, rank: int, device: int | None, *, only: bool
) -> Partial:
    """Put together what a rank did: its own work, that with others, its steps."""
    tasks = database.tasks
    chosen = tasks.kind == KERNEL
    if not only:
        chosen &= tasks.device == device
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(tasks.start_ns[rows], kind="stable")]
    start = tasks.start_ns[rows]
    end = start + tasks.duration_ns[rows]
    kernels = Cover(intervals.merge(start, end), start)
    communication = Communication(database, rank, device, only=only)
    operations = communication.operations
    busy = intervals.union(kernels.set, intervals.merge(operations["start"], operations["end"]))
    steps, recorded = rank_steps.steps_of(database.report, busy)
    loader = rank_steps.loader_of(database.report)
    notes = [f"{name}: {detail}" for name, (_, detail) in database.findings.items()]
    if not recorded:
        notes.append("no steps are recorded: the whole recording counts as one")
    operations["step"] = columns_of.step_of(operations["start"], steps)
    covered = kernels.within(operations["start"], operations["end"])
    operations["covered"] = covered
    names: Labels = Labels()
    label = tasks.kernel_labels if database.is_gpu else tasks.operator_labels
    modules, module = _modules(database, rows)
    work = columns_of.work_by_name(
        columns_of.step_of(start, steps), label(names, rows), module, tasks.duration_ns[rows]
    )
    facts = identity.facts(
        rank,
        device,
        steps_recorded=recorded,
        loader_recorded=loader is not None,
        notes=tuple(notes),
    )
    return Partial(
        facts=facts,
        groups=tuple(communication.groups),
        kinds=tuple(communication.kinds),
        names=tuple(str(text) for text in names.texts),
        modules=modules,
        communication={name: operations[name] for name in partials.COMMUNICATION},
        marks=columns_of.mark_parts(operations, steps, kernels),
        steps=columns_of.step_parts(steps, kernels.set, operations, busy, loader),
        kernels=work,
        links=communication.links,
    )


def _modules(database: Database, rows: NDArray[np.intp]) -> tuple[tuple[str, ...], Ints]:
    """Return the modules that kernels ran for, and the number of each kernel's.

    Empty is what ran outside of any, and what cannot be told. Host ranges are read only where
    there are modules among them.
    """
    told = database.report.rows(
        "SELECT 1 FROM STRING_IDS WHERE value GLOB ? OR value = 'Module' LIMIT 1",
        (f"{MODULE_PREFIX}*",),
    )
    if not told or not len(rows):
        return ("",), np.zeros(len(rows), np.int64)
    framework = Framework(database.report, database.strings, Findings())
    call = framework.launches(database.tasks.connection[rows]).call
    texts, number = framework.modules(call)
    names = ["" if text in (None, NOT_ATTRIBUTED) else str(text) for text in texts]
    distinct = sorted({"", *names})
    code = np.array([distinct.index(name) for name in names], np.int64)
    return tuple(distinct), code[number]
