"""What msprof runs as its application: the workload, in this very process.

The process must be the workload's own: msprof samples it by its id. Started by the script that
`msprof_command` writes, with a JSON file that says what to run and where to leave the outcome.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unified_prof.errors import UprofError
from unified_prof.runs.spec import RunSpec

RESULT_FILE = "result.msgpack"


def main(job_file: str) -> None:
    """Run the job in `job_file` and end the process with the workload's exit code."""
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    _restore_streams(job["streams"])
    spec = RunSpec.of_data(job["spec"])
    result: dict[str, Any]
    try:
        result = _run_tracked(spec) if job["tracked"] else _run_plain(spec)
    except UprofError as err:
        # Told by the parent, where the error boundary is.
        told = {"kind": type(err).__name__, "message": str(err), "hint": err.hint}
        result = {"exit_code": err.exit_code, "error": told}
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


def _run_tracked(spec: RunSpec) -> dict[str, Any]:
    """Run providers, or a script whose operations are tracked, on the NPU."""
    from unified_prof.backends.mstx import MarkIterations
    from unified_prof.tracking.workload import run_workload

    marks = MarkIterations()
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


def _leave(path: Path, result: Mapping[str, Any]) -> None:
    import msgspec

    path.write_bytes(msgspec.msgpack.encode(result))
