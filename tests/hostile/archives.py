"""Archives that are hostile themselves: bombs, overlaps, wrong sizes, endless headers."""

import struct
import tarfile
import zlib
from functools import partial
from pathlib import Path

from tests.hostile.formats import CONVERT, Command, Format

_MIB = 1 << 20
_EXPANDED_MIB = 1200
_HEAD = b'{"schemaVersion": 1, "traceEvents": ['
_TO_FOLDER: tuple[Command, ...] = (("convert", "IN", "-o", "OUT/converted"),)
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def _deflated(head: bytes, block: bytes, count: int) -> tuple[bytes, int, int]:
    """Return `head` and repeated blocks as raw deflated data, their size and checksum."""
    packer = zlib.compressobj(9, wbits=-15)
    data = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    data += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * count
    checksum = zlib.crc32(head)
    for _ in range(count):
        checksum = zlib.crc32(block, checksum)
    return data + packer.flush(), len(head) + count * len(block), checksum


def write_gzip(path: Path, head: bytes, block: bytes, count: int) -> Path:
    """Write a file that expands to `head` and `count` blocks, and return its path."""
    data, size, checksum = _deflated(head, block, count)
    header, end = b"\x1f\x8b\x08\0\0\0\0\0\0\xff", struct.pack("<II", checksum, size & 0xFFFF_FFFF)
    path.write_bytes(header + data + end)
    return path


def _zip(
    folder: Path,
    members: list[tuple[bytes, bytes, int, int, int]],
    entries: list[tuple[bytes, int]] | None = None,
) -> Path:
    """Write members (name, data, method, declared size, checksum), and the central directory.

    Its entries are (name, member); by default there is one for each member.
    """
    path = folder / "run.zip"
    offsets: list[int] = []
    fields: list[tuple[int, int, int, int]] = []
    with path.open("wb") as file:
        for name, data, method, size, checksum in members:
            offsets.append(file.tell())
            sizes = (checksum, len(data), size)
            fields.append((method, *sizes))
            file.write(struct.pack("<4s5H3I2H", _LOCAL, 20, 0, method, 0, 33, *sizes, len(name), 0))
            file.write(name + data)
        begin = file.tell()
        entries = entries or [(one[0], number) for number, one in enumerate(members)]
        for name, number in entries:
            of_member = (fields[number][0], 0, 33, *fields[number][1:])
            header = (_CENTRAL, 20, 20, 0, *of_member, len(name), 0, 0, 0, 0, 0)
            file.write(struct.pack("<4s6H3I5H2I", *header, offsets[number]) + name)
        count, length = min(len(entries), 0xFFFF), file.tell() - begin
        file.write(struct.pack("<4s4H2IH", _END, 0, 0, count, count, length, begin, 0))
    return path


_SPACES = b" " * _MIB, _EXPANDED_MIB
# A zip archive begins with such a file, and would end with its directory.
_INNER = struct.pack("<4s5H3I2H", _LOCAL, 20, 0, 0, 0, 33, 0, 2, 2, 1, 0) + b"a{}", *_SPACES


def _bomb(folder: Path, names: tuple[bytes, ...] = (b"run.pt.trace.json",)) -> Path:
    """Write an archive whose entries all have the same data, which expands a thousand times."""
    data, size, checksum = _deflated(_HEAD, *_SPACES)
    return _zip(folder, [(names[0], data, 8, size, checksum)], [(name, 0) for name in names])


def _zip_in_zip(folder: Path) -> Path:
    data, size, checksum = _deflated(*_INNER)
    return _zip(folder, [(b"run.json", data, 8, size, checksum)])


def _wrong_sizes(folder: Path, size: int) -> Path:
    data, _, checksum = _deflated(_HEAD, b"]}", 1)
    names = (b"a.pt.trace.json", b"b.pt.trace.json")
    return _zip(folder, [(name, data, 8, size, checksum) for name in names])


def _damaged_method(method: int, folder: Path) -> Path:
    data = b"\x09\x04\x05\x00\x5d\xff\xff\xff\xff" + bytes(range(256))
    names = (b"a.pt.trace.json", b"b.pt.trace.json")
    return _zip(folder, [(name, data, method, 1000, 0) for name in names])


def _tar_of_directories(folder: Path) -> Path:
    entry = tarfile.TarInfo("a")
    entry.type = tarfile.DIRTYPE
    return write_gzip(folder / "run.tar.gz", b"", entry.tobuf() * 2000, 50)


def _tar_header(kind: bytes, folder: Path) -> Path:
    entry = tarfile.TarInfo("a")
    entry.type, entry.size = kind, _EXPANDED_MIB * _MIB
    line = b"32 comment=" + b"x" * 20 + b"\n"
    return write_gzip(folder / "run.tar.gz", entry.tobuf(), line * (_MIB // 32), _EXPANDED_MIB)


def _tar_of_holes(folder: Path) -> Path:
    entry = tarfile.TarInfo("a")
    entry.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    head[482] = 1  # more holes follow, 21 in each block
    head[148:156] = b"%06o\0 " % (sum(head[:148]) + sum(head[156:]) + 8 * 32)
    block = (b"%011o\0" % 1) * 42 + b"\1" + bytes(7)
    return write_gzip(folder / "run.tar.gz", bytes(head), block * 2048, 800)


ARCHIVES: dict[str, Format] = {
    "bomb, zip": Format(_bomb, CONVERT, ()),
    "bomb, zip of overlapping files": Format(
        partial(_bomb, names=tuple(b"%d.pt.trace.json" % number for number in range(1000))),
        _TO_FOLDER,
        (),
    ),
    "bomb, zip in gzip": Format(
        lambda folder: write_gzip(folder / "run.json.gz", *_INNER), CONVERT, ()
    ),
    "bomb, zip in zip": Format(_zip_in_zip, CONVERT, ()),
    "zip of 20,000 files": Format(
        lambda folder: _zip(
            folder, [(b"a.json", b"{}", 0, 2, zlib.crc32(b"{}"))], [(b"a.json", 0)] * 20_000
        ),
        _TO_FOLDER,
        (),
    ),
    **{
        f"zip with the declared size {size}": Format(
            partial(_wrong_sizes, size=size), _TO_FOLDER, ()
        )
        for size in (1, 0xFFFF_FFFE)
    },
    **{
        f"zip with damaged data of method {method}": Format(
            partial(_damaged_method, method), _TO_FOLDER, ()
        )
        for method in (8, 12, 14)
    },
    "tar of 100,000 directories": Format(_tar_of_directories, _TO_FOLDER, ()),
    "tar with a long name of 1.2 GB": Format(
        partial(_tar_header, tarfile.GNUTYPE_LONGNAME), _TO_FOLDER, ()
    ),
    "tar with attributes of 1.2 GB": Format(partial(_tar_header, tarfile.XHDTYPE), _TO_FOLDER, ()),
    "tar with millions of holes": Format(_tar_of_holes, _TO_FOLDER, ()),
}
