"""Process groups, senders and receivers of collectives."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.builders import RowSink, call, complete, decode_events, kernel, operation
from unified_prof.base.columns import NO_RANK
from unified_prof.decoders.kineto.collector import strided_ranks

NCCL = "ncclDevKernel_SendRecv(ncclDevComm*)"
PIPELINE = {"pg_name": "7", "pg_desc": "pp", "pg_size": 3, "ranks": [2, 5, 8]}
SESSION = {"distributedInfo": {"rank": 5, "world_size": 16, "pg_config": [PIPELINE]}}


def parameters(collective: str, **more: Any) -> dict[str, Any]:
    return {
        "Collective name": collective,
        "In msg nelems": 100,
        "Out msg nelems": 300,
        "Group size": 3,
        "dtype": "BFloat16",
        "Process Group Name": "7",
        "Process Group Description": "pp",
        "Process Group Ranks": "[2, 5, 8]",
    } | more


def decode_on_kernel(tmp_path: Path, collective: str, session: Any = None, **more: Any) -> RowSink:
    """Decode a trace of newer torch: the kernel has the parameters."""
    task = kernel(30, 10, 3, name=NCCL, args=parameters(collective, **more))
    return decode_events(
        tmp_path, call(15, 5, 3), task, **(SESSION if session is None else session)
    )


def decode_on_host(tmp_path: Path, collective: str, **more: Any) -> RowSink:
    """Decode a trace of older torch: an operation around the launch has the parameters."""
    around = operation("record_param_comms", 10, 20, args=parameters(collective, **more))
    return decode_events(tmp_path, around, call(15, 5, 3), kernel(30, 10, 3, name=NCCL), **SESSION)


def source_and_target(sink: RowSink) -> tuple[int, int]:
    ((source, target),) = sink.rows("COMMUNICATION_TASK_INFO", "srcRank", "dstRank")
    return source, target


def test_sender_and_receiver_are_numbers_within_the_group(tmp_path: Path) -> None:
    """Global rank 5 is number 1 in the group of 2, 5 and 8."""
    assert source_and_target(decode_on_kernel(tmp_path, "send", **{"Dst Rank": 8})) == (1, 2)
    assert source_and_target(decode_on_kernel(tmp_path, "recv", **{"Src Rank": 2})) == (0, 1)

    assert source_and_target(decode_on_host(tmp_path, "send", Rank=2)) == (1, 2)
    assert source_and_target(decode_on_host(tmp_path, "recv", Rank=0)) == (0, 1)

    assert source_and_target(decode_on_host(tmp_path, "allreduce", Rank=1)) == (NO_RANK, NO_RANK)


@pytest.mark.parametrize(
    ("kind", "arrow", "ends"), [("send", "->", (1, 2)), ("recv", "<-", (2, 1))]
)
def test_peer_is_taken_from_the_launch_if_the_kernel_has_none(
    kind: str, arrow: str, ends: tuple[int, int], tmp_path: Path
) -> None:
    """Kernels of torch 2.4 have the group of a transfer, but not its peer."""
    task = kernel(30, 10, 3, name=NCCL, args=parameters(kind))
    by_rank = operation("record_param_comms", 10, 20, args=parameters(kind, Rank=2))
    assert (
        source_and_target(decode_events(tmp_path, by_rank, call(15, 5, 3), task, **SESSION)) == ends
    )
    by_name = complete("user_annotation", f"nccl:{kind} 1{arrow}2", 12, 15)
    events = (operation("record_param_comms", 10, 20), by_name, call(15, 5, 3), task)
    sink = decode_events(tmp_path, *events, **SESSION)
    assert source_and_target(sink) == ends


def test_peer_outside_the_group_is_counted_as_anomaly(tmp_path: Path) -> None:
    sink = decode_on_kernel(tmp_path, "send", **{"Dst Rank": 4})
    assert source_and_target(sink) == (1, NO_RANK)
    assert sink.anomalies == {"peer_outside_group": 1}


def test_own_rank_is_unknown_if_the_trace_has_no_rank(tmp_path: Path) -> None:
    assert source_and_target(decode_on_kernel(tmp_path, "send", session={}, **{"Dst Rank": 8})) == (
        NO_RANK,
        2,
    )


MANY = list(range(0, 128, 2))
CUT = "[0, 2, 4, 6, 8, 10, ..., 126]"


@pytest.mark.parametrize(
    ("session", "more"),
    [
        ([{"pg_name": "7", "pg_desc": "dp", "ranks": MANY}], {}),
        ([{"pg_name": "7", "pg_desc": "dp", "ranks": str(MANY)}], {}),
        ([], {"Global rank start": 0, "Global rank stride": 2}),
    ],
)
def test_truncated_rank_lists_are_restored_from_pg_config_or_stride(
    session: list[Any], more: dict[str, Any], tmp_path: Path
) -> None:
    distributed = {"distributedInfo": {"rank": 4, "pg_config": session}}
    sink = decode_on_kernel(
        tmp_path,
        "send",
        session=distributed,
        **({"Process Group Ranks": CUT, "Group size": 64, "Dst Rank": 10} | more),
    )
    assert sink.rows("UPROF_COLLECTIVES", "groupRanks", "groupSize", texts=["groupRanks"]) == [
        (json.dumps(MANY), 64)
    ]
    assert source_and_target(sink) == (2, 5)


@pytest.mark.parametrize(
    ("start", "stride", "size", "expected"),
    [
        (0, 2, 3, (0, 2, 4)),
        (3, 0, 1, (3,)),
        (3, 0, 2, None),
        (3, -1, 2, None),
        (-1, 1, 2, None),
        (0, 1, 0, None),
        (0, 1, 1 << 20, tuple(range(1 << 20))),
        (0, 1, (1 << 20) + 1, None),
    ],
)
def test_ranks_of_evenly_spaced_groups(
    start: int, stride: int, size: int, expected: tuple[int, ...] | None
) -> None:
    assert strided_ranks(start, stride, size) == expected


def test_truncated_rank_list_is_kept_if_pg_config_contradicts_it(tmp_path: Path) -> None:
    other = {"distributedInfo": {"rank": 4, "pg_config": [{"pg_name": "7", "ranks": [1, 3, 5]}]}}
    sink = decode_on_kernel(tmp_path, "allreduce", session=other, **{"Process Group Ranks": CUT})
    assert sink.rows("UPROF_COLLECTIVES", "groupRanks", texts=["groupRanks"]) == [(CUT,)]


def test_groups_named_only_by_events_are_written_to_meta_data(tmp_path: Path) -> None:
    sink = decode_on_kernel(tmp_path, "allreduce", session={"distributedInfo": {"rank": 8}})
    (row,) = sink.tables["META_DATA"]
    group = {"group_name": "pp", "group_rank": 2, "global_ranks": [2, 5, 8]}
    assert json.loads(row["value"]) == {"7": group}


@pytest.mark.parametrize(
    ("dtype", "size", "bandwidth"),
    [
        ("BFloat16", 600, 60_000_000),
        ("Float", 1200, 120_000_000),
        ("Float8_e4m3fnuz", 300, 30_000_000),
        ("ComplexDouble", 4800, 480_000_000),
        ("Quarter", None, None),
    ],
)
@pytest.mark.parametrize("decode_parameters", [decode_on_kernel, decode_on_host])
def test_collective_size_is_that_of_the_larger_message_or_unknown(
    decode_parameters: Any, dtype: str, size: int | None, bandwidth: int | None, tmp_path: Path
) -> None:
    sink = decode_parameters(tmp_path, "_allgather_base", dtype=dtype)
    assert sink.rows("COMMUNICATION_TASK_INFO", "size", "bandwidth") == [(size, bandwidth)]


@pytest.mark.parametrize(
    ("kernel_name", "collective"),
    [
        ("void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*)", "AllReduce"),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::*)",
            "AllReduce",
        ),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 8>()", "AllReduce"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<float, 8>(Params)", "AllReduce"),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::X>(int)", "AllReduce"),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "AllGather"),
        ("void (anonymous namespace)::reduce_scatter_lastdim_kernel<16>()", "ReduceScatter"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "AllToAll"),
    ],
)
def test_kernels_of_servers_are_known(tmp_path: Path, kernel_name: str, collective: str) -> None:
    sink = decode_events(tmp_path, call(15, 5, 3), kernel(30, 10, 3, name=kernel_name))
    assert "COMPUTE_TASK_INFO" not in sink.tables
    assert sink.rows("COMMUNICATION_OP", "opType", texts=["opType"]) == [(collective,)]


@pytest.mark.parametrize(
    "kernel_name",
    [
        "triton_poi_fused_add_one_shot_all_reduce_wait_tensor_0",
        "void mine::apply<cross_device_reduce_1stage>(int)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 1>(int)",
        "void mine::dispatch<8>(int)",
    ],
)
def test_kernels_with_similar_names_are_compute_kernels(tmp_path: Path, kernel_name: str) -> None:
    sink = decode_events(tmp_path, call(15, 5, 3), kernel(30, 10, 3, name=kernel_name))
    assert "COMMUNICATION_OP" not in sink.tables
