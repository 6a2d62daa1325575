"""Output formats of `report`, `diff` and `cluster report`, and the encoding of page columns.

Each format is a renderer function and one row of a registry; renderers are imported on first use.
`tests/report/test_registry.py` tests all of them.
Number columns of HTML pages are encoded as LEB128 in base64.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from unified_prof.errors import UsageError

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview
    from unified_prof.compare.device_diff import By as DeviceBy
    from unified_prof.explain.api import Opened
    from unified_prof.recording.model import By


class ReportRequest(Struct, frozen=True):
    """Selection and presentation of a report."""

    # The only breakdown to show; None for the format's default.
    by: By | None = None
    sort: str | None = None
    top: int | None = None  # Maximum rows of a breakdown; None for the format's default.
    statistics: bool = False  # If True, add distributions of operation and kernel times.
    full_names: bool = False  # If True, do not truncate names.
    # Directory of the source lines to embed in a page; None for none.
    source_root: Path | None = None
    # Width of the terminal; None if there is none.
    width: int | None = None
    color: bool = False


def load_renderer(name: str) -> Callable[..., Any]:
    """Import and return the function `module:function` of this package."""
    module, _, function = name.partition(":")
    renderer: Callable[..., Any] = getattr(import_module(f"unified_prof.report.{module}"), function)
    return renderer


class Format(Struct, frozen=True):
    """Output format of reports."""

    name: str
    renderer: str  # Renderer as `module:function`, imported when it is used.
    suffixes: tuple[str, ...]  # File extensions, the preferred one first.
    # True if it can be printed on a terminal.
    for_terminal: bool = True
    embeds_source: bool = False
    is_text: bool = True  # True for text; other formats are bytes, of breakdowns only.

    def produce(self, opened: Opened, request: ReportRequest) -> str | bytes:
        """Render the reports.

        Raises StoreError if no report can be read to its end, and UsageError if a report does not
        have the breakdown or sort key, or a required package is not installed.
        """
        content: str | bytes = load_renderer(self.renderer)(opened, request)
        return content

    def text(self, opened: Opened, request: ReportRequest) -> str:
        """Render the reports as text; raises the same errors as `produce`."""
        content = self.produce(opened, request)
        assert isinstance(content, str), f"{self.name} is no text"
        return content


FORMATS: tuple[Format, ...] = (
    Format("text", "report_formats:produce_text", (".txt",)),
    Format("json", "report_formats:produce_json", (".json",)),
    Format("csv", "report_formats:produce_csv", (".csv",)),
    Format("markdown", "report_formats:produce_markdown", (".md", ".markdown")),
    Format(
        "html", "html_page:produce_page", (".html", ".htm"), for_terminal=False, embeds_source=True
    ),
    Format(
        "parquet",
        "report_formats:produce_parquet",
        (".parquet",),
        for_terminal=False,
        is_text=False,
    ),
    Format(
        "arrow",
        "report_formats:produce_arrow",
        (".arrow", ".feather"),
        for_terminal=False,
        is_text=False,
    ),
)
FORMAT_NAMES = tuple(one.name for one in FORMATS)
FORMAT_SUFFIXES = {one.name: one.suffixes for one in FORMATS}


def find_format(name: str) -> Format:
    """Return the format `name`. Raises UsageError if there is no such format."""
    for one in FORMATS:
        if one.name == name:
            return one
    raise UsageError(
        f"unknown format {name!r}", hint=f"known: {', '.join(FORMAT_NAMES)}", slug="unknown-format"
    )


class DeviceRequest(Struct, frozen=True):
    """Selection of a comparison of devices."""

    by: DeviceBy = "operation"
    top: int = 20  # Maximum rows of each table.
    everything: bool = False  # If True, also show unchanged rows.


ClusterBreakdown = Literal["rank", "step", "group", "link", "operation"]

_CLUSTER_RENDERERS = {
    "text": "cluster_text:run_document",
    "json": "cluster_document:produce_cluster_json",
    "csv": "cluster_document:produce_cluster_csv",
    "markdown": "cluster_text:run_document",
    "html": "cluster_document:produce_cluster_page",
}

CLUSTER_FORMATS: tuple[Format, ...] = tuple(
    one for one in FORMATS if one.name in _CLUSTER_RENDERERS
)
CLUSTER_FORMAT_NAMES = tuple(one.name for one in CLUSTER_FORMATS)


class ClusterRequest(Struct, frozen=True):
    """Selection and presentation of a multi-rank run."""

    by: ClusterBreakdown | None = None  # The only table to show; None for the format's default.
    rank: int | None = None  # The only rank to show.
    step: int | None = None  # The only step to show.
    # Maximum rows of each table; None for the format's default.
    top: int | None = None
    full_names: bool = False
    # Width of the terminal; None if there is none.
    width: int | None = None
    color: bool = False


def produce_cluster(shape: Format, overview: Overview, request: ClusterRequest) -> str:
    """Render a multi-rank run.

    Raises StoreError if the summary is damaged, and UsageError if the run has no such rank or step.
    """
    content: Any = load_renderer(_CLUSTER_RENDERERS[shape.name])(overview, request)
    if shape.name in ("text", "markdown"):
        content = load_renderer("terminal:render_document")(content, shape.name, request)
    return str(content)
