"""Decodes a PROF_* recording: session tables, first the host, then each device, and coverage.

Also lists the parts that are not decoded.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unified_prof.base.columns import Coverage, Sink, Stage
from unified_prof.decoders.overlap import DeviceOverlap, OverlapWriter
from unified_prof.decoders.prof import ccu_dpu, device_samples, host_samples
from unified_prof.decoders.prof.aicpu_collectives import (
    AicpuContext,
    AicpuRecords,
    find_collectives,
    read_aicpu,
    write_collectives,
)
from unified_prof.decoders.prof.collectives import CommunicationTimes, Steps
from unified_prof.decoders.prof.compute_info import Launched
from unified_prof.decoders.prof.directory import (
    CONTROL_FILES,
    DeviceDirectory,
    HostDirectory,
    ProfDirectory,
)
from unified_prof.decoders.prof.host_events import (
    TaskTypes,
    decode_operator_memory,
    device_marks,
    write_marks,
)
from unified_prof.decoders.prof.host_side import STEP, HostSide
from unified_prof.decoders.prof.pmu_records import decode_task_pmu
from unified_prof.decoders.prof.pmu_tables import decode_sample_pmu
from unified_prof.decoders.prof.slices import DataFolder, Workspace
from unified_prof.decoders.prof.task_join import (
    JOINED_TASK,
    DeviceTasks,
    OutputContext,
    TaskIdentities,
    TaskWriter,
    identify,
    join,
)
from unified_prof.decoders.prof.task_log import (
    EXECUTED_TASK,
    IdCounter,
    Rounds,
    TaskStreams,
    read_task_log,
    read_track,
)
from unified_prof.decoders.spool import Rows, Spool, selected, stacked, windows
from unified_prof.errors import RawFormatError

# Chips whose databases were compared with the exporter's: 910A, 310P, 910B, 310B, 950.
TESTED_PLATFORMS = (1, 4, 5, 7, 15)

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
        # Looks at records without counting them as read.
        pieces = replace(device.data.get("aicpu"), read={}).pieces("aicpu")
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


# Types of launches that do not bound the time in which a device was in use.
_NOT_BOUNDING = (
    "KERNEL_AICORE KERNEL_AIVEC KERNEL_MIX_AIC KERNEL_MIX_AIV FFTS_PLUS PROFILING_ENABLE"
    " PROFILING_DISABLE"
).split()


class Decoder(NamedTuple):
    """A decoder that needs only one part of a recording."""

    name: str  # Name of the stage in timings and anomalies.
    decode: Callable[..., None]
    # File names as in `DataFolder`: the decoder runs if one of them has data, or always if empty.
    files: tuple[str, ...]
    # Platforms for which the exporter evaluates these files; empty: all.
    platforms: frozenset[int] = frozenset()


def _platforms(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split())


# Platforms known to the exporter. A newer one gets all decoders.
_KNOWN_PLATFORMS = _platforms("0 1 2 3 4 5 7 8 9 11 15 16")

# decode(device, sink). Platforms are those of the exporter's list of parsers.
DEVICE_DECODERS = (
    Decoder("ddr", device_samples.decode_ddr, ("ddr",), _platforms("0 1 2 3 4 7 8 11")),
    Decoder("frequency", device_samples.decode_frequency, ()),
    Decoder("hbm", device_samples.decode_hbm, ("hbm",)),
    Decoder("hccs", device_samples.decode_hccs, ("hccs",), _platforms("0 1 2 3 4 5")),
    Decoder("llc", device_samples.decode_llc, ("llc",)),
    Decoder(
        "netdev_stats",
        device_samples.decode_netdev_stats,
        ("netdev_stats",),
        _platforms("0 1 2 3 4 5 7 8 11"),
    ),
    Decoder("nic", device_samples.decode_nic, ("nic",), _platforms("0 1 5 7 8 11")),
    Decoder("npu_mem", device_samples.decode_npu_mem, ("npu_mem", "npu_mem.app")),
    Decoder("npu_module_mem", device_samples.decode_npu_module_mem, ("npu_module_mem",)),
    Decoder("pcie", device_samples.decode_pcie, ("pcie",), _platforms("0 1 2 3 4 5 15 16")),
    Decoder("qos", device_samples.decode_qos, ("qos",), _platforms("5")),
    Decoder("roce", device_samples.decode_roce, ("roce",), _platforms("0 1 5")),
    Decoder("sample_pmu", decode_sample_pmu, ("ffts_profile", "aicore", "aiVectorCore")),
    Decoder(
        "stars_samples", device_samples.decode_stars_samples, ("stars_soc", "stars_soc_profile")
    ),
    Decoder("unified_bus", device_samples.decode_unified_bus, ("ub",), _platforms("15 16")),
)

# decode(device, tasks, sink): after the tasks of the device are known.
TASK_DECODERS = (
    Decoder("ccu", ccu_dpu.decode_ccu, ("ccu0.instr", "ccu1.instr")),
    Decoder("task_pmu", decode_task_pmu, ("ffts_profile", "aicore", "aiVectorCore")),
)

# decode(host, sink)
HOST_DECODERS = (
    Decoder("host_cpu", host_samples.decode_host_cpu, ("host_cpu",)),
    Decoder("host_disk", host_samples.decode_host_disk, ("host_disk",)),
    Decoder("host_mem", host_samples.decode_host_mem, ("host_mem",)),
    Decoder("host_network", host_samples.decode_host_network, ("host_network",)),
    Decoder("os_calls", host_samples.decode_os_calls, ("host_syscall", "host_pthreadcall")),
    Decoder(
        "operator_memory",
        decode_operator_memory,
        ("unaging.additional.task_memory_info", "aging.additional.task_memory_info"),
    ),
)

# decode(host, ids, sink): tasks that only the host records.
_DPU_KINDS = ("compact.dpu_track", "additional.dpu_hccl_info")
HOST_TASK_DECODERS = (
    Decoder(
        "dpu",
        ccu_dpu.decode_dpu,
        tuple(f"{age}.{kind}" for kind in _DPU_KINDS for age in ("unaging", "aging")),
    ),
)

# Kinds of files that are read: names as in `DataFolder`, without the prefix of aging. The listed
# ones are read together with others, all others by a `Decoder`.
DECODED = frozenset(
    """
    api_event compact.task_track compact.node_basic_info compact.node_attr_info
    compact.hccl_op_info compact.memcpy_info compact.capture_stream_info compact.expand_stream_spec
    additional.tensor_info additional.context_id_info additional.hccl_info additional.msproftx
    additional.mc2_comm_info additional.hash_dic additional.type_info_dic
    additional.capture_op_info variable.capture_op_info additional.ccu_group_info
    additional.ccu_wait_signal_info hwts ts_track aicpu lpmFreqConv lpmInfoConv ccu0.stat ccu1.stat
    """.split()
) | {
    _AGING.sub("", kind, count=1)
    for decoder in (*DEVICE_DECODERS, *TASK_DECODERS, *HOST_DECODERS, *HOST_TASK_DECODERS)
    for kind in decoder.files
}


def decode_device(
    device_id: int, device: DeviceDirectory | None, host_side: HostSide | None, file: OutputContext
) -> None:
    """Write the tables of one device's tasks, both logged tasks and tasks that were only launched.

    `device` is None if only the host recorded the device, `host_side` without a host directory.
    """
    with ExitStack() as stack:
        if host_side is None:
            launched = stack.enter_context(Launched(TaskTypes(()), STEP, file.workspace))
        else:
            launched = host_side.launched(device_id)
        if device is None:
            none = stack.enter_context(file.workspace.spool(EXECUTED_TASK))
            wide = host_side is not None and host_side.host.has_wide_task_ids
            with file.stage("tasks"):
                join(launched, none, none, None, file, wide_task_ids=wide)
            return
        tasks = _DeviceTaskDecoder(device, host_side, launched, file).write(stack)
    decode_registered(TASK_DECODERS, device, file, tasks)


def decode_registered(
    decoders: tuple[Decoder, ...],
    part: DeviceDirectory | HostDirectory,
    file: OutputContext,
    *arguments: Any,
) -> None:
    """Run the decoders whose files exist; if a decoder fails, only its own tables are missing.

    Files that the exporter does not evaluate on this platform are counted as an anomaly.
    """
    for decoder in decoders:
        found = [name for name in decoder.files if part.data.get(name)]
        if decoder.files and not found:
            continue
        if decoder.platforms and part.platform in _KNOWN_PLATFORMS - decoder.platforms:
            file.sink.anomaly(
                "not_evaluated_on_platform",
                len(found),
                f"{part.data.path}: {found[0]}.data of platform {part.platform} has no table",
            )
            continue
        with file.stage(decoder.name):
            try:
                decoder.decode(part, *arguments, file.sink)
            except RawFormatError as err:
                file.sink.anomaly("undecoded_part", 1, f"{decoder.name}: {err}")


class _DeviceTaskDecoder:
    """Decodes tasks and launches of a device that has a directory."""

    def __init__(
        self,
        device: DeviceDirectory,
        host_side: HostSide | None,
        launched: Launched,
        file: OutputContext,
    ) -> None:
        self._device, self._host_side = device, host_side
        self._launched, self._file = launched, file
        self._expanded = host_side is not None and host_side.expanded_streams
        clock = device.clocks.device
        if clock is None:
            raise RawFormatError(
                f"{device.path}: the frequency or origin of the device counter is missing"
                " (hwts_frequency of info.json, dev_start.log)",
                slug="damaged-recording",
            )
        self._clock = clock

    def write(self, stack: ExitStack) -> DeviceTasks:
        """Write all tables of the device's tasks; return the tasks by identity."""
        file, device, wide = self._file, self._device, self._device.has_wide_task_ids
        executed, joined = (
            stack.enter_context(file.workspace.spool(dtype, key))
            for dtype, key in ((EXECUTED_TASK, "key"), (JOINED_TASK, "place"))
        )
        overlap = stack.enter_context(file.overlap.device(device.device_id))
        # Only task decoders look up tasks by identity.
        are_looked_up = any(device.data.get(*decoder.files) for decoder in TASK_DECODERS)
        with file.stage("task log"):
            track = read_track(device, expanded=self._expanded)
            aicpu = read_aicpu(device, file.sink)
            streams = _task_streams(self._launched, aicpu) if wide else TaskStreams.none()
            with file.workspace.spool(EXECUTED_TASK, "start") as by_start:
                read_task_log(device, by_start, file.workspace, file.sink, expanded=self._expanded)
                identify(
                    by_start,
                    executed,
                    Rounds(track.flips, at_flip=True),
                    self._clock,
                    device.session.start_ns,
                    file,
                    streams=streams if wide else None,
                )
        with file.stage("operators"):
            identified = TaskIdentities.allocate(executed.rows if are_looked_up else 0)
            known = identified if are_looked_up else None
            join(self._launched, executed, joined, known, file, wide_task_ids=wide)
        with file.stage("tasks"):
            steps, rows = self._write_tasks(joined, overlap)
            if not wide:  # ts_track of those platforms has another layout
                device_marks(device, track.marks, file.process_id, file.ids, file.sink)
        with file.stage("communication"):
            spans = CommunicationTimes.none()
            if joined.rows:
                spans = self._write_communication(steps, rows, aicpu, streams)
        with file.stage("overlap"):
            if joined.rows:
                overlap.finish((spans.start_ns, spans.end_ns))
        tasks = identified.filled()
        return DeviceTasks(
            ids=file.ids,
            flips=track.flips,
            wide_task_ids=wide,
            expanded_streams=self._expanded,
            key=tasks.key,
            global_task_id=tasks.global_task_id,
            block_num=tasks.block_num,
            mix_block_num=tasks.mix_block_num,
            host=None if self._host_side is None else self._host_side.host,
            streams=streams,
        )

    def _write_tasks(self, joined: Spool, overlap: DeviceOverlap) -> tuple[Steps, Rows]:
        """Write TASK; return the collective tasks, and all tasks if AI CPUs run collectives."""
        file, host_side = self._file, self._host_side
        captures = None if host_side is None else host_side.captures
        writer = TaskWriter(self._device, self._clock, self._launched.types, captures, file)
        not_bounding = self._launched.types.is_one_of(*_NOT_BOUNDING)
        keep_all = host_side is not None and bool(host_side.collective_streams.of_kernels)
        steps, kept = [np.zeros(0, JOINED_TASK)], [np.zeros(0, JOINED_TASK)]
        duration = self._clock.duration()
        for (rows,) in windows(joined, window_rows=file.workspace.window_rows):
            start_ns, _ = writer.write(rows)
            # The exporter adds the truncated duration to the truncated start, which may give one
            # nanosecond less than the truncated end.
            end_ns = start_ns + duration.to_ns(rows["end"] - rows["start"])
            bounds = ~np.r_[not_bounding, False][rows["type_index"]]  # -1 is the last
            computes = rows["is_compute"]
            overlap.add((start_ns[bounds], end_ns[bounds]), (start_ns[computes], end_ns[computes]))
            steps.append(selected(rows, rows["step"] >= 0))
            if keep_all:
                kept.append(rows)
        writer.finish()
        found = stacked(steps)
        records = selected(self._launched.steps(), found["step"])
        return (
            Steps(
                records,
                self._clock.to_ns(found["start"]),
                self._clock.to_ns(found["end"]),
                found["global_task_id"].copy(),
                found["start"].copy(),
                found["end"].copy(),
            ),
            stacked(kept),
        )

    def _write_communication(
        self, steps: Steps, rows: Rows, aicpu: AicpuRecords, streams: TaskStreams
    ) -> CommunicationTimes:
        """Write the collectives launched by the host and those launched by AI CPUs."""
        host_side, sink = self._host_side, self._file.sink
        if host_side is None:
            return CommunicationTimes.none()
        if not host_side.collective_streams.of_kernels and not len(aicpu):
            return host_side.communication.write(self._device.device_id, steps, self._clock, None)
        # Imported here: few recordings need it, and it is a quarter of the imports of a small one.
        context = AicpuContext(
            self._device,
            rows,
            self._clock,
            self._launched.kernels(),
            host_side.collective_streams,
            host_side.host.dictionaries,
            aicpu,
            streams,
        )
        ran = find_collectives(context, sink)
        spans = host_side.communication.write(
            self._device.device_id, steps, self._clock, None if ran is None else ran.flags()
        )
        if ran is None or not ran.operators:
            return spans
        device_only = write_collectives(
            context, ran, host_side.communication, spans.id_by_name, sink
        )
        return CommunicationTimes(
            np.concatenate([spans.start_ns, device_only.start_ns]),
            np.concatenate([spans.end_ns, device_only.end_ns]),
        )


def _task_streams(launched: Launched, aicpu: AicpuRecords) -> TaskStreams:
    """Return the tasks launched by the host or an AI CPU; of equal ids, that of the host first."""
    tasks = launched.task_streams()
    task = np.concatenate([tasks.task_id, aicpu.tasks["task_id"]])
    stream = np.concatenate([tasks.stream_id, aicpu.tasks["stream_id"].astype(np.uint32)])
    order = np.argsort(task, kind="stable")
    return TaskStreams(task[order], stream[order])


def decode_recording(
    prof: ProfDirectory,
    sink: Sink,
    stage: Stage = lambda _: nullcontext(),
    workspace: Workspace | None = None,
) -> None:
    """Write all tables that the recording has data for.

    If a part cannot be decoded, only its own tables are missing, and an anomaly is counted. `stage`
    is called with the name of each stage; it returns a context manager. Raises RawFormatError if
    the start of the session is unknown.
    """
    prof.report_problems(sink)
    with stage("session"):
        write_session(prof, sink)
    workspace = workspace or Workspace()
    file = OutputContext(
        sink,
        stage,
        workspace,
        prof.process_id,
        IdCounter(),
        OverlapWriter(sink, workspace.spool, workspace.window_rows),
    )
    with ExitStack() as stack:
        host_side = None if prof.host is None else _decode_host(prof.host, file, stack)
        by_id = {device.device_id: device for device in prof.devices}
        launched = {} if host_side is None else host_side.launched_on
        for device_id in sorted(by_id.keys() | launched.keys()):
            device = by_id.get(device_id)
            try:
                decode_device(device_id, device, host_side, file)
            except RawFormatError as err:
                sink.anomaly("undecoded_part", 1, f"tasks of device {device_id}: {err}")
            if device is not None:
                decode_registered(DEVICE_DECODERS, device, file)
    prof.dictionaries.report_gaps(sink)


def _decode_host(host: HostDirectory, file: OutputContext, stack: ExitStack) -> HostSide | None:
    side = None
    try:
        side = stack.enter_context(HostSide(host, file.sink, file.stage, file.workspace))
        with file.stage("marks"):
            write_marks(host, file.sink)
    except RawFormatError as err:
        file.sink.anomaly("undecoded_part", 1, f"host calls and launches: {err}")
    decode_registered(HOST_DECODERS, host, file)
    decode_registered(HOST_TASK_DECODERS, host, file, file.ids)
    return side
