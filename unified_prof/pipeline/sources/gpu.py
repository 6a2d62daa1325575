"""Sources of GPU and CPU recordings: torch.profiler, Nsight Systems, rocprofv3, memory snapshots.

Decoders are imported where they are used, because `uprof --help` lists the sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from unified_prof.base.text import CAPTURE_FACT, most_alike
from unified_prof.decoders.compression import Content, file_format, format_of_head, head_of
from unified_prof.errors import OutputError, RawFormatError, StoreError, system_errors
from unified_prof.pipeline.sources.base import DecodeContext, DecodeResult, Match, Source
from unified_prof.sqlite.atomic import temporary_folder
from unified_prof.sqlite.fingerprint import table_names

if TYPE_CHECKING:
    from unified_prof.base.columns import Sink, Tables
    from unified_prof.decoders.gpu.rows import GpuRecording
    from unified_prof.decoders.gpu.task_tables import Options

_COMPRESSED = r"\.(?:gz|xz|bz2|zst|zip)"
_COMPRESSED_ENDING = re.compile(rf"{_COMPRESSED}$", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"
_SQLITE = b"SQLite format 3\0"
# Bytes of a compressed database that are searched for its tables, which are declared first.
_SCHEMA_BYTES = 16 << 20
_CREATE_TABLE = re.compile(rb'CREATE TABLE ["\'`\[]?(\w+)')


def _content_head(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed and without byte order mark."""
    return (head_of(path) or b"").removeprefix(_BOM).lstrip()


def _plain_name(path: Path) -> str:
    """Return the name of a recording without the suffix of its compression."""
    return _COMPRESSED_ENDING.sub("", path.resolve().name) or path.name


def _database_tables(path: Path) -> frozenset[str]:
    """Return the table names of an SQLite database, compressed or not; empty for other files.

    If the database is compressed, only its beginning is searched.
    """
    if not (head_of(path) or b"").startswith(_SQLITE):
        return frozenset()
    if format_of_head(path) is None:
        return table_names(path)
    names: set[str] = set()
    size, rest = 0, b""
    try:
        for block in Content(path).blocks():
            names.update(name.decode() for name in _CREATE_TABLE.findall(rest + block))
            size, rest = size + len(block), block[-100:]
            if size > _SCHEMA_BYTES:
                break
    except RawFormatError:
        pass
    return frozenset(names)


@contextmanager
def _open_database(path: Path) -> Iterator[Tables]:
    """Open the tables of a recording that is an SQLite database, compressed or not.

    Raises RawFormatError if it cannot be read, and OutputError if a temporary copy cannot be
    written.
    """
    from unified_prof.sqlite.external_tables import foreign_tables

    with ExitStack() as resources:
        database = path
        if file_format(path) is not None:
            with system_errors(
                OutputError,
                f"cannot decompress {path}",
                hint="set TMPDIR to a directory with more space",
                slug="no-temporary-space",
            ):
                database = resources.enter_context(temporary_folder()) / _plain_name(path)
                with database.open("xb") as copy:
                    copy.writelines(Content(path).blocks())
        try:
            yield resources.enter_context(foreign_tables(database))
        except StoreError as err:
            text, hint = (
                None if text is None else text.replace(str(database), str(path))
                for text in (str(err), err.hint)
            )
            raise RawFormatError(str(text), hint=hint, slug=err.slug) from err


def _options(context: DecodeContext) -> Options:
    from unified_prof.decoders.gpu.task_tables import Options

    data_types = context.enums("ENUM_HCCL_DATA_TYPE")
    return Options(context.has_column, data_types, context.next_stage)


def _decode_result(recording: GpuRecording) -> DecodeResult:
    figures = {
        "events": recording.events,
        "events_by_kind": dict(sorted(recording.counts.items())),
        "device_tasks": recording.tasks,
        "device_tasks_joined": recording.tasks_joined,
    }
    if "rank" in recording.facts:  # not every kind of recording has ranks
        figures["rank"] = recording.rank
    tasks = "1 device task" if recording.tasks == 1 else f"{recording.tasks:,} device tasks"
    tasks += f", {recording.tasks_joined:,} matched to their launch"
    return DecodeResult(
        facts=recording.facts,
        figures=figures,
        summary=f"{recording.events:,} events: {recording.operations:,} operations, "
        f"{tasks if recording.tasks else 'no device tasks'}",
        rank=recording.rank,
    )


_TRACE_ENDINGS = re.compile(
    rf"(\.pt)?(\.trace)?\.json({_COMPRESSED})?$|{_COMPRESSED}$", re.IGNORECASE
)
_JSON_NAME = re.compile(rf".*\.json({_COMPRESSED})?", re.IGNORECASE | re.DOTALL)
_TRACE_NAME = re.compile(rf".*trace.*\.json({_COMPRESSED})?", re.IGNORECASE | re.DOTALL)
_CAPTURE_NAME = re.compile(rf".*capture.*\.json({_COMPRESSED})?", re.IGNORECASE | re.DOTALL)
# Maximum files of a directory among which a capture is searched.
_MAX_SIBLINGS = 10_000
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}\[]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,9})\b')
_WORLD_SIZE = re.compile(rb'"world_size"\s*:\s*(\d{1,9})\b')
# Keys and categories of torch.profiler, which Chrome traces of other programs lack.
_TORCH_SIGNS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|record_shapes)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|python_function)"'
)


class Kineto(Source):
    """Chrome JSON as torch.profiler writes it, plain or compressed."""

    kind = "kineto"
    description = "a torch.profiler trace (.json; also .gz, .xz, .bz2, .zst, .zip)"
    json_keys = ("trace", "report")
    name_fact = "trace"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Match:
        """Check the first bytes, or the name if the file is empty or damaged."""
        head = head_of(path)
        if not head:
            if not path.is_file():
                return Match.NO
            if _TRACE_NAME.fullmatch(path.name):
                return Match.CERTAIN
            is_possible = head is None or _JSON_NAME.fullmatch(path.name)
            return Match.POSSIBLE if is_possible else Match.NO
        head = head.removeprefix(_BOM).lstrip()
        if head.startswith(b"{") and _TORCH_SIGNS.search(head):
            return Match.CERTAIN
        # torch_npu writes a list; its databases have more than such a trace.
        return Match.POSSIBLE if head[:1] in (b"{", b"[") else Match.NO

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Decode the trace in bounded memory; see `decoders.kineto`."""
        from unified_prof.decoders import kineto

        result = _decode_result(
            kineto.decode(path, sink, _options(context), is_outside=context.is_own_frame)
        )
        capture = _capture_beside(path)
        return result if capture is None else replace(result, facts={**result.facts, **capture})

    def rank(self, path: Path) -> int | None:
        """Return the rank in `distributedInfo`; None if the world size is 1 or unknown."""
        return None if self.world_size(path) == 1 else _distributed_number(path, _RANK)

    def world_size(self, path: Path) -> int | None:
        """Return the world size in `distributedInfo`."""
        return _distributed_number(path, _WORLD_SIZE)

    def stem(self, path: Path) -> str:
        """Return the name without the suffixes that all traces have."""
        return _TRACE_ENDINGS.sub("", path.name) or path.name


def _capture_beside(path: Path) -> Mapping[str, str] | None:
    """Return a fact with the trace in the same directory that is named as a capture of graphs.

    If there are several, it is the one whose name begins like that of the trace.
    """
    try:
        names = sorted(islice((file.name for file in path.parent.iterdir()), _MAX_SIBLINGS))
    except OSError:
        return None
    found = (name for name in names if _CAPTURE_NAME.fullmatch(name) and name != path.name)
    name = most_alike(path.name, found)
    return None if name is None else {CAPTURE_FACT: name}


def _distributed_number(path: Path, pattern: re.Pattern[bytes]) -> int | None:
    distributed = _DISTRIBUTED.search(head_of(path) or b"")
    found = None if distributed is None else pattern.search(distributed[1])
    return None if found is None else int(found[1])


# Beginnings of table names of which every export has one; versions differ in everything else.
_NSYS_TABLES = (
    *("META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS"),
    *("OSRT_API", "TARGET_INFO_SESSION_START_TIME"),
)
_PARQUET = ".parquet"


class Nsys(Source):
    """Tables of an Nsight Systems export: an SQLite database or a directory of Parquet files."""

    kind = "nsys"
    description = "an Nsight Systems export (.sqlite, parquetdir)"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Match:
        """Check the table names."""
        try:
            tables = {one.stem for one in path.iterdir() if one.suffix == _PARQUET}
        except NotADirectoryError:
            tables = set(_database_tables(path))
        except OSError:
            tables = set()
        return Match.CERTAIN if any(n.startswith(_NSYS_TABLES) for n in tables) else Match.NO

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Decode the export in bounded memory; see `decoders.nsys`."""
        from unified_prof.decoders import nsys
        from unified_prof.decoders.nsys.columns import ParquetTables

        opened = nullcontext(ParquetTables(path)) if path.is_dir() else _open_database(path)
        with opened as tables:
            return _decode_result(nsys.decode(path, tables, sink, _options(context)))

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return the name and length of the export."""
        files = [path] if path.is_file() else sorted(path.glob(f"*{_PARQUET}"))
        size = sum(file.stat().st_size for file in files)
        return {"export": path.resolve().name, "export_bytes": str(size)}

    def modified_ns(self, path: Path) -> int:
        """Return the time of the last change to a file of the export, ns since 1970."""
        files = [path] if path.is_file() else [path, *path.glob(f"*{_PARQUET}")]
        return max(file.stat().st_mtime_ns for file in files)

    def stem(self, path: Path) -> str:
        """Return the name without the suffixes of exports."""
        name = _plain_name(path)
        if name.endswith(".db"):  # the ending of the report
            return f"{name.removesuffix('.db')}_uprof"
        return name.removesuffix(".sqlite").removesuffix("_pqtdir") or name


_ROCPROF_JSON = re.compile(rb'\{\s*"rocprofiler-sdk-tool"\s*:')


class Rocm(Source):
    """Output of `rocprofv3 --output-format rocpd` or `json`."""

    kind = "rocm"
    description = "a rocprofv3 recording (rocpd .db, .json)"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Match:
        """Check the first JSON key, or the table that every rocpd database contains."""
        found = _ROCPROF_JSON.match(_content_head(path)) or any(
            name.startswith("rocpd_metadata") for name in _database_tables(path)
        )
        return Match.CERTAIN if found else Match.NO

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Decode all sessions of the file; see `decoders.rocm`."""
        from unified_prof.decoders import rocm
        from unified_prof.decoders.rocm.json_tables import JsonTables

        is_json = _ROCPROF_JSON.match(_content_head(path))
        with nullcontext(JsonTables(path)) if is_json else _open_database(path) as tables:
            return _decode_result(rocm.decode(path, tables, sink, _options(context)))

    def stem(self, path: Path) -> str:
        """Return the name without suffix, with `_uprof` if the recording is a database."""
        plain = Path(_plain_name(path))
        return f"{plain.stem}_uprof" if plain.suffix == ".db" else plain.stem or path.name


_SNAPSHOT_KEYS = rb"segments|device_traces|allocator_settings|external_annotations"
_SNAPSHOT_PICKLE = re.compile(rb"\x80[\x02-\x05].{0,40}(?:" + _SNAPSHOT_KEYS + rb")", re.DOTALL)
_SNAPSHOT_JSON = re.compile(rb'\{\s*"(?:' + _SNAPSHOT_KEYS + rb')"\s*:')


class MemorySnapshot(Source):
    """Output of `torch.cuda.memory._dump_snapshot()`."""

    kind = "memory_snapshot"
    description = "a memory snapshot of torch.cuda.memory (.pickle, .json)"
    name_fact = "snapshot"

    def sniff(self, path: Path) -> Match:
        """Check the first key in the first bytes."""
        head = _content_head(path)
        is_snapshot = _SNAPSHOT_PICKLE.match(head) or _SNAPSHOT_JSON.match(head)
        return Match.CERTAIN if is_snapshot else Match.NO

    def decode(self, path: Path, sink: Sink, context: DecodeContext) -> DecodeResult:
        """Decode the snapshot by replaying its allocations; see `decoders.memory_snapshot`."""
        from unified_prof.decoders import memory_snapshot

        snapshot = memory_snapshot.decode(path, sink, progress=context.next_stage)
        return DecodeResult(
            facts=snapshot.facts,
            figures={"entries": snapshot.entries, "blocks": snapshot.blocks},
            summary=f"{snapshot.entries:,} allocator actions, {snapshot.blocks:,} blocks",
        )

    def stem(self, path: Path) -> str:
        """Return the name without suffix."""
        return Path(_plain_name(path)).stem or path.name
