"""Damaged recordings are decoded or refused and counted, without crash or hang."""

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
from tests.prof_generator.aicpu import AicpuProgram
from tests.prof_generator.encode import write_file
from tests.prof_generator.timing import DEVICE_COUNTER, HOST_COUNTER
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type
from unified_prof.decoders.prof.recording import decode_recording
from unified_prof.errors import RawFormatError
from unified_prof.sqlite.writer import ReportWriter

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


# Kinds of host and device records that recipes do not generate.
HOST_KINDS = (
    "compact.dpu_track", "additional.dpu_hccl_info", "additional.capture_op_info",
    "additional.ccu_group_info", "additional.ccu_wait_signal_info", "additional.mc2_comm_info",
)  # fmt: skip
HOST_BASE = {
    "magic": 0, "timestamp": HOST_COUNTER + 9, "start": HOST_COUNTER, "device": 0x1000,
    "dpu": 0x1000,
}  # fmt: skip
DEVICE_BASE = dict.fromkeys(("wait_start", "loop_start", "loop_end"), DEVICE_COUNTER)
DEVICE_KINDS = {"ub.data.0": "ub", "ccu0.instr.0": "ccu_instr", "ccu1.stat.0": "ccu_stat"}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("whole")
    paths = {
        platform: generate(folder / str(platform), recipe).path
        for platform, recipe in RECIPES.items()
    }
    paths[5] = with_collectives(folder / "collectives", paths[5], platform=5)
    paths[15] = with_collectives(folder / "collectives", paths[15], platform=15)
    with_rare_kinds(paths[15])
    return paths


def with_collectives(folder: Path, recording: Path, platform: int) -> Path:
    """Add the records of AI CPUs to a recording; its logs lack their kernels and tasks."""
    program = AicpuProgram(folder / str(platform), platform)
    group = program.group("world", 45, (51, 52))
    for task in (1, 2, 3):
        program.kernel("RingAicpuKernel", 45, task, 1000 * task, 1000 * task + 900)
        for number in (10 * task, 10 * task + 1):
            at = 1000 * task + 20 * number
            program.task(51, number, at, at + 10, sqe=20 if number % 2 else 11)
            program.describe(group, 51, number, at, rdma_type=number % 2, size_bytes=number)
        program.operator(group, 45, task, 1000 * task + 1, flags=task)
        program.bound((45, task), (51, 10 * task), 1000 * task + 2, 0)
        program.bound((45, task), (51, 10 * task + 1), 1000 * task + 3, 1)
    program.flip(51, 2500)
    added = program.write()
    for path in added.glob("*/data/*"):
        target = recording / path.relative_to(added)
        name = target.name.replace(".slice_0", ".slice_1" if target.exists() else ".slice_0")
        shutil.copyfile(path, target.with_name(name))
    return recording


def with_rare_kinds(recording: Path) -> None:
    """Add records of small random numbers, some of which refer to one another."""
    rng = np.random.default_rng(7)

    def fill(layout: str, path: Path, base: dict[str, int]) -> None:
        record = record_type(layout)
        raw = np.zeros(20, f"V{record.itemsize}").view(record)
        for name in record.names or ():
            raw[name] = rng.integers(0, 9, raw[name].shape) + base.get(name, 0)
        if "magic" in base:
            raw["magic"] = HOST_MAGIC
        write_file(path, raw.tobytes())

    for kind in HOST_KINDS:
        path = recording / "host" / "data" / f"unaging.{kind}.slice_0"
        if not path.exists():
            fill(kind.rpartition(".")[2], path, HOST_BASE)
    for name, layout in DEVICE_KINDS.items():
        fill(layout, recording / "device_0" / "data" / f"{name}.slice_0", DEVICE_BASE)


@pytest.mark.parametrize("platform", [5, 15])
def test_recordings_have_each_record_damaged(platform: int, recordings: dict[int, Path]) -> None:
    tables = decode_twice(recordings[platform]).tables()
    assert "COMMUNICATION_TASK_INFO" in tables
    assert platform == 5 or {"CCU", "DPU_TASK", "UB"} <= set(tables)


def data_files(recording: Path) -> list[Path]:
    return sorted(path for path in recording.glob("*/data/*") if not path.name.endswith(".done"))


def decode_twice(recording: Path) -> MemorySink:
    """Decode into memory and into a database, which accepts only what SQLite can store."""
    sink = MemorySink()
    with suppress(RawFormatError):
        decode_recording(ProfDirectory(recording), sink)
    with tempfile.TemporaryDirectory() as folder:
        report = ReportWriter(Path(folder) / "x.db", revision="latest")
        with report, suppress(RawFormatError):
            decode_recording(ProfDirectory(recording), report)
    return sink


@pytest.mark.parametrize("platform", sorted(RECIPES))
def test_empty_files_are_survived(
    platform: int, recordings: dict[int, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(recordings[platform], tmp_path / recordings[platform].name)
    for path in data_files(copy):
        path.write_bytes(b"")
    decode_twice(copy)


@pytest.mark.parametrize("platform", sorted(RECIPES))
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x5A])
def test_files_filled_with_one_byte_are_counted(
    platform: int, fill: int, recordings: dict[int, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(recordings[platform], tmp_path / recordings[platform].name)
    for path in data_files(copy):
        path.write_bytes(bytes([fill]) * path.stat().st_size)
    assert decode_twice(copy).anomalies


@pytest.mark.parametrize("cut", [slice(None, -7), slice(7, None)])
def test_file_that_lost_bytes_loses_few_rows(cut: slice, tmp_path: Path) -> None:
    recipe = Recipe(operators=2, samples=60, counters=("hbm", "llc"))
    recording = generate(tmp_path, recipe).path
    intact = decode_twice(recording).tables()
    for path in data_files(recording):
        if path.name.startswith("hbm"):
            path.write_bytes(path.read_bytes()[cut])
    sink = decode_twice(recording)
    left = sink.tables()
    assert sink.anomalies["lost_slice"] == 1
    assert set(left) == set(intact)
    assert len(left["LLC"]["mode"]) == len(intact["LLC"]["mode"])
    lost = len(intact["HBM"]["bandwidth"]) - len(left["HBM"]["bandwidth"])
    assert 0 < lost < 40
    assert set(left["HBM"]["timestampNs"].tolist()) <= set(intact["HBM"]["timestampNs"].tolist())


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
def test_flipped_bits_are_survived(
    platform: int, seed: int, files: int, flips: int, recordings: dict[int, Path]
) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(recordings[platform], Path(folder) / recordings[platform].name)
        flip_bits(copy, rng, files, flips)
        decode_twice(copy)


@pytest.mark.slow
def test_flipped_bits_in_vendor_recordings_are_survived(shared: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(20)
    for archive in sorted((shared / "goldens" / "prof").glob("*/PROF_*.tar.xz"))[::2]:
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path, filter="data")
        recording = tmp_path / archive.name.removesuffix(".tar.xz")
        flip_bits(recording, rng, files=6, flips=10)
        decode_twice(recording)
        shutil.rmtree(recording)


def flip_bits(recording: Path, rng: np.random.Generator, files: int, flips: int) -> None:
    for path in rng.choice(np.array(data_files(recording), object), files).tolist():
        raw = np.frombuffer(path.read_bytes(), np.uint8).copy()
        if len(raw):
            at = rng.integers(0, len(raw), flips)
            raw[at] ^= (1 << rng.integers(0, 8, flips)).astype(np.uint8)
            path.write_bytes(raw.tobytes())
