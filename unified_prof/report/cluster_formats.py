"""The formats of `uprof cluster report`: each a module of this room, its line here.

Names and endings are those of `report.formats`, so that both commands take the same words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from unified_prof.report.formats import FORMATS as ALL
from unified_prof.report.formats import Format, load_renderer

if TYPE_CHECKING:
    from unified_prof.cluster.overview import Overview

By = Literal["rank", "step", "group", "link", "operation"]
BYS: tuple[By, ...] = get_args(By)

_RENDERERS = {
    "text": "cluster_text:produce_cluster_text",
    "json": "cluster_document:produce_cluster_json",
    "csv": "cluster_document:produce_cluster_csv",
    "markdown": "cluster_text:produce_cluster_markdown",
    "html": "cluster_page:produce_cluster_page",
}

FORMATS: tuple[Format, ...] = tuple(one for one in ALL if one.name in _RENDERERS)
NAMES = tuple(one.name for one in FORMATS)
SUFFIXES = {one.name: one.suffixes for one in FORMATS}


@dataclass(frozen=True, slots=True)
class Request:
    """What of a run is to be shown, and how."""

    by: By | None = None
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


def produce_cluster(shape: Format, overview: Overview, request: Request) -> str:
    """Return a run in one of the formats.

    Raises:
        StoreError: the summary is damaged.
        UsageError: the run has no such rank or step.
    """
    content: str = load_renderer(_RENDERERS[shape.name])(overview, request)
    return content
