"""Collective kinds have one name across vendors and versions."""

import re

import pytest

from unified_prof.decoders.gpu.pools import is_communication
from unified_prof.recording.collectives import ELEMENT_BYTES, bus_factor, canonical
from unified_prof.schema.catalogue import MSPROF, frozen_text, resolve


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("all_reduce", "hcom_allReduce_ allreduce all_reduce AllReduce nccl:all_reduce"),
        ("all_reduce", "hcom_allReduce__428_0_1 allreduce_coalesced c10d::allreduce_"),
        (
            "all_reduce",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        ),
        ("all_gather", "ncclKernel_AllGather_RING_LL_Sum_int8_t ncclDevKernel_AllGather_RING_LL"),
        ("all_gather", "_all_gather_base all_gather_into_tensor hcom_allGather_ hcom_allGatherV_"),
        ("reduce_scatter", "_reduce_scatter_base reduce_scatter_tensor hcom_reduceScatter_"),
        ("all_to_all", "all_to_all all_to_allv all_to_all_single hcom_alltoallv_ hcom_alltoallvc_"),
        ("receive", "hcom_receive_ recv receive hcom_receive__3_7_1"),
        ("send", "hcom_send_ send"),
        ("broadcast", "hcom_broadcast_ broadcast_oop"),
        ("send_receive", "SendRecv hcom_batchSendRecv_"),
    ],
)
def test_kind_of_a_collective_is_the_same_for_all_vendors(kind: str, names: str) -> None:
    assert {canonical(name) for name in names.split()} == {kind}


def test_elements_have_the_bits_of_their_names() -> None:
    schema = frozen_text(MSPROF, resolve(MSPROF, "latest"))
    named = re.findall(r"INTO ENUM_HCCL_DATA_TYPE .* \((\d+), '[A-Z]+(\d+).*'\);", schema)
    assert len(named) > 12
    assert {number: 8 * size for number, size in ELEMENT_BYTES.items()} == {
        int(number): int(bits) for number, bits in named
    }


def test_unknown_kind_keeps_its_name() -> None:
    assert canonical("Halo_Exchange") == "halo_exchange"
    assert canonical("") == "unknown"


def test_instance_numbers_are_removed_from_the_kind() -> None:
    assert canonical("hcom_haloExchange__428_0_1") == canonical("hcom_haloExchange__428_7_1")
    assert {canonical("N/A__N/A_4_1"), canonical("N/A")} == {"unknown"}


def test_bus_factor_is_that_of_a_ring() -> None:
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == 0.75
    assert bus_factor("barrier", 4) is None
    assert bus_factor("all_reduce", 1) is None


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", True),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<float, 8>(float*)", True),
        ("triton_poi_fused_two_shot_all_reduce_0", False),
        ("void at::native::reduce_kernel<512, 1>(at::native::ReduceOp<float>)", False),
    ],
)
def test_communication_kernels_of_libraries_are_known(kernel: str, expected: bool) -> None:
    assert is_communication(kernel) == expected
