"""Samples of links: single samples, wrapping counters, the unified bus."""

from pathlib import Path

import numpy as np
import pytest

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records, write_file
from unified_prof.decoders.prof import device_samples
from unified_prof.decoders.prof.clocks import MAX_NS
from unified_prof.decoders.prof.directory import DeviceDirectory
from unified_prof.decoders.prof.layouts import STARS_MAGIC
from unified_prof.decoders.prof.sampling import write_samples


def device_with(folder: Path, name: str, content: bytes, platform: int = 5) -> DeviceDirectory:
    """Return a device directory that has one file of samples."""
    device = generate(folder, Recipe(platform=platform, operators=0)).path / "device_0"
    write_file(device / "data" / f"{name}.data.0.slice_0", content)
    return DeviceDirectory(device, 0)


def test_unified_bus_has_one_row_per_port_and_sample(tmp_path: Path) -> None:
    # Counters of 64 bits, of which the vendor's exporter keeps half.
    part = records("ub", 2, port_id=[1, 2], time_us=[5, 6], rx_bind=1 << 33, tx_bind=[7, 8])
    device, sink = device_with(tmp_path, "ub", part.tobytes(), platform=15), MemorySink()
    device_samples.decode_unified_bus(device, sink)
    found = sink.tables()["UB"]
    assert found["portId"].tolist() == [1, 2]
    assert (found["timestampNs"] - device.session.start_ns).tolist() == [5000, 6000]
    assert found["rxUdmaBind"].tolist() == [1 << 33] * 2
    assert found["txUdmaBind"].tolist() == [7, 8]


MB = 1 << 20


@pytest.mark.parametrize(
    ("sent", "expected", "backward"),
    [
        ([5], [0], 0),  # Compared with itself.
        ([0, 4 * MB], [400 * MB], 0),  # The only interval is kept.
        ([0, 4 * MB, 5 * MB, 9 * MB], [400 * MB, 100 * MB], 0),  # The last one is dropped.
        ([0, 4 * MB, 1 * MB, 2 * MB, 9 * MB], [400 * MB, 100 * MB], 1),
    ],
)
def test_hccs_throughput_is_that_of_intervals(
    sent: list[int], expected: list[int], backward: int, tmp_path: Path
) -> None:
    origin_ns = 10**15
    lines = [f"{origin_ns + place * 10**7}: {count} 0" for place, count in enumerate(sent)]
    device = device_with(tmp_path, "hccs", "\n".join(["time tx rx", *lines, ""]).encode())
    sink = MemorySink()
    device_samples.decode_hccs(device, sink)
    assert sink.tables()["HCCS"]["txThroughput"].tolist() == expected
    assert sink.anomalies["counter_went_backwards"] == backward


def test_incomplete_hbm_sample_has_no_bandwidth(tmp_path: Path) -> None:
    part = records("hbm_v1", 3, timestamp_us=range(3), count=1, event_type=1, hbm_id=3)
    sink = MemorySink()
    device_samples.decode_hbm(device_with(tmp_path, "hbm", part.tobytes()), sink)
    assert not sink.tables()
    assert sink.anomalies == {"too_few_samples": 3}


@pytest.mark.parametrize(("platform", "exchanged"), [(5, False), (1, True)])
def test_accelerator_reads_and_writes_are_swapped_except_on_platform_5(
    tmp_path: Path, platform: int, exchanged: bool
) -> None:
    fields = {"read_bandwidth": 11, "write_bandwidth": 22, "read_ost": 33, "write_ost": 44}
    part = records(
        "stars_acc_pmu", 1, w0=26, magic=STARS_MAGIC, acc_id=3, timestamp=1 << 50, **fields
    )
    device = device_with(tmp_path, "stars_soc_profile", part.tobytes(), platform)
    sink = MemorySink()
    device_samples.decode_stars_samples(device, sink)
    found = sink.tables()["ACC_PMU"]
    columns = ("readBwLevel", "writeBwLevel", "readOstLevel", "writeOstLevel")
    levels = [found[column].tolist() for column in columns]
    assert found["accId"].tolist() == [3]
    assert levels == ([[22], [11], [44], [33]] if exchanged else [[11], [22], [33], [44]])


def test_samples_before_the_session_and_impossible_times_are_counted_and_skipped(
    tmp_path: Path,
) -> None:
    device, sink = device_with(tmp_path, "ub", b""), MemorySink()
    start_ns = device.session.start_ns
    times_ns = np.array([start_ns - 1, start_ns, MAX_NS, start_ns + 7], np.int64)
    write_samples(sink, device, "UB", times_ns, portId=np.arange(4), rxUdmaBind=9)
    found = sink.tables()["UB"]
    assert found["timestampNs"].tolist() == [start_ns, start_ns + 7]
    assert (found["portId"].tolist(), found["rxUdmaBind"].tolist()) == ([1, 3], [9, 9])
    assert sink.anomalies == {"before_session_start": 1, "impossible_time": 1}
