"""Explain a capture of a watched run, in a separate process with low priority.

    python -m unified_prof.pipeline.watch_explain CAPTURE [HEALTHY]

Converts msprof's recording in the directory CAPTURE, or else torch's trace, to `timeline.db`,
writes its findings to `advice.txt` and the comparison with the capture HEALTHY to `diff.txt`, and
prints the first finding.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from unified_prof.backends.msprof_outcome import find, inspect
from unified_prof.compare import runs
from unified_prof.compare.device_diff import diff_recordings
from unified_prof.compare.diff import diff
from unified_prof.errors import UprofError
from unified_prof.explain.api import open_reports
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.outputs import error_text
from unified_prof.pipeline.watch_captures import TRACE_NAME
from unified_prof.report.advice import advice_document, gather_advice
from unified_prof.report.device_documents import device_document
from unified_prof.report.formats import DeviceRequest
from unified_prof.report.operation_difference import difference_document
from unified_prof.report.terminal import render_text
from unified_prof.sqlite.atomic import output_error

_REPORT = "timeline.db"
_NICENESS = 19


def explain_capture(folder: Path, healthy: Path | None) -> str:
    """Convert the recording in `folder`, write advice and comparison; return the first finding.

    Raises UprofError if it cannot be converted.
    """
    problem, database = "", folder / _REPORT
    recordings = [one for one in find(folder) if inspect(one).has_device_data]
    for recording in (*recordings, folder / TRACE_NAME):
        try:
            convert(recording, database, force=True)
            break
        except UprofError as error:
            if recording.name == TRACE_NAME:
                raise
            problem = f"the host only, because {error}: "
    with open_reports(database) as opened:
        found = gather_advice(opened)
    _write(folder / "advice.txt", render_text(advice_document(found, (), top=10)))
    if healthy is not None:
        with suppress(UprofError):  # two recordings that cannot be compared
            _write(folder / "diff.txt", compared(healthy / _REPORT, database))
    findings = [one for each in found for one in each.advice.findings]
    return problem + (findings[0].text if findings else "no findings")


def compared(base: Path, new: Path) -> str:
    """Return the comparison of two timelines as text.

    Raises UprofError if they cannot be compared.
    """
    devices = diff_recordings([base], [new], labels=("healthy", "this capture"))
    if devices is not None:
        return render_text(device_document(devices, DeviceRequest()))
    found = diff(runs.load([base]), runs.load([new]))
    return render_text(difference_document(found, top=20, everything=False))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise output_error(path, error) from error


def main(arguments: list[str]) -> int:
    """Explain the capture named by the first argument; print one line."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    folder, *healthy = map(Path, arguments)
    try:
        print(explain_capture(folder, healthy[0] if healthy else None))
    except Exception as error:
        print(error_text(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
