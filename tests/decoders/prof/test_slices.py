from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.decoders.prof.layouts import names, record_type
from unified_prof.decoders.prof.slices import RawFile, scan

RECORD = np.dtype([("number", "<u4")])


def write_slices(folder: Path, name: str, slices: list[bytes]) -> None:
    for index, raw in enumerate(slices):
        (folder / f"{name}.slice_{index}").write_bytes(raw)
        (folder / f"{name}.slice_{index}.done").write_text(f"filesize:{len(raw)}\n")


@settings(max_examples=50, deadline=None)
@given(
    raw=st.binary(max_size=200),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    piece_bytes=st.integers(1, 50),
)
def test_slices_are_one_stream_without_its_first_remainder(
    raw: bytes,
    cuts: list[int],
    piece_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("data")
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    write_slices(folder, "hbm.data.0", [raw[a:b] for a, b in pairwise(edges)])
    file = scan(folder).get("hbm")
    pieces = [] if file is None else [piece.tobytes() for piece in file.pieces(RECORD, piece_bytes)]
    assert b"".join(pieces) == raw[len(raw) % 4 :]
    assert all(len(piece) <= max(piece_bytes, 4) for piece in pieces)


def test_slices_follow_their_numbers_and_unaging_comes_before_aging(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"unaging.compact.x.slice_{number}").write_bytes(bytes([number, 0, 0, 0]))
    (tmp_path / "aging.compact.x.slice_0").write_bytes(b"\x63\0\0\0")
    file = scan(tmp_path).host_file("compact.x")
    assert file is not None
    values = np.concatenate(list(file.pieces(RECORD)))["number"]
    assert values.tolist() == [*range(12), 0x63]
    assert file.count(RECORD) == 13


def test_old_and_new_names_of_device_files_mean_the_same_kind(tmp_path: Path) -> None:
    write_slices(tmp_path, "hwts.data.7.dev.profiler_default_tag.0", [b"1234"])
    write_slices(tmp_path, "host_cpu.data", [b"time 1"])
    write_slices(tmp_path, "aicore.data.3", [b""])
    assert set(scan(tmp_path).files) == {"hwts", "host_cpu", "aicore"}


def test_companions_are_no_data_and_their_absence_is_told(tmp_path: Path) -> None:
    write_slices(tmp_path, "hbm.data.0", [b"1234"])
    (tmp_path / "llc.data.0.slice_0").write_bytes(b"1234")
    (tmp_path / "hbm.data.0.slice_0.complete").write_bytes(b"")
    data = scan(tmp_path)
    assert set(data.files) == {"hbm", "llc"}
    assert data.unfinished == ("llc.data.0.slice_0",)


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"1234")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "hbm.data.0.slice_0").symlink_to(secret)
    data = scan(folder)
    assert data.files == {}
    assert data.links == ("hbm.data.0.slice_0",)


def test_a_file_that_shrinks_meanwhile_gives_the_records_that_are_left(tmp_path: Path) -> None:
    path = tmp_path / "hbm.data.0.slice_0"
    path.write_bytes(bytes(10))
    file = RawFile("hbm", (path,), (400,))
    assert [len(piece) for piece in file.pieces(RECORD)] == [2]


def test_a_missing_folder_is_empty(tmp_path: Path) -> None:
    assert scan(tmp_path / "data").files == {}


@pytest.mark.parametrize("name", names())
def test_layouts_keep_every_field_inside_the_record(name: str) -> None:
    record = record_type(name)
    assert record.fields is not None
    for field, offset, *_ in record.fields.values():
        assert offset + field.itemsize <= record.itemsize


def test_a_file_cut_at_its_end_keeps_its_records(tmp_path: Path) -> None:
    record = np.dtype([("magic", "<u2"), ("number", "<u2")])
    rows = np.zeros(5, record)
    rows["magic"], rows["number"] = 0x5A5A, range(5)
    (tmp_path / "hbm.data.0.slice_0").write_bytes(rows.tobytes()[:-1])
    file = scan(tmp_path).get("hbm")
    assert file is not None
    (piece,) = file.pieces(record, magic=0x5A5A)
    assert piece["number"].tolist() == [0, 1, 2, 3]
