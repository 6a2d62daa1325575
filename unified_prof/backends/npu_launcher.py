"""What msprof runs as its application: the workload, in this very process.

The process must be the workload's own: msprof samples it by its id. Started by the script that
`msprof_command` writes, with a JSON file that says what to run and where to leave the outcome.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

EXIT_CODE_FILE = "exit_code"
TRACKED_FILE = "tracked.msgpack"


def main(job_file: str) -> None:
    """Run the job in `job_file` and end the process with the workload's exit code."""
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    _restore_streams(job["streams"])
    exit_code = _run(job, folder)
    (folder / EXIT_CODE_FILE).write_text(str(exit_code))
    sys.exit(exit_code)


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


def _run(job: Mapping[str, Any], folder: Path) -> int:
    if job["tracked"]:
        return _run_tracked(job, folder)
    return _run_plain(job["target"], job["is_module"], job["arguments"])


def _run_tracked(job: Mapping[str, Any], folder: Path) -> int:
    """Run providers, or a script whose operations are tracked, on the NPU."""
    import msgspec

    from unified_prof.backends.mstx import MarkIterations
    from unified_prof.errors import UprofError
    from unified_prof.tracking.workload import run_workload

    marks = MarkIterations()
    result: dict[str, Any]
    try:
        outcome = run_workload(
            "npu",
            target=job["target"],
            is_module=job["is_module"],
            arguments=job["arguments"],
            reports=job["reports"],
            project_root=Path(job["project_root"]),
            warmup=job["warmup"],
            iterations=job["iterations"],
            scope=job["scope"],
            stop_after=job["stop_after"],
            instruments=[marks],
        )
    except UprofError as err:
        # Told by the parent, in whose process the error boundary is.
        error = {"kind": type(err).__name__, "message": str(err), "hint": err.hint}
        result, exit_code = {"error": error}, err.exit_code
    else:
        exit_code = outcome.exit_code
        result = {
            "error": None,
            "tracked": outcome.tracked if job["reports"] else None,
            "failure": outcome.failure,
            "unmarked": marks.missing,
        }
    (folder / TRACKED_FILE).write_bytes(msgspec.msgpack.encode(result))
    return exit_code


def _run_plain(target: str, is_module: bool, arguments: list[str]) -> int:
    """Run a script or module as `python` itself would, and return its exit code."""
    sys.argv = [target, *arguments]
    try:
        if is_module:
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as err:
        return _exit_code(err)
    except KeyboardInterrupt:
        return 130
    except BaseException as err:
        _print_traceback(err)
        return 1
    return 0


def _exit_code(err: SystemExit) -> int:
    if err.code is None:
        return 0
    if isinstance(err.code, int):
        return err.code & 0xFF
    print(err.code, file=sys.stderr)
    return 1


def _print_traceback(err: BaseException) -> None:
    """Print the traceback from the workload's own first frame on."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    frames = err.__traceback__
    while frames and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    traceback.print_exception(type(err), err, frames)
