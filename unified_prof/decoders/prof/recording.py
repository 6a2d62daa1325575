"""Decodes a whole recording: the host side first, then one device after another."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

from unified_prof.columns import Sink
from unified_prof.decoders.overlap import OverlapWriter
from unified_prof.decoders.prof.device_side import File, decode_device, decode_registered
from unified_prof.decoders.prof.host.marks import write_marks
from unified_prof.decoders.prof.host_side import HostSide
from unified_prof.decoders.prof.identity.task_keys import IdCounter
from unified_prof.decoders.prof.raw.dictionaries import report_gaps
from unified_prof.decoders.prof.raw.directory import HostDirectory, ProfDirectory
from unified_prof.decoders.prof.raw.workspace import Workspace
from unified_prof.decoders.prof.registry import DEVICE_DECODERS, HOST_DECODERS, HOST_TASK_DECODERS
from unified_prof.decoders.prof.session_tables import write_session
from unified_prof.decoders.prof.stages import Stage
from unified_prof.errors import RawFormatError


def decode_recording(
    prof: ProfDirectory,
    sink: Sink,
    stage: Stage = lambda _: nullcontext(),
    workspace: Workspace | None = None,
) -> None:
    """Write every table that a recording can feed.

    A part that cannot be decoded is counted as an anomaly and costs its own tables only.

    Args:
        prof: the recording.
        sink: takes the rows.
        stage: is told what is being done.
        workspace: how much to have in memory at a time.

    Raises:
        RawFormatError: not even the session can be told.
    """
    prof.report_problems(sink)
    with stage("session"):
        write_session(prof, sink)
    workspace = workspace or Workspace()
    file = File(
        sink,
        stage,
        workspace,
        prof.process_id,
        IdCounter(),
        OverlapWriter(sink, workspace.spool, workspace.window_rows),
    )
    with ExitStack() as stack:
        host_side = None if prof.host is None else _decode_host(prof.host, file, stack)
        _decode_devices(prof, host_side, file)
    report_gaps(prof.dictionaries, sink)


def _decode_devices(prof: ProfDirectory, host_side: HostSide | None, file: File) -> None:
    by_id = {device.device_id: device for device in prof.devices}
    launched = set() if host_side is None else host_side.device_ids()
    for device_id in sorted(by_id.keys() | launched):
        device = by_id.get(device_id)
        try:
            decode_device(device_id, device, host_side, file)
        except RawFormatError as err:
            file.sink.anomaly("undecoded_part", 1, f"tasks of device {device_id}: {err}")
        if device is not None:
            decode_registered(DEVICE_DECODERS, device, file)


def _decode_host(host: HostDirectory, file: File, stack: ExitStack) -> HostSide | None:
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
