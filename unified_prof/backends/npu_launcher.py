"""What msprof runs as its application: the workload, in this very process.

The process must be the workload's own: msprof samples it by its id. Started by the script that
`msprof_command` writes, with a JSON file that says what to run and where to leave the outcome.
What is measured is left there as soon as it is complete, and now and then before that: the
workload may run on for hours and be killed, and the parent writes the reports.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from unified_prof.errors import UprofError
from unified_prof.plain import storable_in
from unified_prof.runs.records import TrackedRun
from unified_prof.runs.spec import Capture, RunSpec

RESULT_FILE = "result.msgpack"
"""How the workload ended, and what was measured of it."""
MEASURED_FILE = "measured.msgpack"
"""What was measured, once it is complete, while the workload runs on."""
PARTIAL_FILE = "partial.msgpack"
"""What was measured so far."""


def main(job_file: str) -> None:
    """Run the job in `job_file` and end the process with the workload's exit code."""
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    _restore_streams(job["streams"])
    spec = RunSpec.of_data(job["spec"])
    owner = os.getpid()
    result: dict[str, Any]
    try:
        result = _run_tracked(spec, folder) if job["tracked"] else _run_plain(spec)
    except UprofError as err:
        # Told by the parent, where the error boundary is.
        told = {
            "kind": type(err).__name__,
            "message": str(err),
            "hint": err.hint,
            "slug": err.slug,
        }
        result = {"exit_code": err.exit_code, "error": told}
    if os.getpid() == owner:  # and not a child that the workload forked
        _leave(folder / RESULT_FILE, result)
    sys.exit(result["exit_code"])


def _restore_streams(streams: Mapping[str, Any]) -> None:
    """Give the workload the output streams that uprof has, where msprof let them through.

    msprof merges the streams of its application into its own. A descriptor counts only if it
    still is the file that uprof meant: the number alone could be anything.
    """
    for number, stream in streams.items():
        with suppress(OSError):
            inherited = stream["fd"]
            status = os.fstat(inherited)
            if [status.st_dev, status.st_ino] == stream["file"]:
                os.dup2(inherited, int(number))
                os.close(inherited)


def _run_tracked(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Run providers, or a script whose operations are tracked, on the NPU."""
    from unified_prof.backends.mstx import MarkIterations
    from unified_prof.tracking.workload import run_workload

    marks = MarkIterations()
    owner = os.getpid()

    def measured(capture: Capture) -> None:
        if capture.tracked is not None and os.getpid() == owner:
            found = {"tracked": capture.tracked, "unmarked": marks.missing}
            _leave(folder / MEASURED_FILE, found)

    def partial(run: TrackedRun) -> None:
        if os.getpid() == owner:
            _leave(folder / PARTIAL_FILE, {"tracked": run})

    if spec.asks_for_operations:
        spec = replace(spec, on_measured=measured, on_partial=partial)
    capture = run_workload("npu", spec, instruments=[marks])
    return {
        "exit_code": capture.exit_code,
        "tracked": capture.tracked if spec.asks_for_operations else None,
        "failure": capture.failure,
        "unmarked": marks.missing,
    }


def _run_plain(spec: RunSpec) -> dict[str, Any]:
    """Run a script or module as `python` itself would."""
    from unified_prof.tracking.program.program import (
        execute,
        exit_code_of,
        find_program,
        running_as,
    )

    try:
        program = find_program(spec)
        code = program.compile()
        with running_as(program, "__main__") as module:
            execute(code, vars(module))
    except UprofError:
        raise
    except BaseException as error:
        own_frame = error.__traceback__
        return {"exit_code": exit_code_of(error.with_traceback(own_frame and own_frame.tb_next))}
    return {"exit_code": 0}


def _leave(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` so that whoever looks finds all of it or what was there before."""
    import msgspec

    try:
        data = msgspec.msgpack.encode(content)
    except UnicodeEncodeError:  # of a file name that is not UTF-8
        data = msgspec.msgpack.encode(storable_in(msgspec.to_builtins(content)))
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)
