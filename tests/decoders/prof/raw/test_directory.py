"""Files that a recording needs, and files that are optional."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records
from unified_prof.decoders.prof.directory import ProfDirectory
from unified_prof.decoders.prof.recording import decode_recording, undecoded, write_session
from unified_prof.errors import RawFormatError

RECIPE = Recipe(devices=(0, 1), operators=4, copies=1, collectives=1, marks=1, pmu="Memory")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("whole"), RECIPE).path


@pytest.fixture
def recording(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / original.name)


def decode_sink(recording: Path) -> MemorySink:
    sink = MemorySink()
    decode_recording(ProfDirectory(recording), sink)
    return sink


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_complete_recording_has_no_anomaly(recording: Path) -> None:
    sink = decode_sink(recording)
    assert sink.anomalies == {}
    assert set(sink.tables()["TASK"]["deviceId"].tolist()) == {0, 1}
    assert sink.tables()["NPU_INFO"]["name"].tolist() == ["Ascend910B"] * 2


@pytest.mark.parametrize("name", ["info.json.1", "sample.json", "start_info.1"])
def test_device_without_control_file_is_skipped(name: str, recording: Path) -> None:
    (recording / "device_1" / name).unlink()
    sink = decode_sink(recording)
    assert sink.anomalies["unreadable_directory"] == 1
    assert set(sink.tables()["TASK"]["deviceId"].tolist()) == {0}
    assert len(sink.tables()["COMPUTE_TASK_INFO"]["name"]) == 8, "the host recorded both devices"


def test_duplicate_control_files_are_refused(recording: Path) -> None:
    shutil.copy(recording / "host" / "info.json", recording / "host" / "info.json.1")
    prof = ProfDirectory(recording)
    assert prof.host is None
    assert "2 files info.json, expected one" in prof.problems[0][1]


def test_host_without_devices_is_decoded(recording: Path) -> None:
    for device in recording.glob("device_*"):
        shutil.rmtree(device)
    tables = decode_sink(recording).tables()
    assert "TASK" not in tables
    assert len(tables["COMPUTE_TASK_INFO"]["name"]) == 8
    assert tables["NPU_INFO"]["name"].tolist() == ["UNKNOWN"]


def test_devices_without_host_are_decoded(recording: Path) -> None:
    shutil.rmtree(recording / "host")
    tables = decode_sink(recording).tables()
    assert set(tables["TASK"]["connectionId"].tolist()) <= {-1, 4_000_000_001}
    assert "CANN_API" not in tables
    assert set(tables["TASK"]["globalPid"].tolist()) == {31_337}


@pytest.mark.parametrize(
    ("name", "content"),
    [("info.json", "{"), ("info.json", "[1]"), ("start_info", '{"collectionTimeBegin": "soon"}')],
)
def test_invalid_control_file_is_in_the_error(name: str, content: str, recording: Path) -> None:
    for device in recording.glob("device_*"):
        shutil.rmtree(device)
    (recording / "host" / name).write_text(content)
    with pytest.raises(RawFormatError, match=name):
        decode_sink(recording)


def test_device_without_clock_loses_its_tasks(recording: Path) -> None:
    (recording / "device_0" / "dev_start.log.0").unlink()
    sink = decode_sink(recording)
    assert sink.anomalies["undecoded_part"] >= 1
    assert set(sink.tables()["TASK"]["deviceId"].tolist()) == {1}


def test_names_without_dictionary_are_numbers(recording: Path) -> None:
    for path in (recording / "host" / "data").glob("*hash_dic*"):
        path.unlink()
    names = decode_sink(recording).tables()["COMPUTE_TASK_INFO"]["name"].tolist()
    assert all(name.isdecimal() for name in names)


def test_non_utf8_names_are_escaped(recording: Path) -> None:
    (path,) = (recording / "host" / "data").glob("*hash_dic.slice_0")
    path.write_bytes(
        b"".join(line[:-1] + b"\xff\n" for line in path.read_bytes().splitlines(keepends=True))
    )
    names = decode_sink(recording).tables()["COMPUTE_TASK_INFO"]["name"].tolist()
    assert all(name.endswith("\\xff") for name in names)


def test_missing_end_is_half_an_hour_after_the_start(recording: Path) -> None:
    (recording / "host" / "end_info").unlink()
    session = decode_sink(recording).tables()["SESSION_TIME_INFO"]
    assert session["endTimeNs"][0] - session["startTimeNs"][0] == 1_800_000_000_000


def test_unfinished_recording_is_counted(recording: Path) -> None:
    for path in recording.rglob("*.done"):
        path.unlink()
    files = [path for path in recording.rglob("*") if path.is_file()]
    assert decode_sink(recording).anomalies["unfinished_file"] == len(files)


def test_links_out_of_the_recording_are_not_followed(recording: Path, original: Path) -> None:
    shutil.rmtree(recording / "device_1")
    (recording / "device_1").symlink_to(original / "device_1")
    log = recording / "device_0" / "data" / "stars_soc.data.0.slice_0"
    log.unlink()
    log.symlink_to(original / "device_0" / "data" / log.name)
    sink = decode_sink(recording)
    assert sink.anomalies["link_not_followed"] == 2
    assert "TASK" not in sink.tables() or 1 not in sink.tables()["TASK"]["deviceId"]


def test_undecoded_data_is_reported(recording: Path) -> None:
    assert undecoded(ProfDirectory(recording)) == ()
    change_json(recording / "device_0" / "info.json.0", platform_version="2")
    payload = records("aicpu", 1, type=6).tobytes()
    (recording / "device_0" / "data" / "aicpu.data.0.slice_0").write_bytes(payload)
    reported = undecoded(ProfDirectory(recording))
    assert len(reported) == 2
    assert "platform_version 2" in reported[0]
    assert "COMMUNICATION_*" in reported[1]


VALUES: st.SearchStrategy[object] = st.sampled_from(
    [None, [], {}, "", "x", -1, 0, 1e308, 2**70, -(2**70), "NaN", "1e400", "9" * 30, True, [{}]]
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_control_files_with_any_values_are_decoded_or_refused(
    data: st.DataObject, original: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = shutil.copytree(original, tmp_path_factory.mktemp("copy") / original.name)
    controls = sorted(p for p in copy.glob("*/*") if p.suffix != ".done" and p.is_file())
    path = data.draw(st.sampled_from(controls))
    if "log" in path.name:
        lines = path.read_text().splitlines()
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] = f"{lines[place].split(':')[0]}:{data.draw(VALUES)}"
        path.write_text("\n".join(lines))
    else:
        values = json.loads(path.read_text())
        owner = data.draw(
            st.sampled_from([values, *values.get("CPU", []), *values.get("DeviceInfo", [])])
        )
        owner[data.draw(st.sampled_from(sorted(owner)))] = data.draw(VALUES)
        path.write_text(json.dumps(values))
    with suppress(RawFormatError):
        decode_sink(copy)


def test_truncated_host_slice_loses_one_record(recording: Path) -> None:
    (path,) = (recording / "host" / "data").glob("unaging.api_event.data.slice_0")
    intact = len(decode_sink(recording).tables()["CANN_API"]["name"])
    path.write_bytes(path.read_bytes()[:-7])
    sink = decode_sink(recording)
    assert sink.anomalies["cut_slice"] == 1
    assert len(sink.tables()["CANN_API"]["name"]) == intact - 1


def test_cores_and_frequencies_of_devices_are_written(tmp_path: Path) -> None:
    sink = MemorySink()
    write_session(ProfDirectory(generate(tmp_path, Recipe(devices=(0, 3))).path), sink)
    table = sink.tables()["UPROF_GPU_DEVICES"]
    rows = set(zip(*(table[name].tolist() for name in ("deviceId", "name", "value")), strict=True))
    assert {(0, "ai_core_num", "20"), (3, "aiv_num", "40"), (3, "aic_frequency", "1500")} <= rows
