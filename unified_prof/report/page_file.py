"""One HTML file out of data, styles and scripts: no network, and nothing in it can be executed.

Styles and scripts stand in `page/`. Data travel as JSON in a script element that is data only, and
a content security policy allows no script but ours.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from unified_prof.report import words
from unified_prof.version import VERSION


def filled(
    title: str,
    styles: Iterable[str],
    scripts: Iterable[str],
    data: dict[str, Any],
    *,
    connects_to_itself: bool = False,
) -> str:
    """Return the page.

    Args:
        title: of the window; any text.
        styles: names of files in `page/`, in their order.
        scripts: the same; they share one scope, which nothing outside can see.
        data: what the scripts find under the id `data`, with uprof's version.
        connects_to_itself: whether the scripts may fetch what lies beside the page.
    """
    style = "\n".join(map(_part, styles))
    script = "(() => {\n'use strict';\n" + "\n".join(map(_part, scripts)) + "\n})();"
    return _fill(
        _part("page.html"),
        {
            "title": html.escape(words.neutral(title)),
            "style": style,
            "style_hash": _hash(style),
            "connects_to": "; connect-src 'self'" if connects_to_itself else "",
            "data": _inert({"uprof": VERSION, **data}),
            "script": script,
            "script_hash": _hash(script),
        },
    )


def _part(name: str) -> str:
    return files("unified_prof.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _inert(data: dict[str, Any]) -> str:
    """Return data as JSON that cannot end the element it stands in, or begin another."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _fill(template: str, values: dict[str, str]) -> str:
    """Put each value in its one place; what a value contains is never looked at again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += (values[name], rest)
    return "".join(filled)
