"""Registry of the recordings that `uprof convert` accepts.

To add a source, write a `Source` in a module here and add an instance to `SOURCES`. Discovery,
report names, help, `uprof run` and hints use only the registry. `UNSUPPORTED_FORMATS` lists formats
that are recognized but cannot be converted. CONTRIBUTING.md, "A source", has a worked example.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from unified_prof.decoders.compression import head_of
from unified_prof.pipeline.sources.ascend import AscendPt, AscendText, Prof
from unified_prof.pipeline.sources.base import DecodeContext, DecodeResult, Match, Source
from unified_prof.pipeline.sources.gpu import Kineto, MemorySnapshot, Nsys, Rocm

__all__ = [
    "FLIGHT_RECORDER",
    "SOURCES",
    "DecodeContext",
    "DecodeResult",
    "Match",
    "Source",
    "UnsupportedFormat",
    "by_kind",
    "certain_source",
    "find_source",
    "unsupported_format",
]

# In the order in which they are asked; a certain match precedes a possible one.
SOURCES: tuple[Source, ...] = (
    Prof(),
    AscendPt(),
    AscendText(),
    Nsys(),
    MemorySnapshot(),
    Rocm(),
    Kineto(),
)


def by_kind(kind: str) -> Source:
    """Return the source of this kind."""
    return next(source for source in SOURCES if source.kind == kind)


def certain_source(path: Path) -> Source | None:
    """Return the source that matches `path` with certainty; used in directory searches."""
    return next((source for source in SOURCES if source.sniff(path) is Match.CERTAIN), None)


def find_source(path: Path) -> Source | None:
    """Return the source for a path that the user named, None if there is none."""
    if (source := certain_source(path)) is not None:
        return source
    if unsupported_format(path) is not None:
        return None
    return next((source for source in SOURCES if source.sniff(path) is Match.POSSIBLE), None)


class UnsupportedFormat(Struct, frozen=True):
    """A format that is recognized by the file name or the first bytes, but not supported."""

    description: str  # Name of the format with its article, for messages.
    hint: str | Callable[[Path], str]  # How to get a supported recording.
    endings: tuple[str, ...] = ()  # File name suffixes, in lower case.
    head: re.Pattern[bytes] | None = None  # Matches the first bytes of the decompressed content.

    def hint_for(self, path: Path) -> str:
        """Return the hint for `path`."""
        return self.hint if isinstance(self.hint, str) else self.hint(path)


def _export_nsys(path: Path) -> str:
    exported = path.with_suffix(".sqlite")
    if exported.is_file():
        return f"import its export: uprof convert {shlex.quote(str(exported))}"
    target = shlex.quote(str(exported))
    command = f"nsys export --type sqlite -o {target} {shlex.quote(str(path))}"
    return f"export it first: {command}; uprof convert {target}"


def _convert_encoding(path: Path) -> str:
    text = shlex.quote(str(path))
    return f"convert it: iconv -f UTF-16 -t UTF-8 {text} > utf8.json; uprof convert utf8.json"


_RECORD_TRACE = "record a trace: torch.profiler.profile(...).export_chrome_trace(FILE)"

# Not converted, but compared by `pipeline.flight_recorder`.
FLIGHT_RECORDER = UnsupportedFormat(
    "a Flight Recorder dump",
    "compare the dumps of all ranks: uprof report DIR",
    head=re.compile(
        rb'\s*(?:\x80.{1,16}|\{\s*")(?:version|entries|pg_config|nccl_version|comm_lib_version)'
        rb".*?(?:pg_config|pg_status|collective_seq_id|nccl_comm_state)",
        re.DOTALL,
    ),
)

UNSUPPORTED_FORMATS: tuple[UnsupportedFormat, ...] = (
    FLIGHT_RECORDER,
    UnsupportedFormat(
        "an Nsight Systems recording", _export_nsys, endings=(".nsys-rep", ".qdrep", ".qdstrm")
    ),
    UnsupportedFormat(
        "an Nsight Compute report",
        "it contains counters of single kernels; record a timeline: nsys profile",
        endings=(".ncu-rep",),
        head=re.compile(rb'(?:==PROF==[^\n]*\n)*"ID","Process ID","Process Name"'),
    ),
    UnsupportedFormat(
        "a CSV table of Nsight Systems",
        "it has sums only; import an export: nsys export --type sqlite",
        head=re.compile(rb'"?(?:Time \(%\)|Start \(ns\))"?,'),
    ),
    UnsupportedFormat(
        "a CSV table of rocprof",
        "record again: rocprofv3 --output-format json",
        head=re.compile(rb'"(?:Kind","|Domain","Function"|Correlation_Id"|Index","?KernelName)'),
    ),
    UnsupportedFormat(
        "a CSV table of an Ascend profile",
        "convert the directory that contains it: *_ascend_pt or PROF_*",
        head=re.compile(
            rb"(?:\xef\xbb\xbf)?(?:Step Id|Device_id|Op Name|OP Type|Step,Computing|Level,API Name"
            rb"|Name,(?:Type|Input Shapes|Size\(KB\))|Component,Timestamp\(us\)|Stream Id,Task Id),"
        ),
    ),
    UnsupportedFormat("a Python script", "profile it: uprof run SCRIPT", endings=(".py",)),
    UnsupportedFormat(
        "a JAX or TensorFlow profile (XPlane)",
        "JAX profiles are not supported; use TensorBoard's profile plugin (xprof)",
        endings=(".xplane.pb",),
    ),
    UnsupportedFormat(
        "a Perfetto trace",
        f"only Chrome JSON is read; {_RECORD_TRACE}",
        endings=(".pftrace", ".perfetto-trace", ".perfetto"),
    ),
    UnsupportedFormat(
        "a Chakra execution trace",
        f"it has no device times; {_RECORD_TRACE}",
        endings=(".et",),
        head=re.compile(rb'\s*\{\s*"schema"\s*:\s*"[^"]*chakra', re.IGNORECASE),
    ),
    UnsupportedFormat(
        "a PyTorch execution trace",
        f"it has no times; {_RECORD_TRACE}",
        head=re.compile(rb'\s*\{\s*"schema"\s*:\s*"[^"]{1,40}"\s*,\s*"(?:pid|nodes|time)"\s*:'),
    ),
    UnsupportedFormat(
        "a memory timeline (export_memory_timeline)",
        "it contains only totals; record torch.cuda.memory._dump_snapshot(FILE), or a trace with"
        " profile_memory=True",
        head=re.compile(rb"\s*\[\s*\[\s*-?\d"),
    ),
    UnsupportedFormat(
        "a stack file (export_stacks)",
        f"it has sums only; {_RECORD_TRACE} with with_stack=True",
        head=re.compile(rb"(?:[^\n;{}\[\]]+;)+[^\n;]+ \d+\n"),
    ),
    UnsupportedFormat(
        "UTF-16 text, as PowerShell writes it",
        _convert_encoding,
        head=re.compile(rb"\xff\xfe.\0|\xfe\xff\0.|[{\[]\0|\0[{\[]", re.DOTALL),
    ),
    UnsupportedFormat(
        "a Git LFS pointer, not the file itself",
        "fetch the file: git lfs pull",
        head=re.compile(rb"version https://git-lfs\."),
    ),
    UnsupportedFormat(
        "an HTML page",
        "download or record the trace itself",
        head=re.compile(rb"\s*<(?:!doctype html|html)", re.IGNORECASE),
    ),
)


def unsupported_format(path: Path) -> UnsupportedFormat | None:
    """Return the unsupported format of `path`, None if it is not recognized as one."""
    name = path.name.lower()
    for found in UNSUPPORTED_FORMATS:
        if name.endswith(found.endings):
            return found
    head = head_of(path)
    if head is None:
        return None
    return next(
        (found for found in UNSUPPORTED_FORMATS if found.head and found.head.match(head)), None
    )
