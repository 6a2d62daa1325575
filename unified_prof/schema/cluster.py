"""The summary of a cluster's run: what many ranks' recordings say together, revision 1.

Times are ns, of the rank's own clock where they are points in time; `clock_offset_ns` of RANK
takes those to one common clock. Rates are GB/s, 1 GB being 1e9 bytes. Lists and mappings are JSON.
Single collectives and transfers are not here but in the partials, one file a rank.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import REAL, TEXT, PrimaryKeyConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine


class ClusterBase(DeclarativeBase):
    """Registry of the summary's tables."""

    type_annotation_map: ClassVar[dict[type, TypeEngine[Any]]] = {str: TEXT(), float: REAL()}


class ClusterFact(ClusterBase):
    """One fact about the run as a whole, such as its world size."""

    __tablename__ = "META_DATA"
    name: Mapped[str] = mapped_column(primary_key=True, doc="what the fact is about")
    value: Mapped[str] = mapped_column(doc="the fact; lists and mappings are JSON")


class ClusterRank(ClusterBase):
    """One rank of the run, whether its recording could be read or not."""

    __tablename__ = "RANK"
    rank: Mapped[int] = mapped_column(primary_key=True, doc="global rank")
    host: Mapped[str | None] = mapped_column(doc="name of its machine")
    device_id: Mapped[int | None] = mapped_column(doc="its device; numbers repeat on every host")
    device_name: Mapped[str | None] = mapped_column(doc="model of the device")
    vendor: Mapped[str | None] = mapped_column(doc="nvidia, huawei, amd; NULL: not known")
    file: Mapped[str | None] = mapped_column(doc="its recording, as it was given or found")
    partial: Mapped[str | None] = mapped_column(doc="its columns, a file of the folder partials/")
    status: Mapped[str] = mapped_column(
        doc="read; partly: read, and something is missing; failed: it has a file that cannot be "
        "read; absent: others name it and it left nothing"
    )
    why: Mapped[str | None] = mapped_column(doc="the reason where status is not read")
    tp: Mapped[int | None] = mapped_column(doc="its place in its tensor-parallel group")
    dp: Mapped[int | None] = mapped_column(doc="its place in its data-parallel group")
    pp: Mapped[int | None] = mapped_column(doc="its pipeline stage")
    ep: Mapped[int | None] = mapped_column(doc="its place in its expert-parallel group")
    cp: Mapped[int | None] = mapped_column(doc="its place in its context-parallel group")
    clock_offset_ns: Mapped[int | None] = mapped_column(
        doc="added to a time of this rank it gives the common clock of its island; NULL: no rank "
        "shares an event with it"
    )
    clock_error_ns: Mapped[int | None] = mapped_column(doc="how sure that is, one standard error")
    clock_island: Mapped[int | None] = mapped_column(
        doc="ranks of one island have a common clock; between islands nothing is known"
    )


class ClusterGroup(ClusterBase):
    """Ranks that communicate with one another."""

    __tablename__ = "GROUP"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number from 0, by its ranks")
    kind: Mapped[str] = mapped_column(doc="tp, dp, pp, ep, cp, world or other")
    names: Mapped[str] = mapped_column(doc="JSON list of the names that recordings give it")
    ranks: Mapped[str] = mapped_column(doc="JSON list of global ranks, in the group's order")
    size: Mapped[int] = mapped_column(doc="how many they are")
    hosts: Mapped[int | None] = mapped_column(doc="on how many hosts; NULL: not known of all")


class StepRank(ClusterBase):
    """One step of one rank: where its time went."""

    __tablename__ = "STEP_RANK"
    step: Mapped[int] = mapped_column(doc="the step's number in the recordings")
    rank: Mapped[int] = mapped_column(doc="RANK.rank")
    start_ns: Mapped[int] = mapped_column(doc="its begin, by the rank's own clock")
    end_ns: Mapped[int] = mapped_column(doc="its end, by the rank's own clock")
    compute_ns: Mapped[int] = mapped_column(doc="kernels ran: a union of intervals")
    communication_ns: Mapped[int] = mapped_column(doc="collectives or transfers ran: a union")
    exposed_communication_ns: Mapped[int] = mapped_column(doc="of it, what no kernel covers")
    wait_ns: Mapped[int | None] = mapped_column(
        doc="waiting for other ranks in collectives and transfers, a sum; NULL: none matched"
    )
    exposed_wait_ns: Mapped[int | None] = mapped_column(doc="of it, what no kernel covers")
    setup_ns: Mapped[int | None] = mapped_column(
        doc="collectives being set up, neither waiting nor moving; known of NPUs"
    )
    bubble_ns: Mapped[int | None] = mapped_column(
        doc="waiting for another pipeline stage, of exposed_wait_ns"
    )
    input_late_ns: Mapped[int | None] = mapped_column(
        doc="the device idle while the host waits for input; NULL: no loader was recorded"
    )
    idle_ns: Mapped[int] = mapped_column(doc="neither kernels nor communication ran")

    __table_args__ = (PrimaryKeyConstraint("step", "rank"),)


class ClusterCollective(ClusterBase):
    """Collectives of one group that are alike: of one kind and size, in one step."""

    __tablename__ = "COLLECTIVE"
    id: Mapped[int] = mapped_column(primary_key=True, doc="number of the row, from 0")
    group_id: Mapped[int] = mapped_column(doc="GROUP.id")
    kind: Mapped[str] = mapped_column(doc="all_reduce, all_gather, ... one name over all vendors")
    step: Mapped[int | None] = mapped_column(doc="STEP_RANK.step; NULL: outside of any")
    bytes: Mapped[int | None] = mapped_column(doc="what a rank gives in; NULL: not known")
    n: Mapped[int] = mapped_column(doc="how many there were")
    complete_n: Mapped[int] = mapped_column(doc="of them, with the recordings of all members")
    transfer_ns: Mapped[int] = mapped_column(doc="moving data, a sum over the complete ones")
    wait_ns: Mapped[int] = mapped_column(
        doc="waiting for the last comer, a sum over the complete ones and their members"
    )
    setup_ns: Mapped[int] = mapped_column(doc="set-up, a sum over the complete ones")
    transfer_p50_ns: Mapped[int | None] = mapped_column(doc="median of moving data")
    transfer_p99_ns: Mapped[int | None] = mapped_column(doc="99 of 100 move data faster")
    bus_gb_per_s: Mapped[float | None] = mapped_column(
        doc="bus bandwidth at the median: 2(n-1)/n of the bytes for all_reduce, (n-1)/n for "
        "gather, scatter and all_to_all"
    )


class RankBlame(ClusterBase):
    """What one rank costs the others, and the evidence for its causes."""

    __tablename__ = "BLAME"
    rank: Mapped[int] = mapped_column(primary_key=True, doc="RANK.rank")
    caused_wait_ns: Mapped[int] = mapped_column(
        doc="waiting of others in complete collectives to which it came last"
    )
    times: Mapped[int] = mapped_column(doc="how often it came last")
    work_ns: Mapped[int] = mapped_column(doc="its kernels in the compared steps, a sum")
    stage_work_ns: Mapped[int | None] = mapped_column(doc="the median of ranks with its stage")
    work_ratio: Mapped[float | None] = mapped_column(
        doc="its kernel time over the median of the ranks with its stage"
    )
    host_gap_ns: Mapped[int | None] = mapped_column(
        doc="its device idle between kernels that follow one another, a sum"
    )
    stage_host_gap_ns: Mapped[int | None] = mapped_column(doc="the median of its stage")
    input_late_ns: Mapped[int | None] = mapped_column(
        doc="its device idle for input longer than its stage's, a sum"
    )
    saved_ns_per_step: Mapped[float | None] = mapped_column(
        doc="what a step would gain if it were as its stage; NULL: not worked out"
    )
    cause: Mapped[str | None] = mapped_column(
        doc="slow_rank, slow_host, late_input, late; NULL: it is as the others"
    )


class ClusterLink(ClusterBase):
    """What moved from one rank to another."""

    __tablename__ = "LINK"
    src_rank: Mapped[int] = mapped_column(doc="RANK.rank that gave")
    dst_rank: Mapped[int] = mapped_column(doc="RANK.rank that got")
    kind: Mapped[str] = mapped_column(doc="p2p: sends and receives; collective: parts of those")
    across_hosts: Mapped[int | None] = mapped_column(doc="1: between hosts, 0: inside of one")
    n: Mapped[int] = mapped_column(doc="how many transfers")
    bytes: Mapped[int] = mapped_column(doc="what they moved, a sum")
    transfer_ns: Mapped[int] = mapped_column(doc="moving data, a sum")
    wait_ns: Mapped[int | None] = mapped_column(
        doc="waiting of the receiver for the sender, a sum; of sends and receives"
    )
    gb_per_s_p50: Mapped[float | None] = mapped_column(doc="median of bytes over time")
    gb_per_s_p99: Mapped[float | None] = mapped_column(
        doc="the slow end: 99 of 100 transfers are faster"
    )
    like_gb_per_s: Mapped[float | None] = mapped_column(
        doc="the median of gb_per_s_p50 over links of the same kind and sizes"
    )

    __table_args__ = (PrimaryKeyConstraint("src_rank", "dst_rank", "kind"),)


class OperationRank(ClusterBase):
    """Kernels of one kind on one rank, in the compared steps."""

    __tablename__ = "OPERATION_RANK"
    rank: Mapped[int] = mapped_column(doc="RANK.rank")
    name: Mapped[str] = mapped_column(doc="type of operator (NPU), name of the kernel (GPU)")
    module: Mapped[str] = mapped_column(doc="the nn.Module it ran for; empty: not known")
    n: Mapped[int] = mapped_column(doc="how many kernels")
    total_ns: Mapped[int] = mapped_column(doc="their durations, a sum")
    min_ns: Mapped[int] = mapped_column(doc="the shortest")
    max_ns: Mapped[int] = mapped_column(doc="the longest")

    __table_args__ = (PrimaryKeyConstraint("rank", "name", "module"),)


class ClusterFinding(ClusterBase):
    """Something that costs the run time, the costliest first; a healthy run has none."""

    __tablename__ = "FINDING"
    place: Mapped[int] = mapped_column(primary_key=True, doc="1 is the costliest")
    kind: Mapped[str] = mapped_column(doc="slow_rank, slow_host, slow_link, late_input, ...")
    ranks: Mapped[str] = mapped_column(doc="JSON list of the ranks concerned")
    hosts: Mapped[str] = mapped_column(doc="JSON list of their hosts")
    links: Mapped[str] = mapped_column(doc="JSON list of [src, dst]")
    steps: Mapped[str] = mapped_column(doc="JSON list of the steps in which it shows")
    cost_ms_per_step: Mapped[float] = mapped_column(doc="what a step would gain without it, ms")
    figures: Mapped[str] = mapped_column(doc="JSON mapping: the evidence")
    text: Mapped[str] = mapped_column(doc="the finding in one sentence")
