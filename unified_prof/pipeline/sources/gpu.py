"""What sources of GPU recordings share: how they are told about, and tables of other tools.

Traces that torch.profiler (Kineto) writes, of NVIDIA and AMD devices and of the CPU.

Exports of Nsight Systems: `nsys export --type sqlite`, and `--type parquetdir`.

Recordings of rocprofv3, of AMD devices: rocpd databases and its JSON.

Snapshots of PyTorch's caching allocator, as pickle or JSON.

Recordings that uprof knows but cannot convert, and how to have one that it can.

To add one: its `Recognised` in `KNOWN`. Nothing else knows them by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.errors import RawFormatError, StoreError
from unified_prof.pipeline.sources.base import Decoded, Ground, Sign, Source

if TYPE_CHECKING:
    from unified_prof.base.columns import Sink, Tables
    from unified_prof.decoders.gpu.rows import Found


def decoded(found: Found, tasks: str | None = None) -> Decoded:
    """Return what a source tells of what its decoder found.

    Args:
        found: What the decoder says.
        tasks: The end of the summary; by default the device's tasks, or that there are none.
    """
    figures = {
        "events": found.events,
        "events_by_kind": dict(sorted(found.counts.items())),
        "device_tasks": found.tasks,
        "device_tasks_joined": found.tasks_joined,
    }
    if "rank" in found.facts:  # not every kind of recording knows of ranks
        figures["rank"] = found.rank
    if tasks is None:
        tasks = joined_tasks(found) if found.tasks else "no device tasks"
    return Decoded(
        facts=found.facts,
        figures=figures,
        summary=f"{found.events:,} events: {found.operations:,} operations, {tasks}",
        rank=found.rank,
    )


def joined_tasks(found: Found) -> str:
    """Say how many tasks there are, and how many have their launch."""
    return f"{found.tasks:,} device tasks, {found.tasks_joined:,} matched to their launch"


@contextmanager
def recorded_tables(path: Path) -> Iterator[Tables]:
    """Open the tables of a recording that is a database.

    Raises:
        RawFormatError: it cannot be read.
    """
    from unified_prof.sqlite.external_tables import foreign_tables

    try:
        with foreign_tables(path) as tables:
            yield tables
    except StoreError as err:  # the words of those who read reports; to us it is a recording
        raise RawFormatError(str(err), hint=err.hint, slug=err.slug) from err


_COMPRESSED = r"(\.(?:gz|xz|bz2|zst|zip))"
_SUFFIXES = re.compile(rf"(\.pt)?(\.trace)?\.json{_COMPRESSED}?$|{_COMPRESSED}$", re.IGNORECASE)
_JSON_NAME = re.compile(rf".*\.json{_COMPRESSED}?", re.IGNORECASE | re.DOTALL)
_TRACE_NAME = re.compile(rf".*trace.*\.json{_COMPRESSED}?", re.IGNORECASE | re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}\[]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,9})\b')
_ALONE = re.compile(rb'"world_size"\s*:\s*1\b')
# Keys and categories of torch.profiler's own, which Chrome traces of other programs lack.
_SIGNS = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|record_shapes)"\s*:'
    rb'|"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|python_function)"'
)


class Kineto(Source):
    """Chrome JSON as torch.profiler writes it, plain or compressed."""

    kind = "kineto"
    what = "a torch.profiler trace (.json; also .gz, .xz, .bz2, .zst, .zip of one)"
    command = "import"
    keys = ("trace", "report")
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell by the first bytes; by the name alone where a trace is empty or damaged."""
        try:
            if not path.is_file():  # a pipe would be waited for
                return Sign.NO
            head = _head(path)
        except OSError:
            head = None
        if not head:
            if _TRACE_NAME.fullmatch(path.name):
                return Sign.SURE
            return Sign.MAYBE if head is None or _JSON_NAME.fullmatch(path.name) else Sign.NO
        head = head.removeprefix(_BOM).lstrip()
        if head.startswith(b"{") and _SIGNS.search(head):
            return Sign.SURE
        # A list is what torch_npu writes; its databases say more than such a trace.
        return Sign.MAYBE if head[:1] in (b"{", b"[") else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Decode in memory that the trace's length does not change; see `decoders.kineto`."""
        from unified_prof.decoders import kineto

        found = kineto.decode(
            path,
            sink,
            has_column=ground.has_column,
            data_types=ground.data_types,
            is_outside=ground.is_own_frame,
            progress=ground.now,
        )
        return decoded(found)

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        return {"trace": path.name, "trace_bytes": str(path.stat().st_size)}

    def rank(self, path: Path) -> int | None:
        """Return the rank that stands before the events; None of a process that was alone."""
        try:
            distributed = _DISTRIBUTED.search(_head(path) or b"")
        except OSError:
            return None
        if distributed is None or _ALONE.search(distributed[1]):
            return None
        rank = _RANK.search(distributed[1])
        return None if rank is None else int(rank[1])

    def stem(self, path: Path) -> str:
        """Return its name without the suffixes that every trace has."""
        return _SUFFIXES.sub("", path.name) or path.name


def _head(path: Path) -> bytes | None:
    """Return the first bytes, decompressed; None: they cannot be had."""
    from unified_prof.decoders.compression import head_of

    return head_of(path)


_SIGNS_NSYS = ("META_DATA_EXPORT", "CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS")
"""How names of tables begin of which every export has one."""
_PARQUET = ".parquet"


class Nsys(Source):
    """The tables of a recording of Nsight Systems, in a database or a folder of Parquet files."""

    kind = "nsys"
    what = "an Nsight Systems export (.sqlite, parquetdir)"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell by the names of the tables, as versions differ in all else."""
        from unified_prof.sqlite.fingerprint import table_names

        tables = _parquet_names(path) if path.is_dir() else table_names(path)
        return Sign.SURE if any(name.startswith(_SIGNS_NSYS) for name in tables) else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Decode in memory that the number of events does not change; see `decoders.nsys`."""
        from unified_prof.decoders import nsys

        with _tables(path) as tables:
            found = nsys.decode(
                path,
                tables,
                sink,
                has_column=ground.has_column,
                data_types=ground.data_types,
                progress=ground.now,
            )
        return decoded(found)

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        files = [path] if path.is_file() else sorted(path.glob(f"*{_PARQUET}"))
        size = sum(file.stat().st_size for file in files)
        return {"export": path.resolve().name, "export_bytes": str(size)}

    def changed_ns(self, path: Path) -> int:
        """Return when a file of it was last written to, ns since 1970."""
        files = [path] if path.is_file() else [path, *path.glob(f"*{_PARQUET}")]
        return max(file.stat().st_mtime_ns for file in files)

    def stem(self, path: Path) -> str:
        """Return its name without what all exports have."""
        name = path.resolve().name
        if name.endswith(".db"):  # the report's own ending
            return f"{name.removesuffix('.db')}_uprof"
        return name.removesuffix(".sqlite").removesuffix("_pqtdir") or name


def _parquet_names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(
            file.name.removesuffix(_PARQUET)
            for file in folder.iterdir()
            if file.name.endswith(_PARQUET)
        )
    except OSError:
        return frozenset()


def _tables(path: Path) -> AbstractContextManager[Tables]:
    """Open the tables of an export, whatever its form."""
    if path.is_dir():
        from unified_prof.decoders.nsys.columns import ParquetTables

        return nullcontext(ParquetTables(path))
    return recorded_tables(path)


_METADATA = "rocpd_metadata"
_HEAD_BYTES = 256
_JSON = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"rocprofiler-sdk-tool"\s*:')


class Rocm(Source):
    """What `rocprofv3 --output-format rocpd` or `json` leaves."""

    kind = "rocm"
    what = "a rocprofv3 recording (rocpd .db, .json)"
    command = "import"
    layouts = frozenset({"plain", "ascend-pt"})

    def sniff(self, path: Path) -> Sign:
        """Tell by the table that every rocpd database has, or by the first key."""
        from unified_prof.sqlite.fingerprint import table_names

        if path.is_dir():
            return Sign.NO
        if _is_json(path):
            return Sign.SURE
        found = any(name.startswith(_METADATA) for name in table_names(path))
        return Sign.SURE if found else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Decode all sessions of the file; see `decoders.rocm`."""
        from unified_prof.decoders import rocm

        with _tables_rocm(path) as tables:
            found = rocm.decode(
                path,
                tables,
                sink,
                has_column=ground.has_column,
                data_types=ground.data_types,
                progress=ground.now,
            )
        return decoded(found, joined_tasks(found))

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        return {"recording": path.name, "recording_bytes": str(path.stat().st_size)}

    def stem(self, path: Path) -> str:
        """Return its name without its ending; that of a database may not be the report's own."""
        return f"{path.stem}_uprof" if path.suffix == ".db" else path.stem or path.name


def _is_json(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _JSON.match(file.read(_HEAD_BYTES)) is not None
    except OSError:
        return False


def _tables_rocm(path: Path) -> AbstractContextManager[Tables]:
    if _is_json(path):
        from unified_prof.decoders.rocm.json_tables import JsonTables

        return nullcontext(JsonTables(path))
    return recorded_tables(path)


_KEYS = rb"segments|device_traces|allocator_settings|external_annotations"
_PICKLE = re.compile(rb"\x80[\x02-\x05].{0,40}(?:" + _KEYS + rb")", re.DOTALL)
_JSON_MEMORY_SNAPSHOT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:' + _KEYS + rb')"\s*:')


class MemorySnapshot(Source):
    """What `torch.cuda.memory._dump_snapshot()` writes."""

    kind = "memory_snapshot"
    what = "a memory snapshot of torch.cuda.memory (.pickle, .json)"
    command = "import"

    def sniff(self, path: Path) -> Sign:
        """Tell by the first key, which stands in the first bytes."""
        try:
            if not path.is_file():
                return Sign.NO
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES)
        except OSError:
            return Sign.NO
        return Sign.SURE if _PICKLE.match(head) or _JSON_MEMORY_SNAPSHOT.match(head) else Sign.NO

    def decode(self, path: Path, sink: Sink, ground: Ground) -> Decoded:
        """Follow every allocation; see `decoders.memory_snapshot`."""
        from unified_prof.decoders import memory_snapshot

        decoded = memory_snapshot.decode(path, sink, progress=ground.now)
        return Decoded(
            facts=decoded.facts,
            figures={"entries": decoded.entries, "blocks": decoded.blocks},
            summary=f"{decoded.entries:,} allocator actions, {decoded.blocks:,} blocks",
        )

    def identity(self, path: Path) -> Mapping[str, str]:
        """Return its name and length."""
        return {"snapshot": path.name, "snapshot_bytes": str(path.stat().st_size)}

    def stem(self, path: Path) -> str:
        """Return its name without its ending."""
        return path.stem or path.name


@dataclass(frozen=True, slots=True)
class Recognised:
    """A kind of recording, told by the ends of its files' names."""

    what: str
    """What it is in a message, with its article."""
    endings: tuple[str, ...]
    hint: Callable[[Path], str]
    """What to do with such a file."""


def _export_first(path: Path) -> str:
    exported = path.with_suffix(".sqlite")
    if exported.is_file():
        return f"import its export: uprof import {shlex.quote(str(exported))}"
    given, made = shlex.quote(str(path)), shlex.quote(str(exported))
    return f"export it first: nsys export --type sqlite -o {made} {given}; uprof import {made}"


def _pipe(path: Path) -> str:
    tool = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2"}[path.suffix.lower()]
    report = shlex.quote(f"{path.name.partition('.')[0] or 'run'}.db")
    unpacked = f"{tool} -dc {shlex.quote(str(path))}"
    return f"if it contains a recording: {unpacked} | uprof import - -o {report}"


def _unpack(_: Path) -> str:
    return "unpack it; directories of recordings are accepted"


def _of_jax(_: Path) -> str:
    return "JAX profiles are not supported; use TensorBoard's profile plugin (xprof)"


_ENDS = ("gz", "xz", "bz2", "zst")
KNOWN: tuple[Recognised, ...] = (
    Recognised("an Nsight Systems recording", (".nsys-rep", ".qdrep"), _export_first),
    Recognised("a JAX or TensorFlow profile (XPlane)", (".xplane.pb",), _of_jax),
    Recognised("an archive", (".zip", ".tar", ".tgz", *(f".tar.{end}" for end in _ENDS)), _unpack),
    Recognised("a compressed file", tuple(f".{end}" for end in _ENDS[:3]), _pipe),
)


def recognised(path: Path) -> Recognised | None:
    """Return what `path` is, by its name, if uprof knows it but cannot convert it."""
    return next((one for one in KNOWN if path.name.lower().endswith(one.endings)), None)
