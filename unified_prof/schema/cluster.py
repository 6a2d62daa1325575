"""Schema of cluster summaries (summaries of multi-rank runs), revision 1.

Durations are in ns. Points in time are in ns by the rank's clock; adding RANK.clock_offset_ns
converts them to the common clock. Rates are in GB/s (1e9 bytes). Lists and mappings are JSON. The
partials (one file per rank) contain the individual collectives and transfers.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import REAL, TEXT, PrimaryKeyConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine


class ClusterBase(DeclarativeBase):
    """Base class of the summary's models."""

    type_annotation_map: ClassVar[dict[type, TypeEngine[Any]]] = {str: TEXT(), float: REAL()}


class ClusterFact(ClusterBase):
    """A fact about the whole run, such as its world size."""

    __tablename__ = "META_DATA"
    name: Mapped[str] = mapped_column(primary_key=True, doc="name of the fact")
    value: Mapped[str] = mapped_column(doc="the fact; lists and mappings are JSON")


class ClusterRank(ClusterBase):
    """A rank of the run, whether or not it was read."""

    __tablename__ = "RANK"
    rank: Mapped[int] = mapped_column(primary_key=True, doc="global rank")
    host: Mapped[str | None] = mapped_column(doc="host name")
    device_id: Mapped[int | None] = mapped_column(doc="device number on its host")
    device_name: Mapped[str | None] = mapped_column(doc="model of the device")
    vendor: Mapped[str | None] = mapped_column(doc="nvidia, huawei, amd; NULL: unknown")
    file: Mapped[str | None] = mapped_column(doc="its recording")
    partial: Mapped[str | None] = mapped_column(doc="path of its partial, a file in partials/")
    status: Mapped[str] = mapped_column(
        doc="read; partly: read, but incomplete; failed: recording unreadable; absent: no recording"
    )
    why: Mapped[str | None] = mapped_column(doc="reason if status is not read")
    tp: Mapped[int | None] = mapped_column(doc="position in its tensor-parallel group")
    dp: Mapped[int | None] = mapped_column(doc="position in its data-parallel group")
    pp: Mapped[int | None] = mapped_column(doc="pipeline stage")
    ep: Mapped[int | None] = mapped_column(doc="position in its expert-parallel group")
    cp: Mapped[int | None] = mapped_column(doc="position in its context-parallel group")
    clock_offset_ns: Mapped[int | None] = mapped_column(
        doc="offset to add to times of this rank to get the common clock of its island; NULL: no "
        "events in common with another rank"
    )
    clock_error_ns: Mapped[int | None] = mapped_column(doc="standard error of clock_offset_ns")
    clock_island: Mapped[int | None] = mapped_column(
        doc="ranks of one island have a common clock; offsets between islands are unknown"
    )


class ClusterGroup(ClusterBase):
    """A communicator."""

    __tablename__ = "GROUP"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number from 0, in order of ranks")
    kind: Mapped[str] = mapped_column(doc="tp, dp, pp, ep, cp, world or other")
    names: Mapped[str] = mapped_column(doc="JSON list of its recorded names")
    ranks: Mapped[str] = mapped_column(doc="JSON list of global ranks, in the group's order")
    size: Mapped[int] = mapped_column(doc="number of ranks")
    hosts: Mapped[int | None] = mapped_column(doc="number of hosts; NULL: unknown")


class StepRank(ClusterBase):
    """Time of one step of one rank, by part."""

    __tablename__ = "STEP_RANK"
    step: Mapped[int] = mapped_column(doc="recorded step number")
    rank: Mapped[int] = mapped_column(doc="RANK.rank")
    start_ns: Mapped[int] = mapped_column(doc="start, by the rank's clock")
    end_ns: Mapped[int] = mapped_column(doc="end, by the rank's clock")
    compute_ns: Mapped[int] = mapped_column(doc="union of kernel intervals")
    communication_ns: Mapped[int] = mapped_column(doc="union of collectives and transfers")
    exposed_communication_ns: Mapped[int] = mapped_column(doc="the part that no kernel covers")
    wait_ns: Mapped[int | None] = mapped_column(
        doc="sum of waits for other ranks in collectives and transfers; NULL: none matched"
    )
    exposed_wait_ns: Mapped[int | None] = mapped_column(doc="the part that no kernel covers")
    setup_ns: Mapped[int | None] = mapped_column(
        doc="setup time of collectives, neither wait nor transfer; NPUs only"
    )
    bubble_ns: Mapped[int | None] = mapped_column(
        doc="part of exposed_wait_ns spent waiting for another pipeline stage"
    )
    input_late_ns: Mapped[int | None] = mapped_column(
        doc="device idle while the host waits for input; NULL: no data loader recorded"
    )
    idle_ns: Mapped[int] = mapped_column(doc="neither kernels nor communication")

    __table_args__ = (PrimaryKeyConstraint("step", "rank"),)


class ClusterCollective(ClusterBase):
    """Collectives of one group, kind and size in one step."""

    __tablename__ = "COLLECTIVE"
    id: Mapped[int] = mapped_column(primary_key=True, doc="row number from 0")
    group_id: Mapped[int] = mapped_column(doc="GROUP.id")
    kind: Mapped[str] = mapped_column(doc="all_reduce, all_gather, ... one name over all vendors")
    step: Mapped[int | None] = mapped_column(doc="STEP_RANK.step; NULL: outside steps")
    bytes: Mapped[int | None] = mapped_column(doc="bytes per rank; NULL: unknown")
    n: Mapped[int] = mapped_column(doc="number of collectives")
    complete_n: Mapped[int] = mapped_column(doc="number of collectives recorded on all members")
    transfer_ns: Mapped[int] = mapped_column(doc="sum of transfer times")
    wait_ns: Mapped[int] = mapped_column(doc="sum of waits for the last member, over all members")
    setup_ns: Mapped[int] = mapped_column(doc="sum of setup times")
    transfer_p50_ns: Mapped[int | None] = mapped_column(doc="median transfer time")
    transfer_p99_ns: Mapped[int | None] = mapped_column(doc="99th percentile of transfer times")
    bus_gb_per_s: Mapped[float | None] = mapped_column(
        doc="bus bandwidth at the median: 2(n-1)/n of the bytes for all_reduce, (n-1)/n for "
        "gather, scatter and all_to_all"
    )


class RankBlame(ClusterBase):
    """Wait time that a rank causes for others, and evidence for the reasons."""

    __tablename__ = "BLAME"
    rank: Mapped[int] = mapped_column(primary_key=True, doc="RANK.rank")
    caused_wait_ns: Mapped[int] = mapped_column(
        doc="wait of other ranks in complete collectives in which this rank was last"
    )
    times: Mapped[int] = mapped_column(doc="number of complete collectives in which it was last")
    work_ns: Mapped[int] = mapped_column(doc="sum of its kernel times in the compared steps")
    stage_work_ns: Mapped[int | None] = mapped_column(
        doc="median of the kernel times of the other ranks in its pipeline stage"
    )
    work_ratio: Mapped[float | None] = mapped_column(
        doc="its kernel time over the median of the ranks in its pipeline stage"
    )
    host_gap_ns: Mapped[int | None] = mapped_column(doc="sum of its idle times without input waits")
    stage_host_gap_ns: Mapped[int | None] = mapped_column(
        doc="typical gap between kernels times its number of kernels"
    )
    input_late_ns: Mapped[int | None] = mapped_column(
        doc="sum of input waits in excess of those of other ranks"
    )
    saved_ns_per_step: Mapped[float | None] = mapped_column(
        doc="estimated saving per step if its problem is fixed; NULL: no finding"
    )
    cause: Mapped[str | None] = mapped_column(doc="kind of its most expensive finding; NULL: none")


class ClusterLink(ClusterBase):
    """Data moved from one rank to another."""

    __tablename__ = "LINK"
    src_rank: Mapped[int] = mapped_column(doc="RANK.rank of the sender")
    dst_rank: Mapped[int] = mapped_column(doc="RANK.rank of the receiver")
    kind: Mapped[str] = mapped_column(
        doc="p2p: sends and receives; collective: parts of collectives"
    )
    across_hosts: Mapped[int | None] = mapped_column(doc="1: between hosts, 0: within one host")
    n: Mapped[int] = mapped_column(doc="number of transfers")
    bytes: Mapped[int] = mapped_column(doc="sum of bytes")
    transfer_ns: Mapped[int] = mapped_column(doc="sum of transfer times")
    wait_ns: Mapped[int | None] = mapped_column(
        doc="sum of waits of the receiver for the sender; p2p only"
    )
    gb_per_s_p50: Mapped[float | None] = mapped_column(doc="median rate")
    gb_per_s_p99: Mapped[float | None] = mapped_column(doc="rate that 99 % of the transfers exceed")
    like_gb_per_s: Mapped[float | None] = mapped_column(
        doc="median of gb_per_s_p50 over links of the same kind with similar transfer sizes"
    )

    __table_args__ = (PrimaryKeyConstraint("src_rank", "dst_rank", "kind"),)


class OperationRank(ClusterBase):
    """Kernels of one kind on one rank, in the compared steps."""

    __tablename__ = "OPERATION_RANK"
    rank: Mapped[int] = mapped_column(doc="RANK.rank")
    name: Mapped[str] = mapped_column(doc="operator type (NPU) or kernel name (GPU)")
    module: Mapped[str] = mapped_column(doc="nn.Module that it belongs to; empty: unknown")
    n: Mapped[int] = mapped_column(doc="number of kernels")
    total_ns: Mapped[int] = mapped_column(doc="sum of durations")
    min_ns: Mapped[int] = mapped_column(doc="shortest duration")
    max_ns: Mapped[int] = mapped_column(doc="longest duration")

    __table_args__ = (PrimaryKeyConstraint("rank", "name", "module"),)


class ClusterFinding(ClusterBase):
    """A problem that costs time, most expensive first; healthy runs have no findings."""

    __tablename__ = "FINDING"
    place: Mapped[int] = mapped_column(primary_key=True, doc="1 is the most expensive")
    kind: Mapped[str] = mapped_column(doc="slow_rank, slow_host, slow_link, late_input, ...")
    ranks: Mapped[str] = mapped_column(doc="JSON list of the ranks that cause it")
    hosts: Mapped[str] = mapped_column(doc="JSON list of their hosts")
    links: Mapped[str] = mapped_column(doc="JSON list of [src, dst]")
    steps: Mapped[str] = mapped_column(doc="JSON list of the affected steps")
    cost_ms_per_step: Mapped[float] = mapped_column(doc="estimated saving per step, ms")
    figures: Mapped[str] = mapped_column(doc="JSON mapping of the evidence")
    text: Mapped[str] = mapped_column(doc="the finding in one sentence")
