import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unified_prof.decoders.prof.layouts import names, record_type
from unified_prof.decoders.prof.slices import RawFile, Slice, scan

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
def test_slices_are_one_stream_of_records(
    raw: bytes, cuts: list[int], piece_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    write_slices(folder, "hbm.data.0", [raw[a:b] for a, b in pairwise(edges)])
    file = scan(folder).get("hbm")
    pieces = [] if file is None else [piece.tobytes() for piece in file.pieces(RECORD, piece_bytes)]
    assert b"".join(pieces) == raw[len(raw) % 4 :]
    assert all(len(piece) <= max(piece_bytes, 4) for piece in pieces)


def test_slices_are_ordered_by_number_with_unaging_first(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"unaging.compact.x.slice_{number}").write_bytes(bytes([number, 0, 0, 0]))
    (tmp_path / "aging.compact.x.slice_0").write_bytes(b"\x63\0\0\0")
    file = scan(tmp_path).host_file("compact.x")
    assert file is not None
    values = np.concatenate(list(file.pieces(RECORD)))["number"]
    assert values.tolist() == [*range(12), 0x63]
    assert file.count(RECORD) == 13


def test_old_and_new_device_file_names_have_the_same_kind(tmp_path: Path) -> None:
    write_slices(tmp_path, "hwts.data.7.dev.profiler_default_tag.0", [b"1234"])
    write_slices(tmp_path, "host_cpu.data", [b"time 1"])
    write_slices(tmp_path, "aicore.data.3", [b""])
    assert set(scan(tmp_path).files) == {"hwts", "host_cpu", "aicore"}


def test_companion_files_are_no_data_and_missing_ones_are_reported(tmp_path: Path) -> None:
    write_slices(tmp_path, "hbm.data.0", [b"1234"])
    (tmp_path / "llc.data.0.slice_0").write_bytes(b"1234")
    (tmp_path / "hbm.data.0.slice_0.complete").write_bytes(b"")
    data = scan(tmp_path)
    assert set(data.files) == {"hbm", "llc"}
    assert data.unfinished == ("llc.data.0.slice_0",)


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="the system does not tell holes")
def test_slice_ends_at_its_first_large_hole(tmp_path: Path) -> None:
    write_slices(tmp_path, "hbm.data.0", [b"1234", b"5678", b"90ab"])
    with (tmp_path / "hbm.data.0.slice_1").open("r+b") as sparse:
        sparse.truncate(1 << 40)
        sparse.seek((1 << 40) - 4)
        sparse.write(b"last")
    data = scan(tmp_path)
    file = data.get("hbm")
    assert file is not None
    raw = b"".join(piece.tobytes() for piece in file.pieces(RECORD))
    assert raw.startswith(b"12345678")
    assert raw.endswith(b"90ab")
    assert len(raw) < 1 << 20, "the file system has blocks"
    assert len(data.lost) == 1
    assert f"expected {1 << 40}" in data.lost[0]


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"1234")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "hbm.data.0.slice_0").symlink_to(secret)
    data = scan(folder)
    assert data.files == {}
    assert data.links == ("hbm.data.0.slice_0",)


def test_shrunk_file_gives_its_remaining_records(tmp_path: Path) -> None:
    path = tmp_path / "hbm.data.0.slice_0"
    path.write_bytes(bytes(10))
    file = RawFile("hbm", ((Slice(path, 400),),))
    assert [len(piece) for piece in file.pieces(RECORD)] == [2]


@pytest.mark.parametrize("name", names())
def test_layouts_keep_every_field_inside_the_record(name: str) -> None:
    record = record_type(name)
    assert record.fields is not None
    for field, offset, *_ in record.fields.values():
        assert offset + field.itemsize <= record.itemsize


@pytest.mark.parametrize("companion", [True, False])
@pytest.mark.parametrize("cut", [slice(None, -7), slice(7, None)])
@pytest.mark.parametrize("magic", [0x5A5A, None])
def test_file_cut_at_either_end_keeps_its_records(
    cut: slice, companion: bool, magic: int | None, tmp_path: Path
) -> None:
    record = np.dtype([("magic", "<u2"), ("number", "<u2"), ("timestamp", "<u8")])
    rows = np.zeros(5, record)
    rows["magic"], rows["number"], rows["timestamp"] = 0x5A5A, range(5), 10**9 + np.arange(5) * 777
    write_slices(tmp_path, "hbm.data.0", [rows.tobytes()])
    path = tmp_path / "hbm.data.0.slice_0"
    path.write_bytes(rows.tobytes()[cut])
    if not companion:
        (tmp_path / "hbm.data.0.slice_0.done").unlink()
    file = scan(tmp_path).get("hbm")
    assert file is not None
    (piece,) = file.pieces(record, magic=magic)
    assert piece["number"].tolist() == ([1, 2, 3, 4] if cut.start else [0, 1, 2, 3])


def test_magic_numbers_locate_records_between_two_losses(tmp_path: Path) -> None:
    record = np.dtype([("magic", "<u2"), ("number", "<u2"), ("timestamp", "<u8")])
    rows = np.zeros(9, record)
    rows["magic"], rows["number"] = 0x5A5A, range(9)
    write_slices(tmp_path, "hbm.data.0", [rows.tobytes()])
    (tmp_path / "hbm.data.0.slice_0").write_bytes(rows.tobytes()[5:-8])
    file = scan(tmp_path).get("hbm")
    assert file is not None
    (piece,) = file.pieces(record, magic=0x5A5A)
    assert piece["number"].tolist() == [1, 2, 3, 4, 5, 6, 7]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    lost=st.lists(st.integers(0, 40), min_size=8, max_size=8),
    dropped=st.integers(0, 3),
)
def test_complete_records_survive_any_reported_loss(
    sizes: list[int], lost: list[int], dropped: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Slices may lose their end, and the oldest may be dropped; no record is misaligned."""
    folder = tmp_path_factory.mktemp("data")
    sizes[-1] += -sum(sizes) % 4  # The last slice ends with a record.
    count = sum(sizes) // 4
    raw = np.arange(1, count + 1, dtype="<u4").tobytes()
    expected, at = set(range(1, count + 1)), 0
    for number, size in enumerate(sizes):
        keep = 0 if number < dropped else max(size - lost[number], 0)
        expected -= {position // 4 + 1 for position in range(at + keep, at + size)}
        if number >= dropped:
            name = f"hbm.data.0.slice_{number}"
            (folder / name).write_bytes(raw[at : at + keep])
            (folder / f"{name}.done").write_text(f"filesize:{size}\nstarttime:0\n")
        at += size
    file = scan(folder).get("hbm")
    pieces = [] if file is None else list(file.pieces(RECORD))
    assert {int(value) for piece in pieces for value in piece["number"]} == expected


def test_missing_slices_are_reported(tmp_path: Path) -> None:
    raw = np.arange(30, dtype="<u4").tobytes()
    write_slices(tmp_path, "hbm.data.0", [raw[:30], raw[30:70], raw[70:]])
    (tmp_path / "hbm.data.0.slice_1").unlink()
    data = scan(tmp_path)
    assert data.lost == ("missing slices between hbm.data.0.slice_0 and hbm.data.0.slice_2",)
    file = data.get("hbm")
    assert file is not None
    values = np.concatenate(list(file.pieces(RECORD)))["number"]
    assert values.tolist() == [*range(7), *range(18, 30)]
