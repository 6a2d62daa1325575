"""Damaged recordings: something is counted or said, never a traceback, a hang or a wrong type."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import COUNTERS, HOST_USAGE, Recipe, generate
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.errors import RawFormatError
from unified_prof.store.writer import ReportWriter

RECIPES = {
    5: Recipe(
        operators=8, mix_share=0.5, copies=2, collectives=1, marks=2, allocations=2, pmu="Custom",
        frequency_changes=2, samples=4, counters=COUNTERS, host_usage=HOST_USAGE,
    ),
    15: Recipe(
        platform=15, operators=8, pmu="PipeUtilization", samples=4, counters=COUNTERS,
        layout_version="2.0",
    ),
    1: Recipe(platform=1, operators=8, sample_pmu="Memory", samples=4, counters=COUNTERS),
}  # fmt: skip


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return {
        platform: generate(folder / str(platform), recipe).path
        for platform, recipe in RECIPES.items()
    }


def data_files(recording: Path) -> list[Path]:
    return sorted(path for path in recording.glob("*/data/*") if not path.name.endswith(".done"))


def survives(recording: Path) -> MemorySink:
    """Decode twice: into memory, and into a database, which takes only what SQLite can hold."""
    sink = MemorySink()
    with suppress(RawFormatError):
        decode_recording(ProfDirectory(recording), sink)
    with tempfile.TemporaryDirectory() as folder:
        report = ReportWriter(Path(folder) / "x.db", revision="latest")
        with report, suppress(RawFormatError):
            decode_recording(ProfDirectory(recording), report)
    return sink


@pytest.mark.parametrize("platform", sorted(RECIPES))
def test_empty_files(platform: int, recordings: dict[int, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(recordings[platform], tmp_path / recordings[platform].name)
    for path in data_files(copy):
        path.write_bytes(b"")
    survives(copy)


@pytest.mark.parametrize("platform", sorted(RECIPES))
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x5A])
def test_files_full_of_one_byte(
    platform: int, fill: int, recordings: dict[int, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(recordings[platform], tmp_path / recordings[platform].name)
    for path in data_files(copy):
        path.write_bytes(bytes([fill]) * path.stat().st_size)
    assert survives(copy).anomalies


@pytest.mark.parametrize("cut", [slice(None, -7), slice(7, None)])
def test_a_file_that_lost_bytes_costs_few_rows(cut: slice, tmp_path: Path) -> None:
    recipe = Recipe(operators=2, samples=60, counters=("hbm", "llc"))
    recording = generate(tmp_path, recipe).path
    whole = survives(recording).tables()
    for path in data_files(recording):
        if path.name.startswith("hbm"):
            path.write_bytes(path.read_bytes()[cut])
    sink = survives(recording)
    left = sink.tables()
    assert sink.anomalies["lost_slice"] == 1
    assert set(left) == set(whole)
    assert len(left["LLC"]["mode"]) == len(whole["LLC"]["mode"])
    lost = len(whole["HBM"]["bandwidth"]) - len(left["HBM"]["bandwidth"])
    assert 0 < lost < 40
    assert set(left["HBM"]["timestampNs"].tolist()) <= set(whole["HBM"]["timestampNs"].tolist())


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    platform=st.sampled_from(sorted(RECIPES)),
    seed=st.integers(0, 2**32),
    files=st.integers(1, 12),
    flips=st.sampled_from([1, 3, 30]),
)
def test_flipped_bits(
    platform: int, seed: int, files: int, flips: int, recordings: dict[int, Path]
) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(recordings[platform], Path(folder) / recordings[platform].name)
        flip_bits(copy, rng, files, flips)
        survives(copy)


@pytest.mark.slow
def test_flipped_bits_in_recordings_of_others(shared: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(20)
    for archive in sorted((shared / "goldens" / "prof").glob("*/PROF_*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path, filter="data")
        recording = tmp_path / archive.name.removesuffix(".tar.xz")
        for _ in range(2):
            flip_bits(recording, rng, files=6, flips=10)
            survives(recording)
        shutil.rmtree(recording)


def flip_bits(recording: Path, rng: np.random.Generator, files: int, flips: int) -> None:
    for path in rng.choice(np.array(data_files(recording), object), files).tolist():
        raw = np.frombuffer(path.read_bytes(), np.uint8).copy()
        if len(raw):
            at = rng.integers(0, len(raw), flips)
            raw[at] ^= (1 << rng.integers(0, 8, flips)).astype(np.uint8)
            path.write_bytes(raw.tobytes())
