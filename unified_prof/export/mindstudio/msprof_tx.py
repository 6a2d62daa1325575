"""msprof_tx: the marks that a program set, and the moments at which a device reached them."""

from __future__ import annotations

from unified_prof.arrays.lookup import Lookup
from unified_prof.export.mindstudio import numbers
from unified_prof.export.mindstudio.delivery import Delivery, lines
from unified_prof.export.mindstudio.marks import TABLE, Marks, event_names, marks
from unified_prof.export.mindstudio.recording import Recording, blocks
from unified_prof.export.mindstudio.registry import deliverable
from unified_prof.vocabulary import NOT_AVAILABLE

_HEADER = (
    *("Device_id", "pid", "tid", "category", "event_type", "payload_type", "payload_value"),
    *("Start_time(us)", "End_time(us)", "message_type", "message", "domain"),
    *("Device Start_time(us)", "Device End_time(us)"),
)
_NO_DOMAIN = ""


@deliverable("msprof_tx", tables=(TABLE,))
def write(recording: Recording, delivery: Delivery) -> None:
    """Write the table, in order of time; of older marks the category is known only."""
    found = marks(recording)
    delivery.table(
        "msprof_tx", _HEADER, len(found), (_block(recording, found, p) for p in blocks(len(found)))
    )
    if len(found) and not found.is_numbered.all():
        recording.leave_out(
            "msprof_tx",
            "payload and message type of marks set through the older interface",
            "not in the database",
        )


def _block(recording: Recording, found: Marks, part: slice) -> list[str]:
    device = recording.mark_tasks
    numbered = found.is_numbered[part]
    row = Lookup(device.connection).rows(found.connection[part])
    row[~numbered] = -1
    has_device = (row >= 0).tolist()

    def of_device(cells: list[str], without: str) -> list[str]:
        return [one if has else without for one, has in zip(cells, has_device, strict=True)]

    devices = numbers.integers(device.device[row]) if len(device) else ["host"] * len(row)
    begins = numbers.tabbed(numbers.microseconds(device.start_ns[row])) if len(device) else devices
    ends = numbers.tabbed(numbers.microseconds(device.end_ns[row])) if len(device) else devices
    nothing = [NOT_AVAILABLE] * len(row)
    category = numbers.integers(found.category[part])
    domain = recording.cells(found.domain[part])
    return lines(
        of_device(devices, "host"),
        numbers.integers(found.global_tid[part] >> 32),
        numbers.integers(found.global_tid[part] & 0xFFFFFFFF),
        [NOT_AVAILABLE if new else c for c, new in zip(category, numbered.tolist(), strict=True)],
        event_names(recording, found.event[part]),
        nothing,
        nothing,
        numbers.tabbed(numbers.microseconds(found.start_ns[part])),
        numbers.tabbed(numbers.microseconds(found.end_ns[part])),
        nothing,
        recording.cells(found.message[part]),
        [
            name if new and name != _NO_DOMAIN else NOT_AVAILABLE
            for name, new in zip(domain, numbered.tolist(), strict=True)
        ],
        of_device(begins, NOT_AVAILABLE),
        of_device(ends, NOT_AVAILABLE),
    )
