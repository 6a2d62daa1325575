"""A stand-in for CANN's `msprof`: its options, its contract with the application, its messages.

Run as a program it behaves as the genuine command does where uprof relies on it: it takes options
as `--name=value` only, takes the application's command line apart at spaces, starts it with
PROFILER_SAMPLECONFIG, reads the record file in which the application's profiling library leaves
the names of PROF_* directories, exports each, and exits 0 although the application or the export
failed. The variable STAND_IN_MSPROF makes it fail in a given way.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

SWITCHES = [
    "ascendcl",
    "runtime-api",
    "ge-api",
    "task-time",
    "ai-core",
    "aic-mode",
    "aic-metrics",
    "aic-freq",
    "sys-hardware-mem",
    "sys-hardware-mem-freq",
    "llc-profiling",
    "sys-io-profiling",
    "sys-io-sampling-freq",
    "sys-interconnection-profiling",
    "sys-interconnection-freq",
    "host-sys",
    "msproftx",
    "mstx-domain-include",
    "mstx-domain-exclude",
    "task-memory",
    "aicpu",
    "l2",
    "delay",
    "duration",
    "storage-limit",
    "output",
    "type",
    "dynamic",
    "pid",
    "sys-cpu-profiling",
]
FORBIDDEN = set("\n\f\r\b\t\v\x7f\"'\\%><|&$;`")
NOT_FOUND = (
    "[ERROR] Failed to find profiling data, please check that the application executes AI-related "
    "business, or ensure that aclInit/GEInitialize is invoked in the application"
)


def install(folder: Path) -> Path:
    """Make the command `msprof` in `folder`, to be put on PATH, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "msprof"
    words = shlex.join([sys.executable, __file__])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    return command


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str]) -> int:
    options: dict[str, str] = {}
    while arguments and arguments[0].startswith("--"):
        name, equals, value = arguments.pop(0)[2:].partition("=")
        if name not in SWITCHES:
            say(f"msprof: unrecognized option '--{name}={value}'")
            return 255
        if not equals:
            say(f"[ERROR] Argument --{name}: expected one argument. Please use --{name}=<value>.")
            return 255
        options[name] = value
    output = Path(options.get("output", "."))
    if {*str(output)} & FORBIDDEN:
        say("[ERROR] Argument --output: invalid path.")
        return 255
    how = os.environ.get("STAND_IN_MSPROF", "")
    if how == "vnpu":
        say("[ERROR] This function is not supported in a container with vNPU.")
        return 254
    output.mkdir(parents=True, exist_ok=True)
    if "pid" in options:
        return attach(options, output)
    if not arguments:
        say("[ERROR] No argument of application.")
        return 255
    return launch(" ".join(arguments).split(" "), output, options, how)


def launch(application: list[str], output: Path, options: dict[str, str], how: str) -> int:
    sample = {"result_dir": str(output), "msprofBinPid": os.getpid(), "options": options}
    environment = {**os.environ, "PROFILER_SAMPLECONFIG": json.dumps(sample)}
    signal.signal(signal.SIGINT, lambda *_: None)  # it goes on to export after Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: None)
    say("[INFO] Start profiling....")
    app = subprocess.Popen(
        application,
        env=environment,
        close_fds=how == "closes_descriptors",
        cwd=output if how == "changes_folder" else None,
    )
    status = app.wait()
    if status:
        code = 128 - status if status < 0 else status
        say(f"[WARNING] An exception has occurred in process App, return code: {os.strerror(code)}")
    return export(output, how)


def export(output: Path, how: str) -> int:
    record = output / f"{os.getpid()}_profiling_output_record"
    names = record.read_text().split() if record.exists() else []
    record.unlink(missing_ok=True)
    if not names:
        say(NOT_FOUND)
        say("Running profiling failed. Please check log for more info.")
        return 255
    for name in names:
        say(f"[INFO] Start export data in {name}.")
        if how == "export_fails":
            say("[ERROR] Analysis data failed.")
            continue
        if how == "disk_full":
            say("[ERROR] write failed: No space left on device")
            continue
        stamp = time.strftime("%Y%m%d%H%M%S")
        with sqlite3.connect(output / name / f"msprof_{stamp}.db") as db:
            db.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
            db.execute("INSERT INTO META_DATA VALUES ('producer', 'stand-in msprof')")
        db.close()
    say("[INFO] Profiling finished.")
    say(f"[INFO] Process profiling data complete. Data is saved in {output / names[-1]}")
    return 0


def attach(options: dict[str, str], output: Path) -> int:
    """Record the process `--pid` between `start` and `stop` on the standard input."""
    if options.get("dynamic") != "on":
        say("[ERROR] Argument --dynamic=on, but --application/--pid is all empty.")
        return 255
    started = 0.0
    for line in sys.stdin:
        word = line.strip()
        say(f"[INFO] {word}")
        if word == "start":
            started = time.monotonic()
        elif word == "stop":
            (output / "recorded_seconds").write_text(str(time.monotonic() - started))
            sample = {"result_dir": str(output), "msprofBinPid": os.getpid()}
            os.environ["PROFILER_SAMPLECONFIG"] = json.dumps(sample)
            from tests.backends import stand_in_acl

            stand_in_acl.init()
        elif word == "quit":
            break
    return export(output, "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
