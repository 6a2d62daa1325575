"""One device of a recording: its tasks joined with what launched them, to their tables."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink
from unified_prof.decoders.overlap import DeviceOverlap, OverlapWriter
from unified_prof.decoders.prof.collectives.aicpu_records import AicpuRecords, read_aicpu
from unified_prof.decoders.prof.collectives.communication import CommunicationTimes, Steps
from unified_prof.decoders.prof.collectives.communication_records import STEP
from unified_prof.decoders.prof.device.joined_tasks import DeviceTasks
from unified_prof.decoders.prof.device.joining import JOINED, Identified, identify, join
from unified_prof.decoders.prof.device.logged_tasks import TaskRows, TaskWriter
from unified_prof.decoders.prof.device.task_log import RAN, read_task_log
from unified_prof.decoders.prof.device.ts_track import Track, read_track
from unified_prof.decoders.prof.host.launched import Launched
from unified_prof.decoders.prof.host.marks import device_marks
from unified_prof.decoders.prof.host.task_track import TaskTypes
from unified_prof.decoders.prof.host_side import HostSide
from unified_prof.decoders.prof.identity.flips import Rounds
from unified_prof.decoders.prof.identity.task_keys import IdCounter
from unified_prof.decoders.prof.raw.directory import DeviceDirectory, HostDirectory
from unified_prof.decoders.prof.raw.platforms import V6_PLATFORMS
from unified_prof.decoders.prof.raw.workspace import Workspace
from unified_prof.decoders.prof.registry import TASK_DECODERS
from unified_prof.decoders.prof.stages import Stage
from unified_prof.decoders.rows import selected, stacked
from unified_prof.decoders.spool import Spool
from unified_prof.decoders.windows import windows
from unified_prof.errors import RawFormatError

# Types of launches that say nothing about when a device was in use.
_NO_EVIDENCE = (
    "KERNEL_AICORE",
    "KERNEL_AIVEC",
    "KERNEL_MIX_AIC",
    "KERNEL_MIX_AIV",
    "FFTS_PLUS",
    "PROFILING_ENABLE",
    "PROFILING_DISABLE",
)


@dataclass(frozen=True, slots=True)
class File:
    """What all devices of one database share."""

    sink: Sink
    stage: Stage
    workspace: Workspace
    process_id: int
    ids: IdCounter
    overlap: OverlapWriter


def decode_device(
    device_id: int, device: DeviceDirectory | None, host_side: HostSide | None, file: File
) -> None:
    """Write the tables about the tasks of one device: those it logged, those launched for it.

    Args:
        device_id: the device.
        device: its directory, None when only the host knows of it.
        host_side: what the host recorded, None without a host directory.
        file: where rows and ids go.

    Raises:
        RawFormatError: a file that all tables need cannot be read.
    """
    with ExitStack() as stack:
        if host_side is None:
            launched = stack.enter_context(Launched(TaskTypes(()), STEP, file.workspace))
        else:
            launched = host_side.launched(device_id)
        if device is None:
            nothing = stack.enter_context(file.workspace.spool(RAN))
            with file.stage("tasks"):
                _join(launched, nothing, nothing, None, file, _wide(device, host_side))
            return
        described = _Logged(device, host_side, launched, file).write(stack)
    decode_registered(TASK_DECODERS, device, file, described)


def decode_registered(
    decoders: tuple[tuple[str, tuple[str, ...]], ...],
    part: DeviceDirectory | HostDirectory,
    file: File,
    *more: Any,
) -> None:
    """Run the decoders whose files are there; one that fails costs its own tables."""
    for module, files in decoders:
        if not files or any(part.data.get(name) for name in files):
            name = module.rpartition(".")[2]
            with file.stage(name):
                try:
                    decoder = import_module(f"unified_prof.decoders.prof.{module}")
                    decoder.decode(part, *more, file.sink)
                except RawFormatError as err:
                    file.sink.anomaly("undecoded_part", 1, f"{name}: {err}")


class _Logged:
    """One device that has a directory, and what was launched for it."""

    def __init__(
        self,
        device: DeviceDirectory,
        host_side: HostSide | None,
        launched: Launched,
        file: File,
    ) -> None:
        self._device, self._host_side = device, host_side
        self._launched, self._file = launched, file
        self._wide = _wide(device, host_side)
        self._expanded = host_side is not None and host_side.expanded_streams
        clock = device.clocks.device
        if clock is None:
            raise RawFormatError(
                f"{device.path} does not say how its counter runs"
                " (hwts_frequency of info.json, dev_start.log)",
                slug="damaged-recording",
            )
        self._clock = clock

    def write(self, stack: ExitStack) -> DeviceTasks:
        """Write all tables about the device's tasks; returns what is known of these."""
        file, device = self._file, self._device
        by_key, joined = (
            stack.enter_context(file.workspace.spool(dtype, key))
            for dtype, key in ((RAN, "key"), (JOINED, "place"))
        )
        overlap = stack.enter_context(file.overlap.device(device.device_id))
        with file.stage("task log"):
            track = read_track(device, expanded=self._expanded)
            aicpu = read_aicpu(device, file.sink)
            stream_by_task = _streams(self._launched, aicpu) if self._wide else (_NO_IDS, _NO_IDS)
            self._identify(by_key, track, stream_by_task)
        with file.stage("operators"):
            identified = Identified.room_for(by_key.rows if self._is_asked() else 0)
            _join(
                self._launched,
                by_key,
                joined,
                identified if self._is_asked() else None,
                file,
                self._wide,
            )
        with file.stage("tasks"):
            steps, rows = self._write_tasks(joined, overlap)
            if not self._wide:  # ts_track of those platforms has another layout
                device_marks(device, track.marks, file.process_id, file.ids, file.sink)
        with file.stage("communication"):
            spans = CommunicationTimes.none()
            if joined.rows:
                spans = self._write_communication(steps, rows, aicpu, stream_by_task)
        with file.stage("overlap"):
            if joined.rows:
                overlap.finish((spans.start_ns, spans.end_ns))
        tasks = identified.filled()
        return DeviceTasks(
            ids=file.ids,
            flips=track.flips,
            wide_task_ids=self._wide,
            expanded_streams=self._expanded,
            key=tasks.key,
            global_task_id=tasks.global_task_id,
            block_num=tasks.block_num,
            mix_block_num=tasks.mix_block_num,
            host=None if self._host_side is None else self._host_side.host,
            stream_by_task=stream_by_task,
        )

    def _is_asked(self) -> bool:
        """Tell whether decoders will ask for tasks by their identity."""
        return any(self._device.data.get(name) for _, files in TASK_DECODERS for name in files)

    def _identify(
        self,
        by_key: Spool,
        track: Track,
        stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    ) -> None:
        file, workspace = self._file, self._file.workspace
        with workspace.spool(RAN, "start") as by_start:
            read_task_log(self._device, by_start, workspace, file.sink, expanded=self._expanded)
            identify(
                by_start,
                by_key,
                Rounds(track.flips, at_flip=True),
                self._clock,
                self._device.session.start_ns,
                workspace,
                file.sink,
                stream_by_task=stream_by_task if self._wide else None,
            )

    def _write_tasks(self, joined: Spool, overlap: DeviceOverlap) -> tuple[Steps, TaskRows | None]:
        """Write TASK; returns the steps of collectives, and all tasks where AI CPUs ran some."""
        file, host_side = self._file, self._host_side
        writer = TaskWriter(
            self._device.device_id,
            self._clock,
            self._launched.types,
            None if host_side is None else host_side.captures,
            self._device.platform,
            file.process_id,
            file.sink,
        )
        no_evidence = self._launched.types.named(*_NO_EVIDENCE)
        keep_all = host_side is not None and bool(host_side.collective_streams.of_kernels)
        steps, kept = [np.zeros(0, JOINED)], [np.zeros(0, JOINED)]
        duration = self._clock.duration()
        for (rows,) in windows(joined, window_rows=file.workspace.window_rows):
            start_ns, _ = writer.write(rows)
            # An end is the whole nanoseconds of the start plus those of the duration, which may be
            # one less than those of the end itself.
            end_ns = start_ns + duration.to_ns(rows["end"] - rows["start"])
            bounds = ~np.r_[no_evidence, False][rows["type_index"]]  # -1 is the last
            computes = rows["is_compute"]
            overlap.add((start_ns[bounds], end_ns[bounds]), (start_ns[computes], end_ns[computes]))
            steps.append(selected(rows, rows["step"] >= 0))
            if keep_all:
                kept.append(rows)
        writer.finish()
        found = stacked(steps)
        told = selected(self._launched.steps(), found["step"])
        return (
            Steps(
                told,
                self._clock.to_ns(found["start"]),
                self._clock.to_ns(found["end"]),
                found["global_task_id"].copy(),
                found["start"].copy(),
                found["end"].copy(),
            ),
            TaskRows.of(stacked(kept), self._clock) if keep_all else None,
        )

    def _write_communication(
        self,
        steps: Steps,
        rows: TaskRows | None,
        aicpu: AicpuRecords,
        stream_by_task: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    ) -> CommunicationTimes:
        """Write the collectives of the host, and those that AI CPUs ran by themselves."""
        host_side, sink = self._host_side, self._file.sink
        if host_side is None:
            return CommunicationTimes.none()
        if not host_side.collective_streams.of_kernels and not len(aicpu):
            return host_side.communication.write(self._device.device_id, steps, self._clock, None)
        # Few recordings have any, and what tells them is a quarter of what a small one imports.
        from unified_prof.decoders.prof.collectives.aicpu_collectives import find_collectives
        from unified_prof.decoders.prof.collectives.aicpu_operators import Ground
        from unified_prof.decoders.prof.collectives.aicpu_rows import write_collectives

        ground = Ground(
            self._device,
            TaskRows.of(np.zeros(0, JOINED), self._clock) if rows is None else rows,
            self._launched.kernels(),
            host_side.collective_streams,
            host_side.host.dictionaries,
            aicpu,
            stream_by_task,
        )
        ran = find_collectives(ground, sink)
        spans = host_side.communication.write(
            self._device.device_id, steps, self._clock, None if ran is None else ran.flags()
        )
        if ran is None or not ran.operators:
            return spans
        own = write_collectives(ground, ran, host_side.communication, spans.id_by_name, sink)
        return CommunicationTimes(
            np.concatenate([spans.start_ns, own.start_ns]),
            np.concatenate([spans.end_ns, own.end_ns]),
        )


def _join(
    launched: Launched,
    ran: Spool,
    joined: Spool,
    identified: Identified | None,
    file: File,
    wide: bool,
) -> None:
    join(
        launched,
        ran,
        joined,
        identified,
        file.ids,
        file.workspace,
        file.sink,
        wide_task_ids=wide,
    )


def _streams(
    launched: Launched, aicpu: AicpuRecords
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the stream of every 32-bit task id that the host or an AI CPU launched.

    Returns:
        Ascending ids, and the streams; of equal ids the host's is the first.
    """
    task, stream = launched.stream_by_task()
    task = np.concatenate([task, aicpu.tasks["task_id"]])
    stream = np.concatenate([stream, aicpu.tasks["stream_id"].astype(np.uint32)])
    order = np.argsort(task, kind="stable")
    return task[order], stream[order]


def _wide(device: DeviceDirectory | None, host_side: HostSide | None) -> bool:
    """Tell whether task ids have 32 bits."""
    if device is not None:
        return device.platform in V6_PLATFORMS
    return host_side is not None and host_side.host.platform in V6_PLATFORMS


_NO_IDS = np.zeros(0, np.uint32)
