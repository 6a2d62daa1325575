"""What the commands share that turn recordings into reports: progress, errors, anomalies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from unified_prof.errors import UprofError


def put_error(error: UprofError) -> None:
    """Tell on stderr why one of several recordings failed."""
    typer.echo(f"uprof: error: {error}", err=True)
    if error.hint:
        typer.echo(f"uprof: hint: {error.hint}", err=True)


def error_record(error: UprofError) -> dict[str, Any]:
    """Return an error as data for JSON."""
    return {"error": str(error), "hint": error.hint, "exit_code": error.exit_code}


def anomaly_lines(anomalies: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """Yield a line for each kind of anomaly."""
    for name, (count, detail) in sorted(anomalies.items()):
        yield f"  anomaly {name}: {count:,}" + (f" ({detail})" if detail else "")


def anomaly_record(anomalies: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """Return anomalies as data for JSON."""
    return {
        name: {"count": count, "detail": detail}
        for name, (count, detail) in sorted(anomalies.items())
    }


@contextmanager
def progress_line(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show what is being done on a terminal's last line."""
    if not enabled:
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda text: status.update(text)
