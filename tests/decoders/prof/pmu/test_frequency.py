"""Frequencies of AI cores: what lpmFreqConv says, and lpmInfoConv of newer collectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records
from unified_prof.decoders.prof.coverage import undecoded
from unified_prof.decoders.prof.directory import DeviceDirectory, ProfDirectory
from unified_prof.decoders.prof.pmu_tables import decode_frequency


def frequencies(recording: Path) -> list[list[int]]:
    sink = MemorySink()
    decode_frequency(DeviceDirectory(recording / "device_0", 0), sink)
    table = sink.tables()["AICORE_FREQ"]
    return [table["timestampNs"].tolist(), table["freq"].tolist()]


def test_the_newer_file_adds_only_voltages_without_table(tmp_path: Path) -> None:
    recording = generate(tmp_path, Recipe(operators=1, frequency_changes=3)).path
    expected = frequencies(recording)
    assert len(set(expected[1])) > 1
    data = recording / "device_0" / "data"
    old = next(data.glob("lpmFreqConv.data.0.slice_0"))
    told = old.read_bytes()
    for path in data.glob("lpmFreqConv*"):
        path.unlink()
    words = np.zeros((1, 110), np.uint64)
    words[0, :2] = np.frombuffer(told, np.uint64, 2, 8)  # a time of a frequency, and its value
    words[0, 1] = 850
    voltages = b"".join(
        records("lpm_freq", 1, count=1, kind=kind, words=words).tobytes() for kind in (1, 2)
    )
    (data / "lpmInfoConv.data.0.slice_0").write_bytes(voltages + told)
    (data / "lpmInfoConv.data.0.slice_0.done").write_bytes(b"")
    assert frequencies(recording) == expected
    assert undecoded(ProfDirectory(recording)) == ()
