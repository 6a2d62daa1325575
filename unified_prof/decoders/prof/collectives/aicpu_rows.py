"""Rows of collectives that AI CPU kernels ran: COMMUNICATION_OP and COMMUNICATION_TASK_INFO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.prof.collectives.aicpu_collectives import Collectives
from unified_prof.decoders.prof.collectives.aicpu_members import Members
from unified_prof.decoders.prof.collectives.aicpu_operators import Ground
from unified_prof.decoders.prof.collectives.communication import (
    FINE_ORIGIN_NS,
    CommunicationTimes,
    CommunicationWriter,
)
from unified_prof.decoders.prof.collectives.transfers import (
    FINE_PARTS,
    bandwidth_in_order,
    closing_tasks,
)
from unified_prof.decoders.prof.host.launches import MISSING
from unified_prof.vocabulary import NO_RANK, NOT_AVAILABLE, TYPE_NOT_AVAILABLE

_PAYLOAD = 1
_OWN_SUFFIX = " Aicpu"
"""Ends the group's name where the operator has a row of its own."""


def write_collectives(
    ground: Ground,
    ran: Collectives,
    host: CommunicationWriter,
    host_ids: Mapping[str, int],
    sink: Sink,
) -> CommunicationTimes:
    """Write the operators that the host has no row for, and the tasks of all.

    Args:
        ground: what they were told from.
        ran: the operators and their tasks.
        host: hands out the ids of operators.
        host_ids: opIds of the host's operators, by full name.
        sink: takes the rows.

    Returns:
        When the operators that got a row were running.
    """
    ids = host.take_ids(len(ran.operators))
    for index, operator in enumerate(ran.operators):
        if operator.of_host:
            ids[index] = host_ids.get(operator.name, ids[index])
    names = sink.strings.intern_all(operator.name for operator in ran.operators)
    groups = sink.strings.intern_all(_group_name(ran, index, ground) for index in _indexes(ran))
    if len(ran.members.row):
        _write_tasks(ground, ran, names, groups, ids, sink)
    return _write_operators(ground, ran, names, groups, ids, sink)


def _indexes(ran: Collectives) -> range:
    return range(len(ran.operators))


def _group_name(ran: Collectives, index: int, ground: Ground) -> str:
    operator = ran.operators[index]
    if operator.group is None:
        return NOT_AVAILABLE
    text = ground.dictionaries.text(operator.group)
    return text if operator.of_host else text + _OWN_SUFFIX


def _write_tasks(
    ground: Ground,
    ran: Collectives,
    names: NDArray[np.int64],
    groups: NDArray[np.int64],
    ids: NDArray[np.int64],
    sink: Sink,
) -> None:
    members = ran.members
    described = members.record != MISSING
    records = ground.records.tasks[members.record[described]]
    count = len(members.row)

    def column(field: str, missing: int) -> NDArray[np.int64]:
        values = np.full(count, missing, np.int64)
        values[described] = records[field].astype(np.int64)
        return values

    kind = np.full(count, sink.strings.intern(NOT_AVAILABLE), np.int64)
    kind[described] = ground.dictionaries.string_ids(sink.strings, records["item"])
    moved = np.zeros(count)
    moved[described] = _bandwidth(ground, ran)[members.record[described]]
    sink.write(
        "COMMUNICATION_TASK_INFO",
        {
            "name": names[members.operator],
            "globalTaskId": ground.rows.global_task_id[members.row],
            "taskType": kind,
            "planeId": np.where(members.plane < 0, NO_RANK, members.plane),
            "groupName": groups[members.operator],
            "notifyId": column("notify_id", -1),
            "rdmaType": column("rdma_type", TYPE_NOT_AVAILABLE),
            "srcRank": column("local_rank", NO_RANK),
            "dstRank": column("remote_rank", NO_RANK),
            "transportType": column("transport_type", TYPE_NOT_AVAILABLE),
            "size": column("size_bytes", -1),
            "dataType": column("data_type", TYPE_NOT_AVAILABLE),
            "linkType": column("link_type", TYPE_NOT_AVAILABLE),
            "opId": ids[members.operator],
            "isMaster": members.master.astype(np.int64),
            "bandwidth": moved,
        },
    )


def _bandwidth(ground: Ground, ran: Collectives) -> NDArray[np.float64]:
    """Return the bandwidth of every record of a task; 0 for those that the log does not have.

    Transfers go over all records with one text and one plane, whatever operator they are of, in
    the order of the records.
    """
    tasks = ground.records.tasks
    result = np.zeros(len(tasks))
    known = np.flatnonzero(ran.record_row != MISSING)
    row, tasks = ran.record_row[known], tasks[known]
    clock = ground.rows.clock.finer(FINE_PARTS, ground.device.session.start_ns - FINE_ORIGIN_NS)
    items, item = np.unique(tasks["item"], return_inverse=True)
    texts = [ground.dictionaries.text(value).lower() for value in items.tolist()]
    result[known] = bandwidth_in_order(
        (tasks["plane_id"], item),
        clock.to_ns(ground.rows.start[row]),
        clock.to_ns(ground.rows.end[row]),
        tasks["size_bytes"].astype(np.int64),
        tasks["rdma_type"] == _PAYLOAD,
        closing_tasks(texts)[item],
    )
    return result


def _write_operators(
    ground: Ground,
    ran: Collectives,
    names: NDArray[np.int64],
    groups: NDArray[np.int64],
    ids: NDArray[np.int64],
    sink: Sink,
) -> CommunicationTimes:
    """Write the operators of devices alone that have a master task: they last as these do."""
    start, end, has_master = _extent(ground, ran.members, len(ran.operators))
    own = np.array([not operator.of_host for operator in ran.operators], bool)
    kept = np.flatnonzero(own & has_master)
    if not len(kept):
        return CommunicationTimes.none()
    none = sink.strings.intern(NOT_AVAILABLE)
    operators = [ran.operators[index] for index in kept.tolist()]
    columns: dict[str, Any] = {
        "opName": names[kept],
        "startNs": start[kept],
        "endNs": end[kept],
        "connectionId": [operator.connection_id for operator in operators],
        "groupName": groups[kept],
        "opId": ids[kept],
        "relay": -1,
        "retry": -1,
        "dataType": TYPE_NOT_AVAILABLE,
        "algType": none,
        "count": -1,
        "opType": [operator.op_type for operator in operators],
        "deviceId": ground.device.device_id,
        "rankSize": NO_RANK,
    }
    sink.write("COMMUNICATION_OP", columns)
    return CommunicationTimes(start[kept], end[kept])


def _extent(
    ground: Ground, members: Members, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the start of each operator's first master task, the end of its last, whether any."""
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, np.iinfo(np.int64).min)
    of, row = members.operator[members.master], members.row[members.master]
    np.minimum.at(start, of, ground.rows.start_ns[row])
    np.maximum.at(end, of, ground.rows.end_ns[row])
    has_master = np.zeros(count, bool)
    has_master[of] = True
    return start, end, has_master
