"""Every kind of file that the exporter reads is decoded, has no table, or is reported."""

import re
from pathlib import Path

import pytest

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import (
    DECODED,
    UNDECODED,
    WITHOUT_TABLE,
    decode_recording,
    undecoded,
    why_not_decoded,
    write_coverage,
)
from unified_prof.decoders.prof.slices import DataFolder, RawFile

# File names as collectors write them, one of every pattern that the exporter looks for.
HOST_FILES = """
    unaging.api_event.data.slice_0 aging.api_event.data.slice_0
    unaging.compact.task_track.slice_0 unaging.compact.node_basic_info.slice_0
    unaging.compact.node_attr_info.slice_0 unaging.compact.hccl_op_info.slice_0
    unaging.compact.memcpy_info.slice_0 unaging.compact.capture_stream_info.slice_0
    unaging.compact.expand_stream_spec.slice_0 unaging.compact.dpu_track.slice_0
    unaging.additional.tensor_info.slice_0 unaging.additional.context_id_info.slice_0
    unaging.additional.hccl_info.slice_0 unaging.additional.fusion_op_info.slice_0
    unaging.additional.graph_id_map.slice_0 unaging.additional.msproftx.slice_0
    unaging.additional.task_memory_info.slice_0 unaging.additional.static_op_mem.slice_0
    unaging.additional.memory_application.slice_0 unaging.additional.logic_stream_info.slice_0
    unaging.additional.mc2_comm_info.slice_0 unaging.additional.Multi_Thread.slice_0
    unaging.additional.hash_dic.slice_0 unaging.additional.type_info_dic.slice_0
    unaging.additional.capture_op_info.slice_0 unaging.variable.capture_op_info.slice_0
    unaging.additional.dpu_hccl_info.slice_0 unaging.additional.dpu_hccl_track.slice_0
    unaging.additional.ccu_task_info.slice_0 unaging.additional.ccu_group_info.slice_0
    unaging.additional.ccu_wait_signal_info.slice_0 unaging.additional.model_exeom.slice_0
    host_cpu.data.slice_0 host_mem.data.slice_0 host_disk.data.slice_0 host_network.data.slice_0
    host_syscall.data.slice_0 host_pthreadcall.data.slice_0 host_sys_cpu.data.slice_0
    host_sys_mem.data.slice_0 31337-CpuUsage.data.slice_0 31337-Memory.data.slice_0
    host_platform_uncore.bin
    AclModule.acl_op.0.slice_0 Framework.task_desc_info.0.slice_0 Runtime.task_track.0.slice_0
    HCCL.hcom_allReduce_1_2_3.0.slice_0 DATA_PREPROCESS.AICPU.0.slice_0
""".split()
DEVICE_FILES = """
    stars_soc.data.0.slice_0 stars_soc_profile.data.0.slice_0 stars_block.data.0.slice_0
    ffts_profile.data.0.slice_0 hwts.data.0.slice_0 hwts.aiv_data.0.slice_0
    ts_track.data.0.slice_0 ts_track.aiv_data.0.slice_0 aicore.data.0.slice_0
    aiVectorCore.data.0.slice_0 aicpu.data.0.slice_0 ai_ctrl_cpu.data.0.slice_0
    tscpu.data.0.slice_0 lpmFreqConv.data.0.slice_0 lpmInfoConv.data.0.slice_0 hbm.data.0.slice_0
    llc.data.0.slice_0 ddr.data.0.slice_0 hccs.data.0.slice_0 pcie.data.0.slice_0
    nic.data.0.slice_0 roce.data.0.slice_0 netdev_stats.data.0.slice_0 npu_mem.data.0.slice_0
    npu_mem.app.0.slice_0 npu_module_mem.data.0.slice_0 qos.data.0.slice_0 ub.data.0.slice_0
    ccu0.instr.0.slice_0 ccu1.instr.0.slice_0 ccu0.stat.0.slice_0 ccu1.stat.0.slice_0
    l2_cache.data.0.slice_0 socpmu.data.0.slice_0 dvpp.data.0.slice_0 Memory.data.0.slice_0
    SystemCpuUsage.data.0.slice_0 31337-CpuUsage.data.0.slice_0 31337-Memory.data.0.slice_0
    nano_stars_profile.data.0.slice_0 instr.group_0_aic.0.slice_0
    instr.biu_perf_group1_aiv0.0.slice_0
""".split()


def recording_with_every_kind(folder: Path, platform: int) -> Path:
    """Return a recording with a file of every kind, of a size that fits no record."""
    recipe = Recipe(platform=platform, operators=1, sample_pmu="Memory" if platform == 1 else "")
    path = generate(folder, recipe).path
    for part, names in (("host", HOST_FILES), ("device_0", DEVICE_FILES)):
        for name in names:
            file = path / part / "data" / name
            if not file.exists():
                file.write_bytes(b"\x5a" * 64)
    return path


def test_each_file_kind_is_decoded_without_table_or_undecoded(tmp_path: Path) -> None:
    prof = ProfDirectory(recording_with_every_kind(tmp_path, 15))
    assert prof.host is not None
    reported = undecoded(prof)
    for data in (prof.host.data, prof.devices[0].data):
        for kind in data.files:
            plain = re.sub(r"^(un)?aging\.", "", kind)
            places = [
                plain in DECODED,
                any(re.fullmatch(pattern, plain) for pattern in WITHOUT_TABLE),
                any(re.fullmatch(pattern, plain) for pattern in UNDECODED),
            ]
            assert sum(places) == 1, f"{kind} is in {sum(places)} tables"
            assert any(f": {kind}: " in line for line in reported) == places[2], kind


def test_declared_kinds_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: set[str] = set()
    get = DataFolder.get

    def recording_get(self: DataFolder, *names: str) -> RawFile | None:
        requested.update(re.sub(r"^(un)?aging\.", "", name) for name in names)
        return get(self, *names)

    monkeypatch.setattr(DataFolder, "get", recording_get)
    for platform in (1, 5, 15):
        prof = ProfDirectory(recording_with_every_kind(tmp_path / str(platform), platform))
        decode_recording(prof, MemorySink())
    assert requested == DECODED


def test_unknown_kind_is_reported(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=1)).path
    assert undecoded(ProfDirectory(path)) == ()
    for name, content in (("tomorrow.data.0.slice_0", b"x"), ("empty.data.0.slice_0", b"")):
        (path / "device_0" / "data" / name).write_bytes(content)
    assert undecoded(ProfDirectory(path)) == ("device 0: tomorrow: unknown kind of file",)


def test_files_without_a_table_are_reported_with_their_size(tmp_path: Path) -> None:
    path = generate(tmp_path, Recipe(operators=1)).path
    for name, content in (
        ("l2_cache.data.0.slice_0", b"x" * 1500),
        ("socpmu.data.0.slice_0", b""),
        ("dvpp.data.0.slice_0", b"x"),
    ):
        (path / "device_0" / "data" / name).write_bytes(content)
    sink = MemorySink()
    write_coverage(ProfDirectory(path), sink)
    rows = sink.tables()["UPROF_COVERAGE"]
    lost = dict(zip(rows["kind"].tolist(), rows["without_table"].tolist(), strict=True))
    found = {kind: size for kind, size in lost.items() if size}
    assert found == {"device 0: dvpp": 1, "device 0: l2_cache": 1500}


def test_kinds_of_the_reference_list_are_known(shared: Path) -> None:
    listed = (shared / "reference" / "prof-raw-formats.md").read_text()
    kinds = set(re.findall(r"`\(un\)aging\.((?:compact|additional)\.\w+)`", listed))
    kinds |= set(re.findall(r"`device_N/data/(\w+)\.data\.N\.slice_K`", listed))
    assert len(kinds) > 30
    unknown = {kind for kind in kinds if why_not_decoded(kind) == why_not_decoded("tomorrow")}
    assert not unknown
