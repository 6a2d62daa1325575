"""Copies recordings with other names, paths and texts, so that they can be shared.

Times, ids and structure are kept, so that the copy converts to the same figures. What is not known
to be free of text is left out and named.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pickle
import re
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from unified_prof.base.anonymous_names import Anonymizer
from unified_prof.decoders.ascend_pt import folder as ascend
from unified_prof.decoders.ascend_pt import operators, queue
from unified_prof.decoders.compression import Content, file_format, head_of
from unified_prof.decoders.memory_snapshot import pickle_reader
from unified_prof.decoders.prof.layouts import record_type
from unified_prof.decoders.prof.recording import DECODED
from unified_prof.decoders.prof.slices import scan
from unified_prof.errors import OutputError, RawFormatError, UprofError
from unified_prof.pipeline import sources
from unified_prof.pipeline.discovery import refusal
from unified_prof.pipeline.report_input import dump_files
from unified_prof.pipeline.temporary_inputs import TemporaryInputs, is_archive
from unified_prof.sqlite.atomic import new_folder, raise_kept, replacing, temporary_folder, watch
from unified_prof.sqlite.fingerprint import MAGIC
from unified_prof.sqlite.opening import detect
from unified_prof.sqlite.statements import quoted

_PARQUET = b"PAR1"
_OPEN: dict[str, Callable[..., Any]] = {
    ".gz": partial(gzip.open, compresslevel=6),
    ".xz": lzma.open,
    ".bz2": bz2.open,
}
_NOT_WRITTEN = re.compile(r"\.(?:zst|zip)$")
_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\{\s*[\"}]|\[\s*[\[{\"\d\]-])")
# Bytes outside of strings that JSON does not need: letters of other words are dropped.
_BARE = re.compile(rb"[A-Za-z_\x80-\xff][\w\x80-\xff]*")
_LITERALS = frozenset((b"true", b"false", b"null", b"NaN", b"Infinity", b"nan", b"inf", b"e", b"E"))
# End of a block in which a string may lack its colon.
_MARGIN = 1 << 12
_RECORD = struct.Struct("<HI")
_LINES = 1 << 20
# Payloads of events, whose layout is part of the recording: text in them is not searched.
_PAYLOADS = frozenset(("binaryData",))
_NAME_COLUMNS, _VALUE_COLUMNS = ("name", "key"), ("value", "val", "data")
# Directories of recordings whose files are named by CANN and torch_npu.
_PART = re.compile(r"(?:host|device_\d+|data|FRAMEWORK)")


@dataclass(slots=True)
class Anonymized:
    """Result: the files written, and what was left out."""

    output: Path
    files: int = 0
    names: int = 0  # Different words and components of paths that were replaced.
    left_out: dict[str, str] = field(default_factory=dict)  # Path within the recording -> reason.
    # Binary parts that were copied, although text in them cannot be found.
    unsearched: list[str] = field(default_factory=list)


def anonymize(
    recording: Path,
    output: Path,
    progress: Callable[[str], None] = lambda _: None,
    *,
    force: bool = False,
) -> Anonymized:
    """Write a copy of a recording, or of a directory of recordings, without names of its owner.

    If `force` is true, an existing file is replaced, but not a directory. Raises RawFormatError if
    the recording cannot be read, or its format is unknown, and OutputError if the output exists, is
    inside the recording or cannot be written.
    """
    if os.path.lexists(output) and (not force or output.is_dir()):
        hint = "choose another name" if output.is_dir() else "overwrite it with --force"
        raise OutputError(f"{output} already exists", hint=hint, slug="already-exists")
    if output.resolve().is_relative_to(recording.resolve()):
        message = f"{output} is the recording itself or inside it"
        raise OutputError(message, hint="choose another place", slug="wrong-output-place")
    work = _Work(Anonymized(output), progress)
    with TemporaryInputs() as temporary:
        path = temporary.unpack(recording, progress) if is_archive(recording) else recording
        if path.is_dir():
            with new_folder(output) as folder:
                work.directory(path, folder, is_part=False)
                if not work.result.files:
                    raise refusal(recording)
        else:
            if not _is_known(path):
                raise refusal(path)
            with replacing(output, overwrite=force) as target:
                why = work.file(path, target, output.name)
                if why is not None:
                    raise RawFormatError(f"{path}: {why}", slug="unsupported-recording")
    work.result.names = len(work.names.names)
    return work.result


def _is_known(path: Path) -> bool:
    """Return True for recordings, reports and dumps of the flight recorder."""
    if not head_of(path):
        return False  # empty, or its compressed data is damaged
    if sources.certain_source(path) or sources.unsupported_format(path) is sources.FLIGHT_RECORDER:
        return True
    if (head_of(path) or b"").startswith(MAGIC):
        try:
            return detect(path).family is not None
        except UprofError:
            return False
    return sources.find_source(path) is not None


class _Work:
    def __init__(self, result: Anonymized, progress: Callable[[str], None]) -> None:
        self.result = result
        self.names = Anonymizer()
        self._progress = progress
        self._kinds: dict[Path, str] = {}  # Kinds of the raw files of PROF_* directories.

    def directory(self, path: Path, target: Path, *, is_part: bool) -> None:
        """Copy a directory; if it is no part of a recording, only the recordings in it."""
        is_part = is_part or sources.certain_source(path) is not None or bool(dump_files(path))
        for data in (path, path / "data"):
            with_slices = scan(data) if data.is_dir() and is_part else None
            for kind, file in with_slices.files.items() if with_slices else ():
                self._kinds.update(dict.fromkeys(file.paths, kind))
        for child in sorted(path.iterdir()):
            name = child.name
            if not (is_part and _PART.fullmatch(path.name)):
                name = self.names.file_name(name)
            if child.name.endswith(("-wal", "-shm")):
                continue  # its content is in the copy of the database
            if child.is_symlink():
                self._leave_out(child, "a link")
            elif child.is_dir():
                made = target / name
                made.mkdir()
                self.directory(child, made, is_part=is_part)
                if not any(made.iterdir()) and not is_part:
                    made.rmdir()
            elif not child.is_file():
                self._leave_out(child, "not a regular file")
            elif is_part or _is_known(child):
                # Without the ending of a compression that is not written.
                form = name if file_format(child) is None else _NOT_WRITTEN.sub("", name)
                why = self.file(child, target / form, form)
                if form.endswith(".done"):
                    _correct_size(child, target / form)
                if why is not None:
                    (target / form).unlink(missing_ok=True)
                    self._leave_out(child, why)
            else:
                self._leave_out(child, "not a recording")

    def _leave_out(self, path: Path, why: str) -> None:
        self.result.left_out[str(path)] = why

    def file(self, path: Path, target: Path, name: str) -> str | None:
        """Write a file with other texts; return why it cannot be written, else None.

        The ending of `name` says how the output is compressed.
        """
        self._progress(f"anonymizing {path.name}")
        head = head_of(path)
        if head is None:
            raise RawFormatError(f"{path} is damaged or cut off", slug="damaged-recording")
        write = self._writer(path, head)
        if isinstance(write, str):
            return write
        opened = _OPEN.get(Path(name).suffix, open)
        if write in (self._database, self._parquet):
            with temporary_folder() as folder:
                source, result = path, folder / "result"
                if file_format(path) is not None:
                    source = folder / "source"
                    with source.open("wb") as copy:
                        copy.writelines(Content(path).blocks())
                write(source, result)
                with result.open("rb") as data, opened(target, "wb") as out:
                    shutil.copyfileobj(data, out, _LINES)
        else:
            with opened(target, "wb") as out:
                write(path, out)
        shutil.copystat(path, target)
        self.result.files += 1
        return None

    def _writer(self, path: Path, head: bytes) -> Callable[[Path, Any], None] | str:
        kind = self._kinds.get(path)
        bare = re.sub(r"^(?:un)?aging\.", "", kind or "")
        if head.startswith(MAGIC):
            return self._database
        if head.startswith(_PARQUET):
            return self._parquet
        if path.parent.name == ascend.FRAMEWORK:
            return self._framework(path)
        if bare == "additional.msproftx":
            return self._marks
        if bare == "additional.type_info_dic" or not head:
            return _copy
        if head.startswith(b"\x80"):
            return self._pickle
        if bare in DECODED and not _is_text(head):
            return _copy
        if _JSON_START.match(head):
            return self._json
        if _is_text(head):
            return partial(self._text, header=".csv" in path.suffixes)
        return f"binary data ({kind})" if kind else "binary data"

    def _json(self, path: Path, out: IO[bytes]) -> None:
        """Replace the strings of a JSON document, without its numbers and structure."""
        literal, key, rest = self.names.literal, "", b""
        for block in _blocks_and_end(Content(path)):
            data, at = rest + (block or b""), 0
            limit = len(data) - _MARGIN if block is not None else len(data)
            parts: list[bytes] = []
            for found in _STRING.finditer(data):
                if found.end() > limit:
                    break
                parts.append(_without_words(data[at : found.start()]))
                is_key = found[2] is not None
                text = data[found.start() : found.end(1) + 1]
                parts.append(literal(text, "" if is_key else key))
                if is_key:
                    key = found[1].decode("utf-8", "replace")
                    parts.append(found[2])
                at = found.end()
            rest = data[at:]
            if block is None:
                # The text of a string that is cut off is dropped.
                parts.append(_without_words(rest.partition(b'"')[0]))
            elif b'"' not in rest and len(rest) > _MARGIN:
                parts.append(_without_words(rest[:-_MARGIN]))
                rest = rest[-_MARGIN:]
            out.write(b"".join(parts))

    def _text(self, path: Path, out: IO[bytes], *, header: bool) -> None:
        rest = b""
        for block in _blocks_and_end(Content(path)):
            *lines, rest = (rest + (block or b"")).split(b"\n")
            if block is None:
                lines, rest = [rest], b""
            for line in lines:
                if header:
                    out.write(line)
                else:
                    key, separator, value = line.decode("utf-8", "replace").partition(":")
                    name = key.strip() if separator else ""
                    text = self.names.text(key) + separator + self.names.text(value, name)
                    out.write(text.encode())
                header = False
                if block is not None:
                    out.write(b"\n")

    def _pickle(self, path: Path, out: IO[bytes]) -> None:
        pickle.dump(self.names.value(pickle_reader.load(path)), out, protocol=4)

    def _marks(self, path: Path, out: IO[bytes]) -> None:
        """Replace the messages of marks, which have a fixed length."""
        layout = record_type("msproftx")
        assert layout.fields is not None
        kind, start = layout.fields["message"][:2]
        size, rest = layout.itemsize, b""
        for block in Content(path).blocks():
            data = rest + block
            whole = len(data) - len(data) % size
            changed = bytearray(data[:whole])
            for at in range(start, whole, size):
                message = data[at : at + kind.itemsize].partition(b"\0")[0]
                text = self.names.text(message.decode("utf-8", "replace")).encode()
                changed[at : at + kind.itemsize] = text[: kind.itemsize].ljust(kind.itemsize, b"\0")
            out.write(changed)
            rest = data[whole:]

    def _framework(self, path: Path) -> Callable[[Path, Any], None] | str:
        """Return the function that copies a file of FRAMEWORK/."""
        layouts = {
            ascend.OPERATORS: operators.LAYOUTS,
            ascend.MARKS: queue.LAYOUTS,
            ascend.CALL_NAMES: operators.HASH_LAYOUTS,
        }
        for name, found in layouts.items():
            if path.name.startswith(name):
                sizes = [layout.fixed.itemsize for layout in found]
                return lambda path, out: self._records(path, out, sizes)
        if path.name.startswith((ascend.MEMORY, ascend.CALLS, ascend.COLLECTIONS)):
            return _copy
        return "records that are not decoded"

    def _records(self, path: Path, out: IO[bytes], sizes: list[int]) -> None:
        """Replace the fields of records, and adapt their lengths."""
        with path.open("rb") as file:
            while len(head := file.read(_RECORD.size)) == _RECORD.size:
                kind, length = _RECORD.unpack(head)
                if len(value := file.read(length)) < length:
                    break
                for size in sizes:
                    fields, is_whole = _fields(value, size)
                    if is_whole:
                        break
                else:
                    size = sizes[0]
                    fields, _ = _fields(value, size)
                data = bytearray(value[:size])
                for number, content in fields:
                    text = self.names.data(content)
                    data += _RECORD.pack(number, len(text)) + text
                out.write(_RECORD.pack(kind, len(data)) + data)

    def _database(self, path: Path, target: Path) -> None:
        """Replace all texts of a database; the copy has no free pages."""
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source:
                watch(source)
                source.text_factory = bytes
                source.execute("VACUUM INTO ?", (str(target),))
            with closing(sqlite3.connect(target, isolation_level=None)) as db:
                watch(db)
                db.executescript("PRAGMA journal_mode = OFF; PRAGMA secure_delete = ON;")
                db.create_function("anonymous", 2, self._cell, deterministic=True)
                tables = db.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table'"
                    " AND name NOT LIKE 'sqlite_%' AND sql NOT LIKE 'CREATE VIRTUAL%'"
                ).fetchall()
                db.execute("BEGIN")
                for (table,) in tables:
                    self._table(db, table)
                db.execute("COMMIT")
                db.execute("VACUUM")
        except sqlite3.Error as err:
            raise_kept()
            raise RawFormatError(f"{path}: {err}", slug="damaged-recording") from err

    def _table(self, db: sqlite3.Connection, table: str) -> None:
        if table.startswith("ENUM_"):
            return
        names = [row[1] for row in db.execute(f"PRAGMA table_info({quoted(table)})")]
        key = next((name for name in names if name.lower() in _NAME_COLUMNS), None)
        changes = []
        for name in names:
            column = quoted(name)
            is_text = f"typeof({column}) IN ('text', 'blob')"
            if not db.execute(f"SELECT 1 FROM {quoted(table)} WHERE {is_text} LIMIT 1").fetchone():
                continue
            if name in _PAYLOADS:
                self.result.unsearched.append(f"{table}.{name}")
                continue
            label = f"'{name}'"
            if key is not None and name.lower() in _VALUE_COLUMNS:
                label = quoted(key)
            changes.append(
                f"{column} = CASE WHEN {is_text} THEN anonymous({column}, {label})"
                f" ELSE {column} END"
            )
        if changes:
            db.execute(f"UPDATE {quoted(table)} SET {', '.join(changes)}")

    def _cell(self, value: str | bytes, key: Any) -> str | bytes:
        key = key if isinstance(key, str) else ""
        return (
            self.names.text(value, key) if isinstance(value, str) else self.names.data(value, key)
        )

    def _parquet(self, path: Path, target: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        schema = file.schema_arrow.remove_metadata()
        with pq.ParquetWriter(target, schema) as writer:
            for batch in file.iter_batches():
                columns = []
                for field_, column in zip(schema, batch.columns, strict=True):
                    if pa.types.is_string(field_.type) or pa.types.is_dictionary(field_.type):
                        texts = [
                            None if one is None else self.names.text(one, field_.name)
                            for one in column.to_pylist()
                        ]
                        column = pa.array(texts, field_.type)
                    columns.append(column)
                writer.write_batch(pa.record_batch(columns, schema=schema))


def _fields(value: bytes, at: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Return type and content of the fields from a position on; True if they fill the value."""
    found = []
    while at + _RECORD.size <= len(value):
        number, length = _RECORD.unpack_from(value, at)
        begin = at + _RECORD.size
        if begin + length > len(value):
            break
        found.append((number, value[begin : begin + length]))
        at = begin + length
    return found, at == len(value)


def _correct_size(done: Path, target: Path) -> None:
    """Write the size of the changed file, of which `done` has the original size."""
    old, new = done.with_suffix(""), target.with_suffix("")
    if old.is_file() and new.is_file():
        before, after = (str(file.stat().st_size).encode() for file in (old, new))
        target.write_bytes(target.read_bytes().replace(before, after))


def _copy(path: Path, out: IO[bytes]) -> None:
    out.writelines(Content(path).blocks())


def _blocks_and_end(content: Content) -> Iterator[bytes | None]:
    yield from content.blocks()
    yield None


def _without_words(data: bytes) -> bytes:
    """Return JSON between strings, in which words other than literals become null."""
    if not data.strip(b" \t\r\n,:{}[]0123456789.-+"):
        return data
    return _BARE.sub(lambda found: found[0] if found[0] in _LITERALS else b"null", data)


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head[: max(len(head) - 4, 0)].decode()
    except UnicodeDecodeError as err:
        return err.start >= len(head) - 8
    return sum(byte < 32 and byte not in b"\t\r\n" for byte in head) == 0
