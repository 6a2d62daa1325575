"""Lists the parts of a recording that are not decoded, and writes its session tables."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np

from unified_prof.base.columns import Coverage, Sink
from unified_prof.decoders.prof.directory import CONTROL_FILES, DeviceDirectory, ProfDirectory
from unified_prof.decoders.prof.slices import DataFolder

# Chips whose databases were compared with the exporter's: 910A, 310P, 910B, 310B, 950.
TESTED_PLATFORMS = (1, 4, 5, 7, 15)

# Kinds of files that are read: names as in `DataFolder`, without the prefix of aging.
DECODED = frozenset(
    """
    api_event compact.task_track compact.node_basic_info compact.node_attr_info
    compact.hccl_op_info compact.memcpy_info compact.capture_stream_info compact.expand_stream_spec
    compact.dpu_track additional.tensor_info additional.context_id_info additional.hccl_info
    additional.msproftx additional.task_memory_info additional.mc2_comm_info additional.hash_dic
    additional.type_info_dic additional.capture_op_info variable.capture_op_info
    additional.dpu_hccl_info additional.ccu_group_info additional.ccu_wait_signal_info
    host_cpu host_mem host_disk host_network host_syscall host_pthreadcall
    stars_soc stars_soc_profile ffts_profile hwts ts_track aicore aiVectorCore aicpu lpmFreqConv
    lpmInfoConv
    hbm llc ddr hccs pcie nic roce netdev_stats npu_mem npu_mem.app npu_module_mem qos ub
    ccu0.instr ccu1.instr ccu0.stat ccu1.stat
    """.split()
)

# Patterns of kinds that the exporter does not use for its database.
WITHOUT_TABLE = (
    *("additional.ccu_task_info", "additional.fusion_op_info", "additional.graph_id_map"),
    *("additional.logic_stream_info", "additional.memory_application", "additional.static_op_mem"),
    *("additional.Multi_Thread", "ai_ctrl_cpu", "ctrlcpu", "tscpu", "l2_cache", "socpmu", "dvpp"),
    *("Memory", r"\d+-Memory", "SystemCpuUsage", r"\d+-CpuUsage", "host_sys_cpu", "host_sys_mem"),
    *(r"host_platform_uncore\.bin", r"instr\..*", r"DATA_PREPROCESS\..*", r".*\.dbg"),
)

# Patterns of kinds that may have a table in the database, and their content.
UNDECODED = {
    "additional.dpu_hccl_track": "collectives of DPUs (DPU_TASK)",
    "additional.model_exeom": "models of chips without operating system (TASK)",
    "nano_stars_profile": "tasks of chips without operating system (TASK)",
    "stars_block": "blocks of tasks",
    r"hwts\.aiv_data.*|ts_track\.aiv_data.*": "tasks of separate vector cores (TASK)",
    r"(?:AclModule|Framework|HCCL|[rR]untime)\..*": "records of old CANN versions",
}

# Directories of a part that msprof's own analysis makes from the recording.
MADE_BY_MSPROF = {"analyze", "log", "query", "sqlite", "summary", "timeline"}

# Type of AI CPU records about collectives whose layout is not known.
_UNKNOWN_COLLECTIVE = 6
_AGING = re.compile(r"(?:un)?aging\.")
_NO_TABLE = re.compile("|".join(WITHOUT_TABLE))


def undecoded(prof: ProfDirectory) -> tuple[str, ...]:
    """Return a description of each part of a recording that has a table but is not decoded."""
    found = [] if prof.host is None else [f"host: {what}" for what in _files(prof.host.data)]
    for device in prof.devices:
        name = f"device {device.device_id}"
        if device.platform not in TESTED_PLATFORMS:
            found.append(
                f"{name} has platform_version {device.platform}: decoded like the most similar"
                " platform, which may be wrong"
            )
        file = device.data.get("aicpu")
        # Looks at records without counting them as read.
        pieces = replace(file, read={}).pieces("aicpu") if file is not None else ()
        if any(np.any(piece["type"] == _UNKNOWN_COLLECTIVE) for piece in pieces):
            found.append(
                f"{name}: collectives of AI CPU kernels, records of type 6 (COMMUNICATION_*)"
            )
        found += [f"{name}: {what}" for what in _files(device.data)]
    return tuple(found)


def report_coverage(prof: ProfDirectory, sink: Sink) -> None:
    """Count data that has a table but is not decoded as anomalies."""
    for what in undecoded(prof):
        sink.anomaly("undecoded_data", 1, what)


def write_coverage(prof: ProfDirectory, sink: Sink) -> None:
    """Write the bytes of each kind of file in all parts, after everything was decoded."""
    coverage = Coverage()
    host = [] if prof.host is None else [prof.host]
    for part in (*host, *prof.devices):
        name = f"device {part.device_id}" if isinstance(part, DeviceDirectory) else "host"
        kinds = {
            path: _AGING.sub("", kind, count=1)
            for kind, file in part.data.files.items()
            for path in file.paths
        }
        for folder, folders, files in os.walk(part.path):
            folders[:] = set(folders) - MADE_BY_MSPROF
            for path in (Path(folder, file) for file in files):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                kind, size = kinds.get(path), status.st_size
                skipped = without_table = 0
                if kind is None:
                    is_known = path.name.startswith(CONTROL_FILES) or path.suffix == ".done"
                    kind = "control files" if is_known else "other files"
                    without_table = 0 if is_known else size
                elif kind in DECODED:
                    skipped = max(size - part.data.read.get(path, 0), 0)
                else:
                    without_table = size
                coverage.add(
                    f"{name}: {kind}", "bytes", size, skipped=skipped, without_table=without_table
                )
    coverage.write(sink)


def why_not_decoded(kind: str) -> str | None:
    """Return the reason why files of a kind (as in `DataFolder`) are not decoded.

    None if they are decoded or contain nothing for a table.
    """
    kind = _AGING.sub("", kind, count=1)
    if kind in DECODED or _NO_TABLE.fullmatch(kind):
        return None
    for pattern, what in UNDECODED.items():
        if re.fullmatch(pattern, kind):
            return what
    return "unknown kind of file"


def _files(data: DataFolder) -> list[str]:
    """Return a description of each kind of non-empty file that is not decoded."""
    return [
        f"{kind}: {why}"
        for kind, file in sorted(data.files.items())
        if file.size_bytes and (why := why_not_decoded(kind)) is not None
    ]


_CHIPS = {
    0: "Ascend310",
    1: "Ascend910A",
    4: "Ascend310P",
    5: "Ascend910B",
    7: "Ascend310B",
    15: "Ascend950",
}
_UNKNOWN_CHIP = "UNKNOWN"
# Values of DeviceInfo in info.json that peaks are computed from: cores and MHz.
_DEVICE_PROPERTIES = ("ai_core_num", "aiv_num", "aic_frequency", "aiv_frequency")
_NONE = -1


def write_session(prof: ProfDirectory, sink: Sink) -> None:
    """Write SESSION_TIME_INFO, HOST_INFO, NPU_INFO, RANK_DEVICE_MAP and UPROF_GPU_DEVICES.

    Raises RawFormatError if the start of the recording is unknown.
    """
    first = prof.host or prof.devices[0]
    session = first.session
    sink.write(
        "SESSION_TIME_INFO", {"startTimeNs": [session.start_ns], "endTimeNs": [session.end_ns]}
    )
    info = {"hostUid": [first.info.text("hostUid", "0")], "hostName": [first.info.text("hostname")]}
    sink.write("HOST_INFO", info)
    ids = [device.device_id for device in prof.devices] or [_NONE]
    names = [_CHIPS.get(device.platform, _UNKNOWN_CHIP) for device in prof.devices]
    sink.write("NPU_INFO", {"id": ids, "name": names or [_UNKNOWN_CHIP]})
    sink.write("RANK_DEVICE_MAP", {"rankId": [_NONE] * len(ids), "deviceId": ids})
    properties = [
        (device.device_id, name, f"{value.normalize():f}")
        for device in prof.devices
        for name in _DEVICE_PROPERTIES
        if (value := device.device_info.decimal(name)) is not None
    ]
    if properties:
        columns = zip(("deviceId", "name", "value"), zip(*properties, strict=True), strict=True)
        sink.write("UPROF_GPU_DEVICES", dict(columns))
