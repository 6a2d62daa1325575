"""Compressed recordings: recognized by their first bytes, read in bounded memory."""

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.decoders.kineto.builders import decode, operation, write
from unified_prof.decoders import compression
from unified_prof.errors import RawFormatError
from unified_prof.pipeline import sources
from unified_prof.pipeline.sources import Match, by_kind

zstd = compression.zstd_module()
ZSTD_MODULES = ("compression.zstd", "backports.zstd", "zstandard")
needs_zstd = pytest.mark.skipif(zstd is None, reason="no module here reads zstd")


def zipped(content: bytes, name: str = "trace.json", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def zstandard(content: bytes) -> bytes:
    packed: bytes = (
        zstd.ZstdCompressor().compress(content)
        if zstd.__name__ == "zstandard"
        else zstd.compress(content)
    )
    return packed


PACKERS: list[object] = [
    pytest.param(gzip.compress, ".gz", id="gzip"),
    pytest.param(lzma.compress, ".xz", id="xz"),
    pytest.param(bz2.compress, ".bz2", id="bzip2"),
    pytest.param(zipped, ".zip", id="zip"),
    pytest.param(zstandard, ".zst", id="zstd", marks=needs_zstd),
]
Pack = Callable[[bytes], bytes]


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    events = [operation(f"aten::op{i}", i * 3, i * 7 % 13) for i in range(3000)]
    return write(tmp_path / "plain.json", events).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("pack", "suffix"), PACKERS)
@pytest.mark.parametrize("misnamed", [False, True])
def test_every_format_is_read_under_any_name(
    pack: Pack, suffix: str, misnamed: bool, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / ("trace.json" if misnamed else f"rank0.pt.trace.json{suffix}")
    path.write_bytes(pack(content))
    sink = decode(path)
    assert len(sink.tables["PYTORCH_API"]) == 3000
    assert sink.anomalies == {}
    kineto = by_kind("kineto")
    assert kineto.sniff(path) is Match.CERTAIN
    assert sources.find_source(path) is kineto
    assert kineto.stem(path) == ("trace" if misnamed else "rank0")


@pytest.mark.parametrize(("pack", "suffix"), [param for param in PACKERS if "zip" not in param.id])  # type: ignore[attr-defined]
def test_concatenated_members_with_padding_are_one_stream(
    pack: Pack, suffix: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"t.json{suffix}"
    padding = b"" if suffix == ".zst" else bytes(512)
    path.write_bytes(pack(content[:9001]) + pack(content[9001:]) + padding)
    assert len(decode(path).tables["PYTORCH_API"]) == 3000


@pytest.mark.parametrize(("pack", "suffix"), PACKERS)
def test_truncated_file_is_refused_or_keeps_complete_events(
    pack: Pack, suffix: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"t.json{suffix}"
    packed = pack(content)
    refused = []
    for part in range(1, 12):
        path.write_bytes(packed[: len(packed) * part // 12])
        try:
            sink = decode(path)
        except RawFormatError as err:
            refused.append(str(err))
        else:
            assert sink.anomalies["cut_off"] == 1
    assert all("cut off" in message for message in refused)
    if suffix in (".gz", ".xz"):
        assert len(sink.tables["PYTORCH_API"]) > 2000


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize(("pack", "suffix"), PACKERS)
def test_flipped_bits_are_refused_or_counted(
    pack: Pack, suffix: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"t.json{suffix}"
    packed = pack(content)
    refused = []
    for part in range(1, 20):
        damaged = bytearray(packed)
        damaged[len(packed) * part // 20] ^= 0x55
        path.write_bytes(damaged)
        try:
            decode(path)
        except RawFormatError as err:
            refused.append(str(err))
    assert all(str(path) in message for message in refused)
    assert len(refused) > 10 or suffix == ".zst"  # zstd need not have a checksum


# ---- archives


def test_archive_with_one_compressed_trace_is_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run/", "")
        archive.writestr("run/readme.txt", "what it is")
        archive.writestr("__MACOSX/run/._trace.json.gz", "x")
        archive.writestr("run/trace.json.gz", gzip.compress(content))
    assert len(decode(path).tables["PYTORCH_API"]) == 3000


def test_archive_of_many_traces_lists_them_and_advises(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "traces.json.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for rank in range(7):
            archive.writestr(f"rank{rank}.json", content)
    with pytest.raises(
        RawFormatError, match=r"archive of 7 files.*rank0\.json.* and 2 more"
    ) as got:
        decode(path)
    assert "unpack it" in str(got.value.hint)
    assert sources.find_source(path) is by_kind("kineto"), "the source that reports the error"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archive_methods_without_limit_refused(method: int, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    path.write_bytes(zipped(content, method=method))
    with pytest.raises(RawFormatError, match=f"compressed with method {method}"):
        decode(path)


def test_empty_encrypted_and_nested_archives_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(RawFormatError, match="is an empty zip archive"):
        decode(path)
    packed = bytearray(zipped(content))
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    packed[6] |= 1
    path.write_bytes(packed)
    with pytest.raises(RawFormatError, match="encrypted"):
        decode(path)
    path.write_bytes(zipped(zipped(zipped(content, "a.json"), "b.json"), "c.json"))
    with pytest.raises(RawFormatError, match=r"expected a torch\.profiler trace"):
        decode(path)


def test_zip_that_expands_a_thousand_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    path.write_bytes(zipped(bytes(70 << 20)))
    with pytest.raises(RawFormatError, match="expands to more than 400 times its size"):
        for _ in compression.Content(path).blocks():
            pass


@pytest.mark.parametrize("pack", [gzip.compress, zipped])
def test_archive_in_a_compressed_file_is_copied_only_up_to_a_limit(
    content: bytes, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(pack(zipped(content)))
    assert decode(path)
    monkeypatch.setattr(compression, "_MAX_INNER_ARCHIVE_BYTES", 1000)
    with pytest.raises(RawFormatError, match="contains a zip archive of more than 1,000 bytes"):
        for _ in compression.Content(path).blocks():
            pass


def test_zip_of_a_model_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"x")
        archive.writestr("model/version", b"3")
    assert by_kind("kineto").sniff(path) is not Match.CERTAIN


# ---- decompression bombs


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize(("pack", "suffix"), PACKERS)
def test_decompression_bomb_is_refused_in_bounded_memory(
    pack: Pack, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "RATIO_CHECKED_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(compression, "MAX_OTHER_RATIO", 400)
    path = tmp_path / f"bomb.json{suffix}"
    path.write_bytes(pack(b'{"traceEvents": [' + b" " * (12 << 20) + b"]}"))
    tracemalloc.start()
    try:
        with pytest.raises(RawFormatError, match=r"expands to more than 400 times|no readable"):
            decode(path)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_oversized_xz_dictionary_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    path = tmp_path / "t.json.xz"
    path.write_bytes(lzma.compress(b'{"traceEvents": []}', filters=filters))
    with pytest.raises(RawFormatError, match=r"xz data is damaged|[Mm]emory"):
        decode(path)


# ---- zstd without its package


def test_zst_without_its_module_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ZSTD_MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "trace.json.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    assert by_kind("kineto").sniff(path) is Match.CERTAIN, "by its name"
    with pytest.raises(RawFormatError, match="needs the package zstandard") as caught:
        decode(path)
    assert "unified-prof[zstd]" in str(caught.value.hint)
    assert caught.value.exit_code == 6
