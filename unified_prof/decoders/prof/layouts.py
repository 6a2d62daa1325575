"""Layouts of binary records as NumPy structured types, platform groups, and names of codes.

Platforms (`platform_version` of info.json): 0 is the 310, 1 the 910A, 4 the 310P, 5 the 910B, 7 the
310B, 15 and 16 the 950.

An entry has the format `name size_bytes: field type@offset, ...`. Types are little-endian: u1 u2 u4
u8 unsigned, i4 i8 signed, f8 double, `Nu4` an array of N, `NS` a NUL-padded string of N bytes.
Unused bytes have no field. An entry of `_PAYLOADS` describes the payload of a host record: its
offsets are relative to the payload, and the NumPy type also contains the fields of the envelope.

Source of the facts: the public collector and analysis code of the Ascend toolkit.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np

RecordType = np.dtype[Any]

ONE_CORE_KIND_PLATFORMS = (7, 8, 11)  # Platforms whose cube and vector units share their cores.

# Platforms with 32-bit task ids.
V6_PLATFORMS = (15, 16)
HOST_MAGIC = 0x5A5A
STARS_MAGIC = 0x6BD3
_HEADER = "magic u2@0, level u2@2, type u4@4, thread_id u4@8, data_len u4@12, timestamp u8@16"
_HEADER_BYTES = 24


def _layouts(text: str) -> dict[str, tuple[int, str]]:
    parts = re.split(r"(\w+) (\d+):", re.sub("#.*", "", text))[1:]
    return {
        name: (int(size), fields)
        for name, size, fields in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


_PAYLOADS = _layouts(
    """
    # Host compact records.
    # The ext bytes are read as block counts, or for SIMT kernels as grid and block dimensions.
    task_track 64: device_id u2@0, stream_id u2@2, task_id u4@4, task_type u8@8, kernel_name u8@16,
        block_num u2@24, ratio_bits u1@28, grid_dim 3u2@24, block_dim 3u2@30
    node_basic_info 64: op_name u8@0, task_type u4@8, op_type u8@12, block_dim u4@20, op_flag u4@24
    node_attr_info 64: op_name u8@0, attr_type u4@8, hash_id u8@12
    hccl_op_info 64: flags u1@0, data_type u1@1, alg_type u8@2, count u8@10, group_name u8@18
    # CANN 8.0 and older: four bits for each stage of the algorithm, the first in the lowest bits.
    hccl_op_info_v1 64: flags u1@0, data_type u1@1, alg_type u2@2, count u8@4, group_name u8@12
    memcpy_info 64: data_size u8@0, max_size u8@8, direction u2@16
    capture_stream_info 64: status u2@0, model_stream_id u2@2, original_stream_id u2@4,
        model_id u2@6, device_id u2@8
    expand_stream_spec 64: expand_status u1@0
    # The time stamp of the envelope is the end.
    dpu_track 64: device u2@0, stream_id u2@2, task_id u4@4, start u8@16
    # Host additional records.
    # Five tensors of 11 words each: kind (0 input, 1 output), format, data type, 8 dimensions.
    # Both end in 16 slots of a channel and the rank behind it.
    ccu_group_info 256: stream_id u2@34, task_id u4@36, die u1@40, instruction u2@42,
        reduction u1@45, input_type u1@46, output_type u1@47, size_bytes u8@48, channels 16u2@56,
        remote_ranks 16u4@88
    ccu_wait_signal_info 256: stream_id u2@34, task_id u4@36, die u1@40, instruction u2@42,
        mask u4@52, channels 16u2@56, remote_ranks 16u4@88
    dpu_hccl_info 256: item u8@0, group u8@16, local_rank u4@24, remote_rank u4@28, rank_size u4@32,
        notify_id u8@40, start u8@48, estimated_us f8@56, size_bytes u8@80, task_id u4@88,
        ai_cpu_task u4@92, stream_id u2@96, plane_id u2@98, npu u2@100, dpu u2@102, op_type u1@104,
        data_type u1@105, link_type u1@106, transport_type u1@107, rdma_type u1@108
    capture_op_info 256: device_id u4@4, stream_id u4@8, task_id u4@12, task_type u4@16,
        block_dim u4@20, op_name u8@24, op_type u8@32, attribute u8@40, op_flag u4@56,
        tensor_num u4@60, tensors 33u4@64
    tensor_info 256: op_name u8@0, tensor_num u4@8, tensors 55u4@12
    context_id_info 256: op_name u8@0, context_num u4@8, context_ids 55u4@12
    hccl_info 256: item_id u8@0, ccl_tag u8@8, group_name u8@16, local_rank u4@24,
        remote_rank u4@28, rank_size u4@32, plane_id u4@40, context_id u4@44, notify_id u8@48,
        role u4@60, estimated_duration f8@64, src_addr u8@72, dst_addr u8@80, size_bytes u8@88,
        op_type u4@96, data_type u4@100, link_type u4@104, transport_type u4@108, rdma_type u4@112
    fusion_op_info 256: op_name u8@0, fusion_op_num u4@8, input_bytes u8@12, output_bytes u8@20,
        weight_bytes u8@28, workspace_bytes u8@36, total_bytes u8@44, fusion_op_ids 8u8@52
    graph_id_map 256: model_name u8@0, graph_id u4@8, model_id u4@12
    msproftx 256: info_type u2@0, segment u2@2, process_id u4@12, tx_thread_id u4@16,
        category u4@20, event_type u4@24, start u8@40, end u8@48, mark_id u8@56, domain u8@64,
        message 156S@76
    # CANN 8.0: without a domain.
    msproftx_v1 256: message_type u4@64, message 128S@68
    task_memory_info 256: addr u8@0, size_bytes i8@8, node_id u8@16, total_allocate u8@24,
        total_reserve u8@32, device_id u4@40, device_type u4@44
    mc2_comm_info 256: group_name u8@0, rank_size u4@8, rank_id u4@12, user_rank_id u4@16,
        stream_id u4@20, stream_num u4@24, comm_stream_ids 51u4@28
    """
)

_RECORDS = _layouts(
    """
    # Complete host records.
    api_event 40: magic u2@0, level u2@2, type u4@4, thread_id u4@8, request_id u4@12, begin u8@16,
        end u8@24, item_id u8@32
    # Head of a capture_op_info record of variable length, before its tensors.
    capture_op_head 88: magic u2@0, data_len u4@12, device_id u4@28, stream_id u4@32, task_id u4@36,
        task_type u4@40, block_dim u4@44, op_name u8@48, op_type u8@56, attribute u8@64,
        op_flag u4@80, tensor_num u4@84
    # Device records. `w0` of a stars or PMU record: function code in bits 5..0, running counter in
    # bits 9..6, task (SQE) type in bits 15..10.
    stars_acsq 64: w0 u2@0, magic u2@2, stream_id u2@4, task_id u2@6, timestamp u8@8, acc_id u2@18
    stars_ffts_log 64: w0 u2@0, magic u2@2, stream_id u2@4, task_id u2@6, timestamp u8@8,
        subtask_type u1@16, subtask_id u2@18, ffts_type_word u2@20, thread_id u2@22
    stars_sio 64: w0 u2@0, magic u2@2, timestamp u8@8, acc_id u2@18, req_rx u4@32, rsp_rx u4@36,
        snp_rx u4@40, dat_rx u4@44, req_tx u4@48, rsp_tx u4@52, snp_tx u4@56, dat_tx u4@60
    # Platforms 15 and 16: the upper six bits of the first word tell dies apart.
    stars_sio_v6 64: w0 u2@0, magic u2@2, timestamp u8@8, req_rx u4@28, rsp_rx u4@32, snp_rx u4@36,
        dat_rx u4@40, req_tx u4@48, rsp_tx u4@52, snp_tx u4@56, dat_tx u4@60
    stars_acc_pmu 64: w0 u2@0, magic u2@2, timestamp u8@8, acc_id u2@18, read_bandwidth u8@32,
        write_bandwidth u8@40, read_ost u8@48, write_ost u8@56
    stars_inter_soc 64: w0 u2@0, magic u2@2, timestamp u8@8, bw_level u2@32
    stars_acsq_v6 32: w0 u2@0, magic u2@2, task_id_low u2@4, task_id_high u2@6, timestamp u8@8,
        acc_id u2@18
    ffts_context_pmu 128: w0 u2@0, stream_id u2@4, task_id u2@6, subtask_word u2@16,
        subtask_id u2@18, ffts_type_word u2@20, total_cycle u8@32, pmu 8u8@48, start u8@112,
        end u8@120
    ffts_block_pmu 128: w0 u2@0, stream_id u2@4, task_id u2@6, subtask_type u1@16, subtask_id u2@18,
        core u1@20, ffts_type_byte u1@21, sub_block_id u2@28, block_id u2@30, total_cycle u8@32,
        pmu 8u8@48, start u8@112, end u8@120
    v6_pmu 128: w0 u2@0, task_id_low u2@4, task_id_high u2@6, total_cycle u8@8, context_type u1@16,
        flags u1@17, core_type u1@20, core_id u1@21, sub_block_id u2@24, block_id u2@26,
        pmu 10u8@32, start u8@112, end u8@120
    # ts_track: every kind has the function code at byte 1.
    ts_step_trace 40: func_type u1@1, timestamp u8@8, index_id u8@16, model_id u8@24,
        stream_id u2@32, task_id u2@34, tag_id u2@36
    ts_task_flip 40: func_type u1@1, timestamp u8@8, stream_id u2@16, flip_num u2@18, task_id u2@22
    hwts_log 64: w0 u1@0, task_type u1@1, task_id u2@6, timestamp u8@8, stream_word u4@16
    aicore_task 128: task_id u2@6, total_cycle u8@16, pmu 8u8@32, stream_word u4@96
    aicore_sample 96: mode u1@0, event_count 8u8@8, task_cycle u8@72, timestamp u8@80,
        count_num u1@88, core_id u1@89
    # Platforms 15 and 16.
    aicore_sample_v6 112: mode u1@0, event_count 10u8@8, task_cycle u8@88, timestamp u8@96,
        count_num u1@104, core_id u1@105
    lpm_freq 888: count u4@0, kind u4@4, words 110u8@8
    hbm_v1 24: timestamp_us u8@0, count u8@8, event_type u4@16, hbm_id u4@20
    hbm_v2 32: event_type u4@8, hbm_id u4@12, count u8@16, timestamp_ns u8@24
    llc_v1 24: timestamp_us u8@0, count u8@8, event_id u4@16, l3t_id u4@20
    llc_v2 24: count u4@4, event_id u4@8, l3t_id u4@12, timestamp_ns u8@16
    ddr 20: timestamp_us u4@0, count u4@4, rw u4@8, channel u4@12, master u4@16
    # Seven (min, max, average) triples: tx posted, tx non-posted, tx completion, tx non-posted
    # latency (ns), rx posted, rx non-posted, rx completion; bandwidths in bytes per microsecond.
    pcie 96: timestamp u8@0, device_id u4@8, values 21u4@12
    npu_mem_v1 32: timestamp_us u4@0, event u4@4, ddr u8@16, hbm u8@24
    npu_mem_v2 32: event u4@4, timestamp_us u8@8, ddr u8@16, hbm u8@24
    npu_module_mem 24: module_id u4@0, host_ticks u8@8, total_size u8@16
    # Spans belong to the peers from the last to the first.
    ccu_instr 64: wait_spans 16u2@0, wait_start u8@32, wait_instruction u2@40, loop_end u8@42,
        loop_start u8@50, loop_instruction u2@58, task_id u4@60
    ccu_stat 2816: words 704u4@0
    ub 128: port_id u2@4, time_us u8@8, rx_bind u8@16, tx_bind u8@24
    qos 64: timestamp u8@16, bandwidth 10u4@24
    # Records of AI CPUs, distinguished by their type. On platforms 15 and 16 stream and task
    # of `aicpu_bound` are the lower and the upper half of 32-bit task ids.
    aicpu 256: magic u2@0, level u2@2, type u4@4, timestamp u8@16
    aicpu_operator 256: timestamp u8@16, flags u1@24, group u8@42, stream_id u2@54, task_id u4@56
    aicpu_flip 256: timestamp u8@16, stream_id u2@24, task_id u2@26
    aicpu_bound 256: timestamp u8@16, kernel_stream u2@24, kernel_task u2@26, stream_id u2@28,
        task_id u2@30, kind u2@32
    # Two of them follow the head of a record.
    aicpu_task 116: item u8@0, group u8@16, local_rank u4@24, remote_rank u4@28, notify_id u8@40,
        timestamp u8@48, size_bytes u8@80, task_id u4@88, stream_id u2@96, data_type u1@101,
        link_type u1@102, transport_type u1@103, rdma_type u1@104, plane_id u2@98
    """
)

_FIELD = re.compile(r"(\w+) (\d*)([uif]\d|S)@(\d+)")


@cache
def record_type(name: str) -> RecordType:
    """Return the NumPy structured type of the record kind `name`, including the envelope.

    Raises KeyError if there is no such layout.
    """
    if name in _PAYLOADS:
        size, fields = _PAYLOADS[name]
        return _structured(size, [(_HEADER, 0), (fields, _HEADER_BYTES)])
    size, fields = _RECORDS[name]
    return _structured(size, [(fields, 0)])


def names() -> tuple[str, ...]:
    """Return the names of all layouts."""
    return (*_PAYLOADS, *_RECORDS)


def _structured(size: int, groups: list[tuple[str, int]]) -> RecordType:
    formats: dict[str, Any] = {}
    offsets: list[int] = []
    for text, base in groups:
        for field, count, kind, offset in _FIELD.findall(text):
            if kind == "S":
                formats[field] = f"S{count}"
            else:
                formats[field] = (f"<{kind}", (int(count),)) if count else f"<{kind}"
            offsets.append(base + int(offset))
    return np.dtype(
        {
            "names": list(formats),
            "formats": list(formats.values()),
            "offsets": offsets,
            "itemsize": size,
        }
    )


_RESERVED = {255: "RESERVED"}  # Names of the numbers in records of collectives.


def _numbered(names: str, **others: int) -> dict[int, str]:
    named = dict(enumerate(names.split()))
    return named | {number: name for name, number in others.items()} | _RESERVED


DPU_REDUCTIONS = _numbered("SUM MUL MAX MIN")
CCU_REDUCTIONS = _numbered("SUM PROD MAX MIN")
LINKS = _numbered("ON_CHIP HCCS PCIE ROCE SIO HCCS_SW STANDARD_ROCE UB UBoE")
TRANSPORTS = _numbered("SDMA RDMA LOCAL UB ROCE")
RDMA_KINDS = _numbered("RDMA_SEND_NOTIFY RDMA_SEND_PAYLOAD")
DATA_TYPES = _numbered(
    "INT8 INT16 INT32 FP16 FP32 INT64 UINT64 UINT8 UINT16 UINT32 FP64 BFP16 INT128",
    HIF8=14,
    FP8E4M3=15,
    FP8E5M2=16,
    FP8E8M0=17,
)


def name_of(names: dict[int, str], number: int) -> str:
    """Return the name of `number`; if unknown, the number as a string."""
    return names.get(number, str(number))
