"""The formats of `uprof report`: names, endings, and where each is written.

A format is one module with a function `produce(opened, request) -> str` (bytes where it is no
text), and its line here; nothing else knows how many there are. If you add one, also add its name
to the tests' `tests/report/test_registry.py`, which hold for every format. Nothing heavy is
imported before a format is asked for.

Columns of numbers as short text, for the page: LEB128 in base64.

The formats of a comparison of devices: names, endings, and where each is written.

A format is one module with a function `produce(found, shown) -> str`, and its line here.

The formats of `uprof cluster report`: each a module of this room, its line here.

Names and endings are those of `report.formats`, so that both commands take the same words.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.compare.device_diff import By as DeviceFormatsBy
    from unified_prof.compare.device_diff import DeviceDifference
    from unified_prof.explain.api import Opened
    from unified_prof.recording.breakdown_kinds import By


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """What of a report is to be shown, and how."""

    by: By | None = None
    """The only breakdown; None: the format's own choice."""
    sort: str | None = None
    top: int | None = None
    """Rows of a breakdown; None: the format's own choice."""
    statistics: bool = False
    """Whether single times are described too, of operations and kernels."""
    full_names: bool = False
    """Whether names are shown whole in tables for people."""
    source_root: Path | None = None
    """Folder of the source lines that a page includes; None: none."""
    width: int | None = None
    """Columns of the terminal; None: there is none."""
    color: bool = False


def load_renderer(name: str) -> Callable[..., Any]:
    """Return the function `module:function` of this package; its module is imported now."""
    module, _, function = name.partition(":")
    renderer: Callable[..., Any] = getattr(import_module(f"unified_prof.report.{module}"), function)
    return renderer


@dataclass(frozen=True, slots=True)
class Format:
    """One way to show reports."""

    name: str
    renderer: str
    """Function that renders it, as `module:function`; imported when needed."""
    suffixes: tuple[str, ...]
    """Endings of files that hold it, the usual one first."""
    for_people: bool = False
    """Whether it is text for a terminal, in the terminal's encoding."""
    for_terminal: bool = True
    """Whether it makes sense to print it on a terminal at all."""
    embeds_source: bool = False
    is_text: bool = True
    """Whether it is text; the others are bytes, of breakdowns alone."""

    def produce(self, opened: Opened, request: ReportRequest) -> str | bytes:
        """Return the reports in this format.

        Raises:
            StoreError: none of them can be read to its end.
            UsageError: a report cannot be broken down or sorted as asked, or a package that the
                format takes is not installed.
        """
        content: str | bytes = load_renderer(self.renderer)(opened, request)
        return content

    def text(self, opened: Opened, request: ReportRequest) -> str:
        """Return the reports in this format, which is text; errors as of `produce`."""
        content = self.produce(opened, request)
        assert isinstance(content, str), f"{self.name} is no text"
        return content


FORMATS: tuple[Format, ...] = (
    Format("text", "terminal:produce_text", (".txt",), for_people=True),
    Format("json", "renderers:produce_json", (".json",)),
    Format("csv", "renderers:produce_csv", (".csv",)),
    Format("markdown", "renderers:produce_markdown", (".md", ".markdown")),
    Format(
        "html", "html_page:produce_page", (".html", ".htm"), for_terminal=False, embeds_source=True
    ),
    Format(
        "parquet", "renderers:produce_parquet", (".parquet",), for_terminal=False, is_text=False
    ),
    Format(
        "arrow",
        "renderers:produce_arrow",
        (".arrow", ".feather"),
        for_terminal=False,
        is_text=False,
    ),
)
TEXT_FORMAT = FORMATS[0]
FORMAT_NAMES = tuple(one.name for one in FORMATS)
FORMAT_SUFFIXES = {one.name: one.suffixes for one in FORMATS}


def find_format(name: str) -> Format:
    """Return the format called `name`.

    Raises:
        UsageError: there is none.
    """
    for one in FORMATS:
        if one.name == name:
            return one
    raise UsageError(
        f"unknown format {name!r}", hint=f"known: {', '.join(FORMAT_NAMES)}", slug="unknown-format"
    )


def encode_varints(values: NDArray[np.integer]) -> str:
    """Return numbers from 0 as base64 of seven bits a byte, the lowest first.

    The highest bit of a byte says that more follow. Most durations and gaps take two or three
    bytes, a fourth of what they take as decimal text.

    Raises:
        ValueError: a number is negative.
    """
    if len(values) and values.min() < 0:
        raise ValueError("only numbers from 0 have this encoding")
    left = values.astype(np.uint64)
    lengths = np.ones(len(left), np.int64)
    rest = left >> np.uint64(7)
    while rest.any():
        lengths += rest > 0
        rest >>= np.uint64(7)
    offsets = np.cumsum(lengths) - lengths
    result = np.zeros(int(lengths.sum()), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        byte = (left[has] & np.uint64(127)).astype(np.uint8)
        byte[lengths[has] > place + 1] |= 128
        result[offsets[has] + place] = byte
        left >>= np.uint64(7)
    return base64.b64encode(result.tobytes()).decode("ascii")


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What of a comparison is to be shown, and how."""

    by: DeviceFormatsBy = "operation"
    top: int = 20
    """Rows of each table for people."""
    everything: bool = False
    """Whether what did not change is shown too."""
    width: int | None = None
    """Columns of the terminal; None: there is none."""
    color: bool = False
    full_names: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFormat:
    """One way to show a comparison."""

    name: str
    renderer: str
    """Function of `device_documents` that renders it; imported when needed."""
    suffixes: tuple[str, ...]
    """Endings of files that hold it, the usual one first."""
    for_terminal: bool = True

    def produce(self, found: DeviceDifference, shown: DeviceRequest) -> str:
        """Return a comparison in this format."""
        content: str = load_renderer(f"device_documents:{self.renderer}")(found, shown)
        return content


DEVICE_FORMATS = {
    one.name: one
    for one in (
        DeviceFormat("text", "produce_device_text", (".txt",)),
        DeviceFormat("json", "produce_device_json", (".json",)),
        DeviceFormat("csv", "produce_device_csv", (".csv",)),
        DeviceFormat("markdown", "produce_device_markdown", (".md", ".markdown")),
        DeviceFormat("html", "produce_device_page", (".html", ".htm"), for_terminal=False),
    )
}
DEVICE_SUFFIXES = {name: one.suffixes for name, one in DEVICE_FORMATS.items()}


ClusterBreakdown = Literal["rank", "step", "group", "link", "operation"]
CLUSTER_BREAKDOWNS: tuple[ClusterBreakdown, ...] = get_args(ClusterBreakdown)

_CLUSTER_RENDERERS = {
    "text": "cluster_text:produce_cluster_text",
    "json": "cluster_document:produce_cluster_json",
    "csv": "cluster_document:produce_cluster_csv",
    "markdown": "cluster_text:produce_cluster_markdown",
    "html": "cluster_page:produce_cluster_page",
}

CLUSTER_FORMATS: tuple[Format, ...] = tuple(
    one for one in FORMATS if one.name in _CLUSTER_RENDERERS
)
CLUSTER_FORMAT_NAMES = tuple(one.name for one in CLUSTER_FORMATS)
CLUSTER_SUFFIXES = {one.name: one.suffixes for one in CLUSTER_FORMATS}


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """What of a run is to be shown, and how."""

    by: ClusterBreakdown | None = None
    """The only table; None: the format's own choice."""
    rank: int | None = None
    """The only rank."""
    step: int | None = None
    """The only step."""
    top: int | None = None
    """Rows of each table; None: the format's own choice."""
    full_names: bool = False
    width: int | None = None
    """Columns of the terminal; None: there is none."""
    color: bool = False


def produce_cluster(shape: Format, overview: Overview, request: ClusterRequest) -> str:
    """Return a run in one of the formats.

    Raises:
        StoreError: the summary is damaged.
        UsageError: the run has no such rank or step.
    """
    content: str = load_renderer(_CLUSTER_RENDERERS[shape.name])(overview, request)
    return content
