"""Groups of ranks, senders and receivers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.decoders.kineto.made import KeepingSink, call, decode_events, kernel, operation
from unified_prof.base.columns import NO_RANK

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


def on_kernel(tmp_path: Path, collective: str, session: Any = None, **more: Any) -> KeepingSink:
    """Return events of newer torch: kernels have the parameters."""
    task = kernel(30, 10, 3, name=NCCL, args=parameters(collective, **more))
    return decode_events(
        tmp_path, call(15, 5, 3), task, **(SESSION if session is None else session)
    )


def on_host(tmp_path: Path, collective: str, **more: Any) -> KeepingSink:
    """Return events of older torch: an operation around the launch has the parameters."""
    around = operation("record_param_comms", 10, 20, args=parameters(collective, **more))
    return decode_events(tmp_path, around, call(15, 5, 3), kernel(30, 10, 3, name=NCCL), **SESSION)


def ends(sink: KeepingSink) -> tuple[int, int]:
    ((source, target),) = sink.rows("COMMUNICATION_TASK_INFO", "srcRank", "dstRank")
    return source, target


def test_the_own_rank_is_known_where_only_the_peer_is_named(tmp_path: Path) -> None:
    """Rank 5 is number 1 in its group of 2, 5 and 8."""
    assert ends(on_kernel(tmp_path, "send", **{"Dst Rank": 8})) == (1, 2)
    assert ends(on_kernel(tmp_path, "recv", **{"Src Rank": 2})) == (0, 1)


def test_a_peer_may_be_named_by_its_number_in_the_group(tmp_path: Path) -> None:
    assert ends(on_host(tmp_path, "send", Rank=2)) == (1, 2)
    assert ends(on_host(tmp_path, "recv", Rank=0)) == (0, 1)


def test_others_have_neither(tmp_path: Path) -> None:
    assert ends(on_host(tmp_path, "allreduce", Rank=1)) == (NO_RANK, NO_RANK)


def test_a_peer_outside_the_group_is_left_out_and_counted(tmp_path: Path) -> None:
    sink = on_kernel(tmp_path, "send", **{"Dst Rank": 4})
    assert ends(sink) == (1, NO_RANK)
    assert sink.anomalies == {"peer_outside_group": 1}


def test_without_a_rank_of_the_trace_only_the_peer_is_known(tmp_path: Path) -> None:
    assert ends(on_kernel(tmp_path, "send", session={}, **{"Dst Rank": 8})) == (NO_RANK, 2)


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
def test_ranks_that_torch_cut_are_whole_again(
    session: list[Any], more: dict[str, Any], tmp_path: Path
) -> None:
    given = {"distributedInfo": {"rank": 4, "pg_config": session}}
    sink = on_kernel(
        tmp_path,
        "send",
        session=given,
        **({"Process Group Ranks": CUT, "Group size": 64, "Dst Rank": 10} | more),
    )
    assert sink.rows("UPROF_COLLECTIVES", "groupRanks", "groupSize", texts=["groupRanks"]) == [
        (json.dumps(MANY), 64)
    ]
    assert ends(sink) == (2, 5)


def test_cut_ranks_that_contradict_the_list_stay_as_they_are(tmp_path: Path) -> None:
    other = {"distributedInfo": {"rank": 4, "pg_config": [{"pg_name": "7", "ranks": [1, 3, 5]}]}}
    sink = on_kernel(tmp_path, "allreduce", session=other, **{"Process Group Ranks": CUT})
    assert sink.rows("UPROF_COLLECTIVES", "groupRanks", texts=["groupRanks"]) == [(CUT,)]


def test_groups_that_only_events_name_are_written(tmp_path: Path) -> None:
    sink = on_kernel(tmp_path, "allreduce", session={"distributedInfo": {"rank": 8}})
    ((text,),) = [(row["value"],) for row in sink.tables["META_DATA"]]
    assert json.loads(text) == {
        "7": {"group_name": "pp", "group_rank": 2, "global_ranks": [2, 5, 8]}
    }


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("BFloat16", 600), ("Float", 1200), ("Float8_e4m3fnuz", 300), ("ComplexDouble", 4800)],
)
@pytest.mark.parametrize("place", [on_kernel, on_host])
def test_bytes_are_those_of_the_larger_message(
    place: Any, dtype: str, size: int, tmp_path: Path
) -> None:
    sink = place(tmp_path, "_allgather_base", dtype=dtype)
    assert sink.rows("COMMUNICATION_TASK_INFO", "size", "bandwidth") == [(size, size * 100_000)]


def test_bytes_of_an_unknown_type_are_unknown(tmp_path: Path) -> None:
    sink = on_kernel(tmp_path, "allreduce", dtype="Quarter")
    assert sink.rows("COMMUNICATION_TASK_INFO", "size", "bandwidth") == [(None, None)]


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
def test_servers_and_symmetric_memory_communicate_without_a_library(
    tmp_path: Path, kernel_name: str, collective: str
) -> None:
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
