"""SESSION_TIME_INFO, HOST_INFO, NPU_INFO and RANK_DEVICE_MAP: what was recorded, and when."""

from __future__ import annotations

from unified_prof.columns import Sink
from unified_prof.decoders.prof.raw.directory import ProfDirectory

_CHIPS = {
    0: "Ascend310",
    1: "Ascend910A",
    4: "Ascend310P",
    5: "Ascend910B",
    7: "Ascend310B",
    15: "Ascend950",
}
_UNKNOWN_CHIP = "UNKNOWN"
_NONE = -1


def write_session(prof: ProfDirectory, sink: Sink) -> None:
    """Write the tables that every recording has.

    Raises:
        RawFormatError: nothing says when the recording began.
    """
    first = prof.host or prof.devices[0]
    session = first.session
    sink.write(
        "SESSION_TIME_INFO", {"startTimeNs": [session.start_ns], "endTimeNs": [session.end_ns]}
    )
    sink.write(
        "HOST_INFO",
        {
            "hostUid": [first.info.text("hostUid", "0")],
            "hostName": [first.info.text("hostname")],
        },
    )
    ids = [device.device_id for device in prof.devices] or [_NONE]
    names = [_CHIPS.get(device.platform, _UNKNOWN_CHIP) for device in prof.devices]
    sink.write("NPU_INFO", {"id": ids, "name": names or [_UNKNOWN_CHIP]})
    sink.write("RANK_DEVICE_MAP", {"rankId": [_NONE] * len(ids), "deviceId": ids})
