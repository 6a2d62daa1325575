"""Samples of the unified bus."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records, write_file
from unified_prof.decoders.prof import link_samples
from unified_prof.decoders.prof.directory import DeviceDirectory


@pytest.mark.parametrize(("platform", "shown"), [(15, True), (5, False)])
def test_ports_have_a_row_a_sample_on_chips_that_have_the_bus(
    platform: int, shown: bool, tmp_path: Path
) -> None:
    recording = generate(tmp_path, Recipe(platform=platform, operators=0))
    folder = recording.path / "device_0"
    # Counters of 64 bits, of which the exporter keeps half.
    part = records("ub", 2, port_id=[1, 2], time_us=[5, 6], rx_bind=1 << 33, tx_bind=[7, 8])
    write_file(folder / "data" / "ub.data.0.slice_0", part.tobytes())
    device, sink = DeviceDirectory(folder, 0), MemorySink()
    link_samples.decode_unified_bus(device, sink)
    if not shown:
        assert sink.anomalies["ub_not_evaluated"] == 1
        assert not sink.tables()
        return
    found = sink.tables()["UB"]
    assert found["portId"].tolist() == [1, 2]
    assert (found["timestampNs"] - device.session.start_ns).tolist() == [5000, 6000]
    assert found["rxUdmaBind"].tolist() == [1 << 33] * 2
    assert found["txUdmaBind"].tolist() == [7, 8]
