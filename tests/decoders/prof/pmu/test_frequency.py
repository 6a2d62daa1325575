"""AI core frequencies from lpmFreqConv, and from lpmInfoConv of newer collectors."""

from pathlib import Path

import numpy as np

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records
from unified_prof.decoders.prof.device_samples import decode_frequency
from unified_prof.decoders.prof.directory import DeviceDirectory, ProfDirectory
from unified_prof.decoders.prof.recording import undecoded


def frequencies(recording: Path) -> list[list[int]]:
    sink = MemorySink()
    decode_frequency(DeviceDirectory(recording / "device_0", 0), sink)
    table = sink.tables()["AICORE_FREQ"]
    return [table["timestampNs"].tolist(), table["freq"].tolist()]


def test_newer_frequency_file_adds_only_voltages(tmp_path: Path) -> None:
    recording = generate(tmp_path, Recipe(operators=1, frequency_changes=3)).path
    expected = frequencies(recording)
    assert len(set(expected[1])) > 1
    data = recording / "device_0" / "data"
    old = next(data.glob("lpmFreqConv.data.0.slice_0"))
    content = old.read_bytes()
    for path in data.glob("lpmFreqConv*"):
        path.unlink()
    words = np.zeros((1, 110), np.uint64)
    words[0, :2] = np.frombuffer(content, np.uint64, 2, 8)  # Time and value of a frequency.
    words[0, 1] = 850
    voltages = b"".join(
        records("lpm_freq", 1, count=1, kind=kind, words=words).tobytes() for kind in (1, 2)
    )
    (data / "lpmInfoConv.data.0.slice_0").write_bytes(voltages + content)
    (data / "lpmInfoConv.data.0.slice_0.done").write_bytes(b"")
    assert frequencies(recording) == expected
    assert undecoded(ProfDirectory(recording)) == ()
