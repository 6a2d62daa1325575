"""The small page that hands a trace beside it to Perfetto's, where the browser lets it."""

from __future__ import annotations

from unified_prof.report import page_file

PERFETTO = "https://ui.perfetto.dev"


def page(title: str, trace: str, size_bytes: int) -> str:
    """Return the page.

    Args:
        title: what the trace is called.
        trace: its name, in the folder of the page.
        size_bytes: how large it is.
    """
    return page_file.filled(
        f"{title} - uprof",
        ("page.css",),
        ("base.js", "frame.js", "perfetto.js", "opener.js"),
        {"trace": {"title": title, "name": trace, "bytes": size_bytes}},
        connects_to_itself=True,
    )
