"""ACC_PMU, SOC_BANDWIDTH_LEVEL and SIO: samples that the task scheduler logs with its tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Column, Sink
from unified_prof.decoders.prof.raw import sampling
from unified_prof.decoders.prof.raw.directory import DeviceDirectory
from unified_prof.decoders.prof.raw.layouts import STARS_MAGIC
from unified_prof.decoders.prof.raw.slices import Records

_SIO, _ACC_PMU, _INTER_SOC = 25, 26, 28
_FUNCTION_BITS = 0x3F

_TASK_LOG = "stars_soc"
_SAMPLE_LOG = "stars_soc_profile"

# Platform 5: what is beside ACC_PMU in the task log is not evaluated.
_ONLY_ACC_PMU_IN_TASK_LOG = (5,)
# Platforms 15 and 16: the task log has records of another size.
_NO_SAMPLES_IN_TASK_LOG = (15, 16)

_SIO_COUNTERS = ("Req", "Rsp", "Snp", "Dat")


def decode(device: DeviceDirectory, sink: Sink) -> None:
    """Write the three tables from whatever samples the logs have."""
    _write_acc_pmu(device, sink)
    _write_bandwidth_levels(device, sink)
    _write_sio(device, sink)


def _write_acc_pmu(device: DeviceDirectory, sink: Sink) -> None:
    # Genuine databases of platforms other than 5 have reads and writes exchanged.
    read, write = ("read", "write") if device.platform == 5 else ("write", "read")
    for records, times_ns in sample_records(device, _ACC_PMU, "stars_acc_pmu"):
        columns: dict[str, Column] = {
            "accId": records["acc_id"],
            "readBwLevel": records[f"{read}_bandwidth"],
            "writeBwLevel": records[f"{write}_bandwidth"],
            "readOstLevel": records[f"{read}_ost"],
            "writeOstLevel": records[f"{write}_ost"],
            "timestampNs": times_ns,
            "deviceId": device.device_id,
        }
        sampling.write_samples(sink, "ACC_PMU", device, columns)


def _write_bandwidth_levels(device: DeviceDirectory, sink: Sink) -> None:
    """The record has the mata level in bits 2..0, but genuine databases have it exchanged."""
    for records, times_ns in sample_records(device, _INTER_SOC, "stars_inter_soc"):
        level = records["bw_level"]
        columns: dict[str, Column] = {
            "l2BufferBwLevel": level & 0x7,
            "mataBwLevel": level >> 3 & 0xFF,
            "timestampNs": times_ns,
            "deviceId": device.device_id,
        }
        sampling.write_samples(sink, "SOC_BANDWIDTH_LEVEL", device, columns)


def _write_sio(device: DeviceDirectory, sink: Sink) -> None:
    """Counters are those since the previous sample of the die, whose first one is left out."""
    v6 = device.platform in _NO_SAMPLES_IN_TASK_LOG
    neighbours = sampling.Neighbours()
    for records, times_ns in sample_records(device, _SIO, "stars_sio_v6" if v6 else "stars_sio"):
        die = (records["w0"] >> 10 if v6 else records["acc_id"]).astype(np.int64)
        exact_ns = sampling.rounded_device_ns(device, records["timestamp"])
        known, (before_ns,) = neighbours.previous(die, exact_ns)
        later, seconds = records[known], (exact_ns - before_ns)[known] / 1e9
        prefix = "D-DIE" if v6 else "die "
        dies, row = np.unique(die[known], return_inverse=True)
        names = np.asarray(sink.strings.intern_all(f"{prefix}{die}" for die in dies.tolist()))
        columns: dict[str, Column] = {
            "deviceId": device.device_id,
            "name": names[row] if len(names) else names,
            "timestampNs": times_ns[known],
        }
        for direction in ("rx", "tx"):
            for counter in _SIO_COUNTERS:
                counted = later[f"{counter.lower()}_{direction}"].astype(np.float64)
                columns[direction + counter] = np.divide(
                    counted, seconds, out=np.zeros(len(counted)), where=seconds > 0
                )
        sampling.write_samples(sink, "SIO", device, columns)


def sample_records(
    device: DeviceDirectory, function: int, layout: str
) -> Iterator[tuple[Records, NDArray[np.int64]]]:
    """Yield the records of one kind from both logs, and their times.

    Args:
        device: whose logs.
        function: the function code of the kind.
        layout: how its records look.
    """
    files = [_SAMPLE_LOG]
    if device.platform not in _NO_SAMPLES_IN_TASK_LOG and (
        function == _ACC_PMU or device.platform not in _ONLY_ACC_PMU_IN_TASK_LOG
    ):
        files.insert(0, _TASK_LOG)
    clock = None
    for file_name in files:
        for piece in sampling.pieces(device, file_name, layout):
            wanted = (piece["w0"] & _FUNCTION_BITS == function) & (piece["magic"] == STARS_MAGIC)
            if wanted.any():
                clock = clock or sampling.device_clock(device, f"{file_name}.data")
                records = piece[wanted]
                yield records, clock.to_ns(records["timestamp"])
