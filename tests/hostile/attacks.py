"""Inputs that are hostile as a whole: bombs, nesting, huge values, archives, links and devices."""

import bz2
import gzip
import io
import json
import lzma
import os
import socket
import sqlite3
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import repeat
from pathlib import Path

from tests.decoders.kineto.builders import call, complete, kernel, operation
from tests.decoders.kineto.builders import write as write_trace
from tests.decoders.memory_snapshot.test_snapshot import SHARED_TUPLES, SNAPSHOT
from tests.decoders.nsys.builders import KERNELS
from tests.hostile.archives import ARCHIVES, write_gzip
from tests.hostile.formats import CONVERT, Command, Format, settings_file
from tests.hostile.mutators import HOSTILE_NAMES
from tests.pipeline.test_sources import MAKERS
from tests.sql import execute

_MIB = 1 << 20
# More than the output from which on the decoder checks the ratio.
_BOMB_MIB = 1200
_SPACE = b" " * _MIB
_HEAD = b'{"schemaVersion": 1, "traceEvents": ['
_OPERATION = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":{}}'


def _file(name: str, parts: Callable[[], Iterable[bytes]], folder: Path) -> Path:
    path = folder / name
    with path.open("wb") as file:
        for part in parts():
            file.write(part)
    return path


def _streams(compress: Callable[[bytes], bytes], suffix: str, folder: Path) -> Path:
    """Write a bomb of many short streams."""
    path = folder / f"run.pt.trace.json{suffix}"
    path.write_bytes(compress(_HEAD) + compress(_SPACE) * _BOMB_MIB + compress(b"]}"))
    return path


def _gzip(folder: Path, pack: Callable[[bytes], bytes] = bytes) -> Path:
    """Write a bomb of one stream of equal blocks."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    parts = [deflate.compress(part) + deflate.flush(zlib.Z_FULL_FLUSH) for part in (_HEAD, _SPACE)]
    path = folder / "run.pt.trace.json.gz"
    path.write_bytes(pack(gzip.compress(b"")[:10] + parts[0] + parts[1] * _BOMB_MIB))
    return path


def _zstd(folder: Path) -> Path:
    import zstandard

    path = folder / "run.pt.trace.json.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as writer:
        for part in (_HEAD, *repeat(_SPACE, _BOMB_MIB), b"]}"):
            writer.write(part)
    return path


def _zip_of_bombs(folder: Path) -> Path:
    inner = gzip.compress(b" " * (64 * _MIB))
    with zipfile.ZipFile(folder / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(200):
            archive.writestr(f"rank{number}.pt.trace.json.gz", inner)
    return folder / "run.zip"


def _zip_with(names: Iterable[str], folder: Path) -> Path:
    trace = write_trace(folder / "t.json", [operation("aten::mm", 1, 2)]).read_bytes()
    with zipfile.ZipFile(folder / "run.zip", "w") as archive:
        for name in ("run.pt.trace.json", *names):
            archive.writestr(zipfile.ZipInfo(name), b"" if name.endswith(".txt") else trace)
    (folder / "t.json").unlink()
    return folder / "run.zip"


def _tar_with(members: Iterable[tuple[str, bytes, str]], folder: Path) -> Path:
    """Write a tar archive of members (name, type, target of links)."""
    trace = write_trace(folder / "t.json", [operation("aten::mm", 1, 2)]).read_bytes()
    with tarfile.open(folder / "run.tar", "w") as archive:
        for name, kind, target in (("run.pt.trace.json", tarfile.REGTYPE, ""), *members):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            if kind == tarfile.REGTYPE:
                info.size = len(trace)
            archive.addfile(info, io.BytesIO(trace) if info.size else None)
    (folder / "t.json").unlink()
    return folder / "run.tar"


def _tar_bomb(folder: Path) -> Path:
    info = tarfile.TarInfo("run.pt.trace.json")
    info.size = _BOMB_MIB * _MIB
    # The end of an archive is empty, too.
    return write_gzip(folder / "run.tar.gz", info.tobuf(), bytes(_MIB), _BOMB_MIB + 1)


def _names(folder: Path) -> Path:
    events = [
        event
        for at, name in enumerate(HOSTILE_NAMES)
        for event in (
            operation(name, 10 * at, 8),
            call(10 * at + 1, 2, at),
            kernel(10 * at + 4, 3, at, name=name),
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": 101, "args": {"name": name}},
            complete("user_annotation", f"ProfilerStep#{at}", 10 * at, 9),
        )
    ]
    about = [{"id": 0, "name": HOSTILE_NAMES[4], "numSms": 9}]
    return write_trace(folder / "run.pt.trace.json", events, deviceProperties=about)


def _many(event: Callable[[int], bytes], count: int, folder: Path) -> Path:
    parts = lambda: (_HEAD, _OPERATION, *(b"," + event(one) for one in range(count)), b"]}")  # noqa: E731
    return _file("run.pt.trace.json", parts, folder)


def _thread(number: int) -> bytes:
    return b'{"ph":"X","cat":"cpu_op","name":"a%d","pid":%d,"tid":%d,"ts":%d,"dur":1}' % (
        *(number, number, number, number),
    )


def _nesting(number: int) -> bytes:
    return b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":%d}' % (
        *(number, 400_000 - 2 * number),
    )


def _sparse(name: str, head: bytes, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(head)
    os.truncate(path, 1 << 40)
    return path


def _parquet_bomb(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    made = MAKERS["nsys"](folder / "small")
    target = folder / "run_pqtdir"
    target.mkdir()
    with closing(sqlite3.connect(made)) as db:
        cursor = db.execute(f"SELECT * FROM {KERNELS} LIMIT 1")
        row = cursor.fetchone()
    columns = {
        name: pyarrow.array([value]).take(pyarrow.array([0]).take(pyarrow.array([0] * 150_000)))
        for (name, *_), value in zip(cursor.description, row, strict=True)
    }
    table = pyarrow.table(columns)
    with parquet.ParquetWriter(target / f"{KERNELS}.parquet", table.schema) as writer:
        for _ in range(2):
            writer.write_table(table)
    made.unlink()
    return target


def _database_bomb(folder: Path) -> Path:
    path = MAKERS["nsys"](folder)
    execute(path, f"UPDATE {KERNELS} SET demangledName = zeroblob(300000000)")
    return path


def _wide(folder: Path) -> Path:
    (folder / "in").mkdir()
    for number in range(10_000):
        (folder / "in" / f"{number}.json").touch()
    return folder / "in"


def _deep(folder: Path) -> Path:
    here = Path.cwd()
    (folder / "in").mkdir()
    os.chdir(folder / "in")
    try:
        for _ in range(900):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(here)
    return folder / "in"


def _odd_entries(folder: Path) -> Path:
    target = folder / "in"
    MAKERS["kineto"](target)
    (target / "cycle").symlink_to(target)
    (target / "self.json").symlink_to("self.json")
    (target / "zero.json").symlink_to("/dev/zero")
    (target / "null.db").symlink_to("/dev/null")
    (target / "log.json").symlink_to("/proc/kmsg")
    (target / "tty.pickle").symlink_to("/dev/full")
    (target / "processes").symlink_to("/proc/self")
    os.mkfifo(target / "pipe.json")
    os.mkfifo(target / "PROF_pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(target)  # the path of a socket is short
        server.bind("socket.json")
        os.chdir(here)
    Path(os.fsdecode(os.fsencode(target) + b"/\xff\xfe.json")).write_bytes(b"{}")
    (target / "a\nb\x1b[31m.json").write_bytes(b"[]")
    return target


def _link(target: str, folder: Path) -> Path:
    (folder / "run.json").symlink_to(target)
    return folder / "run.json"


def _converted(make: Callable[[Path], Path], commands: tuple[Command, ...] = CONVERT) -> Format:
    return Format(make, commands)


def _of_trace(event: Callable[[], bytes]) -> Format:
    return _converted(partial(_file, "run.pt.trace.json", lambda: (_HEAD, event(), b"]}")))


def _of_pickle(rest: Callable[[], bytes]) -> Format:
    return _converted(partial(_file, "run.pickle", lambda: (SNAPSHOT, rest())))


_TO_FOLDER: tuple[Command, ...] = (("convert", "IN", "-o", "OUT/converted"),)
_OPEN = b'{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":'

ATTACKS: dict[str, Format] = {
    "bomb, gzip": _converted(_gzip),
    "bomb, bzip2": _converted(partial(_streams, bz2.compress, ".bz2")),
    "bomb, xz": _converted(partial(_streams, lzma.compress, ".xz")),
    "bomb, zstd": _converted(_zstd),
    "bomb, gzip in gzip": _converted(partial(_gzip, pack=gzip.compress)),
    "bomb, zip of gzip": Format(_zip_of_bombs, _TO_FOLDER, ()),
    "bomb, tar.gz": Format(_tar_bomb, _TO_FOLDER, ()),
    "bomb, Parquet": _converted(_parquet_bomb),
    "bomb, SQLite values": _converted(_database_bomb),
    "zip with ..": Format(partial(_zip_with, ("../x.json", "a/../../x.json")), _TO_FOLDER, ()),
    "zip with absolute names": Format(partial(_zip_with, ("/tmp/x.json",)), _TO_FOLDER, ()),
    "zip with odd names": Format(
        partial(_zip_with, ("run.pt.trace.json/a", "x" * 300, "a\\..\\..\\x", "")), _TO_FOLDER, ()
    ),
    "zip of 10,000 files": Format(
        partial(_zip_with, [f"{number}.txt" for number in range(10_000)]), _TO_FOLDER, ()
    ),
    "tar with links and devices": Format(
        partial(
            _tar_with,
            (
                ("link", tarfile.SYMTYPE, "/etc"),
                ("link/passwd", tarfile.REGTYPE, ""),
                ("hard.json", tarfile.LNKTYPE, "/etc/passwd"),
                ("zero.json", tarfile.CHRTYPE, ""),
                ("pipe.json", tarfile.FIFOTYPE, ""),
            ),
        ),
        _TO_FOLDER,
        (),
    ),
    "tar with ..": Format(
        partial(_tar_with, (("../../x.json", tarfile.REGTYPE, ""),)), _TO_FOLDER, ()
    ),
    "5 million open lists": _of_trace(lambda: b"[" * 5_000_000),
    "5 million nested lists": _of_trace(lambda: _OPEN + b"[" * 5_000_000 + b"]" * 5_000_000 + b"}"),
    "3 million nested objects": _of_trace(
        lambda: _OPEN + b'{"a":' * 3_000_000 + b"1" + b"}" * 3_000_001
    ),
    "string of 200 MB": _of_trace(lambda: _OPEN + b'{"Input type":"' + b"x" * 200_000_000 + b'"}}'),
    "name of 200 MB": _of_trace(
        lambda: _OPEN.replace(b'"a"', b'"' + b"x" * 200_000_000 + b'"') + b"{}}"
    ),
    "number of 50 MB": _of_trace(lambda: _OPEN + b'{"a":' + b"9" * 50_000_000 + b"}}"),
    "time of 50 MB": _of_trace(
        lambda: _OPEN.replace(b'"ts":1', b'"ts":' + b"9" * 50_000_000) + b"{}}"
    ),
    "2 million keys": _of_trace(
        lambda: _OPEN + b"{" + b",".join(b'"k%d":1' % number for number in range(2_000_000)) + b"}}"
    ),
    "2 million equal keys": _of_trace(
        lambda: _OPEN + b"{" + b",".join([b'"k":1'] * 2_000_000) + b"}}"
    ),
    "30,000 threads": _converted(partial(_many, _thread, 30_000)),
    "100,000 nested operations": _converted(partial(_many, _nesting, 100_000)),
    "hostile names": Format(
        _names,
        CONVERT,
        (
            ("db", "check", "OUT"),
            ("report", "OUT"),
            ("report", "OUT", "--by", "kernel", "--full-names"),
            *(
                ("report", "OUT", "-o", f"OUT/r.{suffix}")
                for suffix in ("csv", "json", "html", "md")
            ),
            ("export", "OUT", "--layout", "mindstudio", "-o", "OUT/files"),
            ("export", "OUT", "--layout", "chrome", "-o", "OUT/t.json"),
            ("export", "OUT", "--layout", "speedscope", "-o", "OUT/s.json"),
            ("advise", "OUT"),
            ("diff", "OUT", "OUT", "--format", "csv", "-o", "OUT/d.csv"),
            ("diff", "OUT", "OUT", "--format", "html", "-o", "OUT/d.html"),
        ),
    ),
    "pickle with a key of 2**40 references": _of_pickle(lambda: SHARED_TUPLES + b"K\x01u."),
    "pickle with a key nested 3 million deep": _of_pickle(
        lambda: b")" + b"\x85" * 3_000_000 + b"K\x01u."
    ),
    "pickle of 20 million lists": _of_pickle(lambda: b"]" * 20_000_000 + b"u."),
    "file of a terabyte, JSON": _converted(partial(_sparse, "run.pt.trace.json", _HEAD)),
    "file of a terabyte, zeros": _converted(partial(_sparse, "run.json", b"")),
    "file of a terabyte, SQLite": _converted(
        partial(_sparse, "run.sqlite", b"SQLite format 3\0\x10\0\x01\x01\0@  ")
    ),
    "file of a terabyte, pickle": _converted(partial(_sparse, "run.pickle", SNAPSHOT)),
    "file of a terabyte, gzip": _converted(partial(_sparse, "run.json.gz", gzip.compress(_HEAD))),
    "directory of 10,000 files": Format(_wide, _TO_FOLDER, ()),
    "directory 900 deep": Format(_deep, _TO_FOLDER, ()),
    "directory of links, pipes and devices": Format(_odd_entries, _TO_FOLDER, ()),
    "cluster of links, pipes and devices": Format(
        _odd_entries, (("cluster", "build", "IN", "-o", "OUT/out.cluster", "--jobs", "1"),), ()
    ),
    "report of links, pipes and devices": Format(_odd_entries, (("report", "IN"),), ()),
    "link to a device": _converted(partial(_link, "/dev/zero")),
    "link to itself": _converted(partial(_link, "run.json")),
    "settings nested deeply": Format(
        partial(settings_file, text="x = " + "[" * 100_000), (("report", "../report.db"),), ()
    ),
    "settings with long keys": Format(
        partial(settings_file, text=f"[tool.uprof.report]\n{'a.' * 50_000}b = 1\n"),
        (("report", "../report.db"),),
        (),
    ),
    "settings with a formula": Format(
        partial(settings_file, text=f"[tool.uprof.report]\n{json.dumps(HOSTILE_NAMES[0])} = 1\n"),
        (("report", "../report.db"),),
        (),
    ),
    **ARCHIVES,
}
