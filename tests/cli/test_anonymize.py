"""`uprof anonymize`: no text of the owner is left, and figures stay equal."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.kineto.builders import operation
from tests.decoders.kineto.builders import write as write_trace
from tests.pipeline.test_sources import MAKERS
from tests.prof_generator import Recipe, generate
from unified_prof.base.anonymous_names import Anonymizer
from unified_prof.cli.app import app
from unified_prof.decoders import compression
from unified_prof.explain.roofline.peaks import all_devices
from unified_prof.pipeline import anonymize as anonymize_module
from unified_prof.pipeline.convert import convert

SAMPLES = Path(os.environ.get("UPROF_SHARED", Path(__file__).parents[3] / "shared")) / "samples"
# Texts of an owner: none may be in any byte of an output.
OWNER = ("zyxalice", "qumbelgpu", "Grobnikov", "vorpaltrain", "hf_Zq81kXw")


def anonymize(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["anonymize", *map(str, arguments)])
    found = getattr(result.exception, "exit_code", result.exit_code)
    assert found == code, (result.output, result.exception)
    return result


@pytest.mark.parametrize("name", sorted(device.name for device in all_devices()))
def test_names_of_devices_with_known_peaks_stay(name: str) -> None:
    assert Anonymizer().text(f"NVIDIA GeForce RTX {name}") == f"NVIDIA GeForce RTX {name}"


def contents(path: Path) -> Iterator[bytes]:
    """Yield names and decompressed contents of all files below `path`."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        yield file.name.encode()
        if file.is_file():
            data = file.read_bytes()
            for magic, module in ((b"\x1f\x8b", gzip), (b"\xfd7z", lzma), (b"BZh", bz2)):
                if data.startswith(magic):
                    yield data
                    data = module.decompress(data)
            yield data


def assert_without_owner(path: Path, owner: tuple[str, ...] = OWNER) -> None:
    for data in contents(path):
        for text in owner:
            for encoded in (text.encode(), text.encode("utf-16-le"), text.lower().encode()):
                assert encoded not in data, text


def numbers(database: Path) -> dict[str, list[Any]]:
    """Return all values of all tables but texts, and ids of texts."""
    found: dict[str, list[Any]] = {}
    with closing(sqlite3.connect(database)) as db:
        strings = {row[0] for row in db.execute("SELECT id FROM STRING_IDS")}
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'"):
            if table in ("STRING_IDS", "UPROF_RUN", "UPROF_COVERAGE", "UPROF_ANOMALIES"):
                continue
            columns = [row[1] for row in db.execute(f"PRAGMA table_info('{table}')")]
            values = [f"CASE typeof(\"{c}\") WHEN 'text' THEN '' ELSE \"{c}\" END" for c in columns]
            rows = db.execute(f'SELECT {", ".join(values)} FROM "{table}"').fetchall()
            found[table] = sorted(rows, key=repr)
        found["STRING_IDS"] = [len(strings)]
    return found


def assert_equal_figures(recording: Path, copy: Path, folder: Path) -> None:
    results = []
    for name, path in (("a", recording), ("b", copy)):
        results.append(numbers(convert(path, folder / f"{name}.db").database))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", MAKERS)
def test_copy_of_every_source_has_equal_figures(kind: str, tmp_path: Path) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    copy = tmp_path / ("out" + "".join(recording.suffixes))
    anonymize(recording, "-o", copy)
    assert_equal_figures(recording, copy, tmp_path)


def trace(path: Path) -> Path:
    events = [
        operation("aten::mm", 1, 5),
        operation("Grobnikov::vorpaltrain_attention", 10, 5),
        operation("/home/zyxalice/job/vorpaltrain.py(12): run_Grobnikov", 20, 5),
        operation(
            "/home/zyxalice/v/lib/python3.11/site-packages/torch/nn/modules/linear.py(9): f", 30, 5
        ),
    ]
    for event in events:
        event.setdefault("args", {})["Grobnikov note"] = (
            'vorpaltrain \u00fcber "zyxalice" HOST=qumbelgpu'
        )
    write_trace(path, events)
    document = json.loads(path.read_text())
    document["hostname"] = "qumbelgpu-gpu-17"
    document["env"] = {"HF_TOKEN": "hf_Zq81kXw", "HOME": "/home/zyxalice"}
    path.write_text(json.dumps(document, indent=1))
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
def test_trace(ending: str, tmp_path: Path) -> None:
    recording, copy = trace(tmp_path / "a.pt.trace.json"), tmp_path / f"b.json{ending}"
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(recording.read_bytes()))
    result = anonymize(packed, "-o", copy)
    assert "1 file" in result.stdout
    assert_without_owner(copy)
    assert_equal_figures(recording, copy, tmp_path)
    *_, data = contents(copy)
    document = json.loads(data)
    names = [event["name"] for event in document["traceEvents"] if "dur" in event]
    assert names[0] == "aten::mm"
    assert names[1].endswith("_attention")
    assert "/lib/python3.11/site-packages/torch/nn/modules/linear.py(9): f" in names[3]
    # Equal words have equal names.
    script = names[1].partition("::")[2].removesuffix("_attention")
    assert f"/{script}.py(12)" in names[2]
    assert "gpu" not in document["hostname"]


def test_cut_off_trace_ends_before_its_last_text(tmp_path: Path) -> None:
    recording, copy = trace(tmp_path / "a.pt.trace.json"), tmp_path / "b.json"
    recording.write_bytes(recording.read_bytes().partition(b"HOST=qumbelg")[0] + b"HOST=qumbelgpu")
    anonymize(recording, "-o", copy)
    assert_without_owner(copy)


@pytest.mark.parametrize("block", [64, 1000])
def test_texts_and_numbers_across_blocks(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_PLAIN_PIECE_BYTES", block)
    monkeypatch.setattr(anonymize_module, "_MARGIN", 32)
    recording, copy = tmp_path / "a.pt.trace.json", tmp_path / "b.json"
    events = [operation(f"zyxalice{'x' * (40 + n % 97)}", n, 1) for n in range(200)]
    for event in events:
        event["args"] = {"sizes": [*range(event["ts"])]}
    write_trace(recording, events)
    anonymize(recording, "-o", copy)
    assert_without_owner(copy)
    found = [e for e in json.loads(copy.read_text())["traceEvents"] if "dur" in e]
    assert len({event["name"] for event in found}) == 97
    figures = [[*event["args"].values()] for event in found]
    assert figures == [[[*range(event["ts"])]] for event in found]


def test_database_without_free_pages(tmp_path: Path) -> None:
    recording = MAKERS["nsys"](tmp_path)
    with closing(sqlite3.connect(recording)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        rows = [("HOSTNAME", "qumbelgpu"), ("note", "Grobnikov"), ("cwd", "/home/zyxalice")]
        db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
        db.execute("CREATE TABLE GENERIC_EVENTS AS SELECT x'00ff' AS binaryData, 'zyxalice' AS t")
        db.execute(
            "CREATE TABLE old AS SELECT 'vorpaltrain' || randomblob(1) AS x FROM "
            "(SELECT 1 UNION SELECT 2)"
        )
        db.commit()
        db.execute("DELETE FROM old")
        db.commit()
    assert b"vorpaltrain" in recording.read_bytes()
    copy = tmp_path / "copy.sqlite"
    result = anonymize(recording, "-o", copy)
    assert "GENERIC_EVENTS.binaryData is copied, text in it is not searched" in result.stderr
    assert_without_owner(copy)
    assert_equal_figures(recording, copy, tmp_path)


def test_prof_directory_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "zyxalice"
    folder.mkdir(parents=True)
    recording = generate(folder, Recipe(operators=3, collectives=2, copies=1, pmu="Memory")).path
    for file in recording.glob("*/info.json*"):
        if not file.name.endswith(".done"):
            document = {**json.loads(file.read_text()), "hostname": "qumbelgpu-gpu"}
            file.write_text(json.dumps(document))
    dictionary = next(recording.glob("host/data/*hash_dic*0"))
    dictionary.write_text(dictionary.read_text() + "12345678901:/home/zyxalice/Grobnikov\n")
    (recording / "host/data/mystery.data").write_bytes(b"\0\1\2qumbelgpu\0")
    (folder / "vorpaltrain.py").write_text("Grobnikov")
    copy = tmp_path / "copy"
    result = anonymize(tmp_path / "in", "-o", copy, "--json")
    left_out = json.loads(result.stdout)["left_out"]
    assert {Path(path).name for path in left_out} == {"mystery.data", "vorpaltrain.py"}
    assert_without_owner(copy)
    (found,) = copy.glob("*/PROF_*")
    assert_equal_figures(recording, found, tmp_path)


def test_flight_recorder_dump(tmp_path: Path) -> None:
    frame = {"name": "Grobnikov", "filename": "/home/zyxalice/vorpaltrain.py", "line": 3}
    entry = {
        "pg_name": "0",
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "output_sizes": [[4]],
        "frames": [frame],
        "state": "scheduled",
        "time_created_ns": 5,
    }
    dump = {"version": "2.4", "entries": [entry], "pg_config": {"0": {"ranks": "[0]"}}}
    recording, copy = tmp_path / "dump_0", tmp_path / "copy_0"
    recording.write_bytes(pickle.dumps(dump, protocol=2))
    anonymize(recording, "-o", copy)
    assert_without_owner(copy)
    changed = pickle.loads(copy.read_bytes())
    assert changed["entries"][0] | {"frames": 0} == entry | {"frames": 0}
    assert changed["entries"][0]["frames"][0]["line"] == 3


def test_output_is_replaced_only_by_force(tmp_path: Path) -> None:
    recording = trace(tmp_path / "a.pt.trace.json")
    copy = tmp_path / "b.json"
    copy.write_text("mine")
    assert "exists" in str(anonymize(recording, "-o", copy, code=9).exception)
    assert copy.read_text() == "mine"
    anonymize(recording, "-o", copy, "--force")
    assert_without_owner(copy)
    (tmp_path / "folder").mkdir()
    anonymize(recording, "-o", tmp_path / "folder", "--force", code=9)


def test_output_within_the_recording_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    recording = trace(folder / "a.pt.trace.json")
    content = recording.read_bytes()
    for output in (folder / "copy", folder, recording):
        anonymize(folder, "-o", output, "--force", code=9)
    anonymize(recording, "-o", recording, "--force", code=9)
    assert [(one.name, one.read_bytes()) for one in folder.iterdir()] == [(recording.name, content)]


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    text, nsys, empty = tmp_path / "a.txt", tmp_path / "a.nsys-rep", tmp_path / "folder"
    nothing = tmp_path / "a.json"
    nothing.touch()
    text.write_text("hello")
    nsys.write_bytes(b"\1\2\3")
    empty.mkdir()
    for path in (text, nsys, nothing, empty, tmp_path / "absent"):
        anonymize(path, "-o", tmp_path / "out", code=6)
        assert not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@given(st.lists(st.text("abW1w2_ /.:ü漢\\", max_size=12), max_size=8))
def test_different_texts_stay_different(texts: list[str]) -> None:
    names = Anonymizer()
    changed = [names.text(text) for text in texts]
    assert changed == [names.text(text) for text in texts]
    assert len(set(changed)) == len(set(texts))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "kineto/h100_vit.json.gz",
        "nsys/mock.sqlite.xz",
        "kineto/vllm_decode_graph_replay.json.gz",
        "ascend-text/level1.tar.xz",
    ],
)
def test_samples_have_equal_figures(name: str, tmp_path: Path) -> None:
    sample = SAMPLES / name
    if not sample.exists():
        pytest.skip("needs recordings made by others")
    if ".tar" in name:
        copy = tmp_path / "copy"
        anonymize(sample, "-o", copy)
        with tarfile.open(sample) as archive:
            archive.extractall(tmp_path / "in", filter="data")
        for path in sorted((tmp_path / "in").rglob("*_ascend_pt")):
            work = tmp_path / path.name
            work.mkdir()
            assert_equal_figures(path, copy / path.relative_to(tmp_path / "in"), work)
        return
    copy = tmp_path / sample.name
    anonymize(sample, "-o", copy)
    assert_equal_figures(sample, copy, tmp_path)
