"""Tasks of data processing units (DPU) and collective communication units (CCU)."""

from pathlib import Path

import numpy as np
import pytest

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import host_records, records, write_file
from tests.prof_generator.timing import DEVICE_COUNTER, HOST_COUNTER
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording

DPU = 0x1000


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return generate(tmp_path, Recipe(platform=15, operators=0)).path


def decode_sink(recording: Path) -> MemorySink:
    sink = MemorySink()
    decode_recording(ProfDirectory(recording), sink)
    return sink


def host_file(recording: Path, name: str, part: np.ndarray) -> None:
    write_file(recording / "host" / "data" / f"{name}.slice_0", part.tobytes())


def texts(sink: MemorySink, ids: np.ndarray) -> list[str]:
    by_id = [*sink.strings.ids]
    return [str(value) if isinstance(value, str) else by_id[int(value)] for value in ids.tolist()]


def test_dpu_kernel_has_the_name_of_its_launch(recording: Path) -> None:
    launch = host_records(
        "task_track", 1, 0, 0, device_id=DPU | 2, task_id=7, kernel_name=5, timestamp=HOST_COUNTER
    )
    ran = host_records(
        "dpu_track",
        2,
        0,
        0,
        device=DPU | 2,
        stream_id=90,
        task_id=[7, 8],
        thread_id=11,
        start=HOST_COUNTER + 1000,
        timestamp=HOST_COUNTER + 3000,
    )
    host_file(recording, "unaging.compact.task_track", launch)
    host_file(recording, "unaging.compact.dpu_track", ran)
    host_file(recording, "unaging.additional.hash_dic", np.frombuffer(b"5:softmax\n", np.uint8))
    sink = decode_sink(recording)
    found = sink.tables()["DPU_TASK"]
    assert texts(sink, found["opName"]) == ["softmax", "N/A"]
    assert found["dpuDeviceId"].tolist() == [2, 2]
    assert found["globalTid"].tolist() == [11, 11]
    assert len(set(found["globalTaskId"].tolist())) == 2
    assert texts(sink, found["args"])[0] == (
        '["Thread Id",11,"Physic Stream Id",90,"Task Id",7,"Task Type","AI_CPU"]'
    )
    assert "TASK" not in sink.tables()


def write_mission(recording: Path, **fields: object) -> None:
    part = records("ccu_instr", 1, task_id=65_541, **fields)  # type: ignore[arg-type]
    write_file(recording / "device_0" / "data" / "ccu1.instr.0.slice_0", part.tobytes())


@pytest.mark.parametrize(
    ("channel", "at"),
    [  # Dozens of eleven channels of 5 words and one of 9, then 11, 5, 5, 11, 11, 5, 5, 11 words.
        *((31, 2 * 64 + 7 * 5), (119, 9 * 64 + 11 * 5), (120, 640 + 6), (121, 640 + 11)),
        *((123, 640 + 21), (124, 640 + 32 + 6), (127, 704 - 11)),
    ],
)
def test_ccu_wait_names_the_peer_with_the_longest_delay(
    recording: Path, channel: int, at: int
) -> None:
    spans = [0] * 16
    spans[3], spans[9] = 25, 25  # Equal: the first of them counts, which is the higher peer.
    write_mission(
        recording, wait_start=DEVICE_COUNTER + 1000, wait_spans=[spans], wait_instruction=4
    )
    signals = host_records(
        "ccu_wait_signal_info", 1, 0, 0, timestamp=HOST_COUNTER, stream_id=0xFFFF, task_id=65_541,
        instruction=4, die=1, mask=9, channels=[[channel] + [0xFFFF] * 15],
        remote_ranks=[[2] + [0xFFFFFFFF] * 15],
    )  # fmt: skip
    host_file(recording, "unaging.additional.ccu_wait_signal_info", signals)
    words = np.zeros(704, np.uint32)
    words[at : at + 3] = (DEVICE_COUNTER + 500) & 0xFFFFFFFF, (DEVICE_COUNTER + 500) >> 32, 77
    path = recording / "device_0" / "data" / "ccu0.stat.0.slice_0"
    write_file(path, words.tobytes())
    sink = decode_sink(recording)
    found = sink.tables()["CCU"]
    assert texts(sink, found["name"]) == ["Wait"]
    assert (found["endNs"] - found["startNs"]).tolist() == [100 * 1000 // 50]
    assert texts(sink, found["args"]) == [
        '["Physic Stream Id",65535,"Task Id",65541,"Notify Instruction ID",4,"Notify Rank ID",12,'
        f'"Die Id",1,"Mask",9,"Maximum Delay Channel",{channel},"Maximum Channel Delay",77]'
    ]


def test_ccu_loop_group_has_a_bandwidth(recording: Path) -> None:
    begin = DEVICE_COUNTER + 1000
    write_mission(recording, loop_start=begin, loop_end=begin + 50, loop_instruction=6)
    groups = host_records(
        "ccu_group_info", 1, 0, 0, timestamp=HOST_COUNTER, stream_id=0xFFFF, task_id=65_541,
        instruction=6, size_bytes=4096, reduction=1, input_type=3, output_type=13,
        channels=[[1] + [0xFFFF] * 15], remote_ranks=[[2] + [0xFFFFFFFF] * 15],
    )  # fmt: skip
    host_file(recording, "aging.additional.ccu_group_info", groups)
    sink = decode_sink(recording)
    assert texts(sink, sink.tables()["CCU"]["args"]) == [
        '["Physic Stream Id",65535,"Task Id",65541,"Instruction ID",6,"Die Id",0,"Data Size",4096,'
        '"Bandwidth (B/s)",4096000000.0,"Reduce Op Type","PROD","Input Data Type","FP16",'
        '"Output Data Type","13"]'
    ]


def test_ccu_mission_without_counts_has_no_row(recording: Path) -> None:
    write_mission(recording)
    assert "CCU" not in decode_sink(recording).tables()
