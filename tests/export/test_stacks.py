"""Stacks exported for other tools, read back by independent readers."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from tests.cli.test_report import refused, uprof
from tests.processes import run
from unified_prof.export import stacks as pprof
from unified_prof.export.files import LAYOUTS

STACKS = [one for one in LAYOUTS if one.makes == "stacks"]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return training_step(tmp_path / "step.db")


def test_names_cannot_end_a_frame_or_a_line(tmp_path: Path) -> None:
    with Device(tmp_path / "odd.db") as device:
        device.task(0, 10, kernel=("void f<a; b>\n(c)\x1b[2J", "K"))
        device.task(20, 30, kernel=("\u202eK\ud7ff", "\ud7ff"))
    for layout in STACKS:
        done = uprof("export", tmp_path / "odd.db", "-o", tmp_path / f"odd{layout.suffixes[0]}")
        assert done.returncode == 0, done.stderr
    lines = (tmp_path / "odd.collapsed").read_text().split("\n")
    assert lines[0] == r"K;void f<a: b>\x0a(c)\x1b[2J 10"
    assert len(lines) == 3
    frames = json.loads((tmp_path / "odd.speedscope.json").read_text())["shared"]["frames"]
    assert r"void f<a; b>\x0a(c)\x1b[2J" in [frame["name"] for frame in frames]


def assert_speedscope(document: dict[str, Any]) -> None:
    """Assert the rules of speedscope's format documentation."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(isinstance(one["name"], str) and set(one) <= {"name", "file", "line", "col"}
               for one in frames)  # fmt: skip
    assert len({json.dumps(one) for one in frames}) == len(frames)
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert profile["unit"] in {"nanoseconds", "bytes"}
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= one < len(frames) for sample in profile["samples"] for one in sample)
        assert profile["startValue"] == 0
        assert profile["endValue"] == sum(profile["weights"])
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])


def test_speedscope_file_has_a_profile_per_measure(step: Path, tmp_path: Path) -> None:
    done = uprof("export", step, "-o", tmp_path / "step.speedscope.json", "--json", "-q")
    record = json.loads(done.stdout)
    assert [one["measure"] for one in record["profiles"]] == ["device", "host"]
    document = json.loads((tmp_path / "step.speedscope.json").read_text())
    assert_speedscope(document)
    assert [one["name"] for one in document["profiles"]] == [
        "step.db: device time",
        "step.db: host time",
    ]
    assert [one["endValue"] for one in document["profiles"]] == [
        one["total"] for one in record["profiles"]
    ]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> dict[int, list[Any]]:
    """Decode a message in protobuf's wire format into numbers and bytes by field."""
    found: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            found[key >> 3].append(value)
        else:
            assert key & 7 == 2
            length, at = varint(data, at)
            found[key >> 3].append(data[at : at + length])
            at += length
    return found


def packed(parts: list[bytes]) -> list[int]:
    values, at, data = [], 0, b"".join(parts)
    while at < len(data):
        value, at = varint(data, at)
        values.append(value)
    return values


def read_pprof(path: Path) -> tuple[list[tuple[str, str]], dict[tuple[str, ...], list[int]]]:
    """Return the value types, and the values of each stack, outermost frame first."""
    profile = fields(gzip.decompress(path.read_bytes()))
    texts = [one.decode() for one in profile[6]]
    assert texts[0] == ""
    types = [(texts[one[1][0]], texts[one[2][0]]) for one in map(fields, profile[1])]
    functions = {one[1][0]: one for one in map(fields, profile[5])}
    places = {}
    for place in map(fields, profile[4]):
        line = fields(place[4][0])
        function = functions[line[1][0]]
        name, file = (texts[function[number][0]] if function[number] else "" for number in (2, 4))
        places[place[1][0]] = f"{name} {file}:{line[2][0]}" if line[2] else name
    stacks = {}
    for sample in map(fields, profile[2]):
        stack = tuple(places[one] for one in packed(sample[1]))[::-1]
        stacks[stack] = packed(sample[2])
    assert texts[profile[14][0]] == types[0][0]
    return types, stacks


def test_pprof_file_has_a_value_per_measure(tmp_path: Path) -> None:
    run_time_report(tmp_path / "run_time.sqlite")
    memory_report(tmp_path / "memory.sqlite")
    assert uprof("export", tmp_path, "-o", tmp_path / "run.pb.gz").returncode == 0
    types, stacks = read_pprof(tmp_path / "run.pb.gz")
    assert types == [
        *((name, "nanoseconds") for name in ("time", "forward", "backward")),
        ("memory", "bytes"),
    ]
    assert ("model.py:30 model.py:30", "model.py:13 model.py:13", "relu") in stacks
    by_measure: dict[str, int] = defaultdict(int)
    for values in stacks.values():
        assert len(values) == 4
    raw = fields(gzip.decompress((tmp_path / "run.pb.gz").read_bytes()))
    for sample in map(fields, raw[2]):
        for (name, _), value in zip(types, packed(sample[2]), strict=True):
            by_measure[name] += value
    assert by_measure == {
        "time": 6_250_000,
        "forward": 2_250_000,
        "backward": 4_000_000,
        "memory": 8840,
    }
    again = tmp_path / "again.pb.gz"
    uprof("export", tmp_path, "-o", again)
    assert again.read_bytes() == (tmp_path / "run.pb.gz").read_bytes()


def test_missing_protobuf_package_is_an_error(
    step: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise ImportError

    monkeypatch.setattr(pprof, "_profile_class", absent)
    done = uprof("export", step, "-o", tmp_path / "step.pb.gz")
    refused(done, 2, "needs the protobuf package", "unified-prof[pprof]")
    assert not (tmp_path / "step.pb.gz").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="needs go (Debian: apt install golang-go)")
def test_go_reads_the_pprof_file(step: Path, tmp_path: Path) -> None:
    uprof("export", step, "-o", tmp_path / "step.pb.gz")
    command = ["go", "tool", "pprof", "-top", "-unit=ns", "-sample_index=device"]
    done = run(*command, str(tmp_path / "step.pb.gz"), check=True)
    assert "of 640ns total" in done.stdout
    (line,) = (one for one in done.stdout.splitlines() if one.endswith("mm_kernel"))
    assert line.split()[0] == "250ns"


@pytest.mark.clients
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm, to fetch speedscope's schema")
def test_speedscope_schema_accepts_the_file(step: Path, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    fetched = subprocess.run(["npm", "pack", "speedscope@1", "--silent"], cwd=tmp_path, check=False)
    if fetched.returncode:
        pytest.skip("the npm registry is unreachable")
    (archive,) = tmp_path.glob("speedscope-*.tgz")
    with tarfile.open(archive) as tar:
        member = tar.extractfile("package/dist/release/file-format-schema.json")
        assert member is not None
        schema = json.load(member)
    uprof("export", step, "-o", tmp_path / "step.speedscope.json")
    document = json.loads((tmp_path / "step.speedscope.json").read_text())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"profiles": [{"type": "sampled"}]}, schema)


def test_reports_of_a_directory_are_exported_together(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in (0, 1):
        run_time_report(folder / f"run_time_rank{rank}.sqlite")
    out = tmp_path / "run.collapsed"
    assert uprof("export", folder, "-o", out).returncode == 0
    first = {line.partition(";")[0] for line in out.read_text().splitlines()}
    assert first == {"run_time_rank0.sqlite", "run_time_rank1.sqlite"}
    (folder / "run_time_rank1.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    done = uprof("export", folder, "-o", out, "--force", "--json")
    assert done.returncode == 7
    assert "run_time_rank1" in done.stderr
    assert json.loads(done.stdout)["coverage"]["whole"] == 1
    assert "relu 250000" in out.read_text()
