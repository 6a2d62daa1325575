"""A stand-in for CANN's `msprof`: its options, its contract with the application, its messages.

As a program it behaves like the genuine command where uprof relies on it: it accepts and
refuses options as on the chip that STAND_IN_PLATFORM names, starts the application with
PROFILER_SAMPLECONFIG, reads the record file in which the application's profiling library writes
the names of PROF_* directories, lets a Python interpreter export each, and exits 0 even if the
application or the export failed. STAND_IN_MSPROF selects failures, and STAND_IN_LOG names a file
that gets a line for every start.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.backends import msprof_platforms
from tests.sql import execute

NOT_FOUND = (
    "[ERROR] Failed to find profiling data, please check that the application executes AI-related "
    "business, or ensure that aclInit/GEInitialize is invoked in the application"
)
_POLL_S = float(os.environ.get("STAND_IN_LOOKS_S", "0.1"))  # The genuine command: 1 s.
_STOP_DELAY_S = 0.2  # The genuine command: 1 s.


def install(folder: Path) -> Path:
    """Create the command `msprof` in `folder`, for PATH, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "msprof"
    root = Path(__file__).parents[2]
    command.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))}${{PYTHONPATH:+:$PYTHONPATH}} "
        f'exec {shlex.join([sys.executable, __file__])} "$@"\n'
    )
    command.chmod(0o755)
    return command


def starts(log: Path) -> list[list[str]]:
    """Return the arguments of all starts in STAND_IN_LOG except those for help."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [words for words in map(shlex.split, lines) if words != ["--help"]]


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str]) -> int:
    if log := os.environ.get("STAND_IN_LOG"):
        with Path(log).open("a") as file:
            file.write(shlex.join(arguments) + "\n")
    failures = os.environ.get("STAND_IN_MSPROF", "").split()
    if "no_help" in failures and arguments == ["--help"]:
        say("[ERROR] Init platform by driver faild!")
        return 255
    if "hangs_on_help" in failures and arguments == ["--help"]:
        time.sleep(60)
    parsed = msprof_platforms.check(
        arguments,
        int(os.environ.get("STAND_IN_PLATFORM", "5")),
        on_device="on_device" in failures,
        old="old" in failures,
    )
    for line in parsed.messages:
        say(line)
    if parsed.status is not None:
        return parsed.status
    options = parsed.options
    output = Path(options.get("output", "."))
    if "vnpu" in failures:
        say("[ERROR] This function is not supported in a container with vNPU.")
        return 254
    if options.get("export") == "on":
        say("[INFO] Start profiling....")
        export_one(output, failures, options)
        say("[INFO] Profiling finished.")
        return 0
    # Parameters that are not UTF-8 cannot be encoded.
    json.dumps({"result_dir": str(output)}, ensure_ascii=False).encode()
    output.mkdir(parents=True, exist_ok=True)
    if "pid" in options:
        return attach(options, output, failures)
    if not parsed.application:
        say("[ERROR] No argument of application.")
        return 255
    if "host-sys-usage" in options:
        say("[WARNING] The argument --host-sys-usage is useless when --application is not empty")
    return launch(parsed.application, output, options, failures)


def launch(
    application: list[str], output: Path, options: dict[str, str], failures: list[str]
) -> int:
    sample = {"result_dir": str(output), "msprofBinPid": os.getpid(), "options": options}
    environment = {**os.environ, "PROFILER_SAMPLECONFIG": json.dumps(sample)}
    quits: list[int] = []

    def stop(*_: Any) -> None:
        time.sleep(_STOP_DELAY_S)
        quits.append(1)

    signal.signal(signal.SIGINT, stop)  # SIGTERM kills it at once.
    say("[INFO] Start profiling....")
    app = subprocess.Popen(
        [word for word in application if word],
        env=environment,
        close_fds="closes_descriptors" in failures,
        cwd=output if "changes_folder" in failures else None,
    )
    if "reaps_at_once" in failures:
        app.wait()
    while app.poll() is None:
        if quits:
            say("[WARNING] Receive stop singal.")
            app.terminate()
        time.sleep(_POLL_S)
    if app.returncode:
        # A signal is printed as the error text of its number, as an exit code would be.
        code = abs(app.returncode)
        if 128 < code < 255:
            code &= 0x7F
        say(
            f"[WARNING] An exception has occurred in process App, return code: {os.strerror(code)}."
        )
    record = output / f"{os.getpid()}_profiling_output_record"
    names = sorted({*record.read_text().split()}) if record.exists() else []
    record.unlink(missing_ok=True)
    if not names:
        say(NOT_FOUND)
        say("[ERROR] Running profiling failed. Please check log for more info.")
        return 255
    if "full_while_recording" in failures:
        say("[ERROR] write failed: No space left on device")
    for name in names:
        export_one(output / name, failures, options)
    say("[INFO] Profiling finished.")
    say(f"[INFO] Process profiling data complete. Data is saved in {output / names[-1]}")
    return 0


def export_one(prof: Path, failures: list[str], options: dict[str, str]) -> None:
    say(f"[INFO] Start export data in {prof.name}.")
    if python := options.get("python-path"):
        subprocess.run([python, "msprof.py", "export", "db", f"-dir={prof}"], check=False)
        say(f"[INFO] Export all data in {prof.name} done.")
        return
    if "export_fails" in failures:
        say("[ERROR] Analysis data failed.")
        return
    stamp = time.strftime("%Y%m%d%H%M%S")
    database = prof / f"msprof_{stamp}.db"
    if {"export_crashes", "export_hangs"} & {*failures}:
        (prof / "host" / "sqlite").mkdir()
        (prof / "host" / "sqlite" / "api_event.db").write_bytes(b"half")
        (prof / "host" / "data" / "all_file.complete").touch()
        database.write_bytes(b"SQLite format 3\0 and no more")
        if "export_hangs" in failures:
            (prof.parent / "hangs").touch()
            time.sleep(60)
        say(
            "[WARNING] An exception has occurred in process Export db, return code: "
            f"{os.strerror(8)}."
        )
        return
    execute(database, "CREATE TABLE META_DATA (name TEXT, value TEXT)")
    execute(database, "INSERT INTO META_DATA VALUES ('producer', 'stand-in msprof')")
    say(f"[INFO] Export all data in {prof.name} done.")


def attach(options: dict[str, str], output: Path, failures: list[str]) -> int:
    """Record the process `--pid` between `start` and `stop` on standard input."""
    pid = options["pid"]
    if "attach_refused" in failures:
        say(f"[ERROR] cannot connect to server for pid {pid}, maybe server is closed")
        return 255
    started = 0.0
    for word in commands():
        if f"hangs_at_{word}" in failures:
            time.sleep(60)
        if f"exits_at_{word}" in failures:
            return 0
        if word == "start":
            started = time.monotonic()
        elif word == "stop":
            (output / "recorded_seconds").write_text(str(time.monotonic() - started))
            record_attached(output, failures)
        say(f"> dynamic profiling for pid {pid} {word} success")
        if word == "quit":
            break
    (output / f"{os.getpid()}_profiling_output_record").unlink(missing_ok=True)
    return 0  # Recordings of attached processes are exported by the user.


def commands() -> Iterator[str]:
    """Yield the lines of standard input as the genuine command reads them.

    It waits for the descriptor and then reads a line through a buffer: a second line in the buffer
    is seen only after more input, or at its end.
    """
    rest = b""
    while True:
        time.sleep(_POLL_S)
        if not (chunk := os.read(0, 4096)):
            break
        line, _, rest = (rest + chunk).partition(b"\n")
        yield line.decode()
    yield from rest.decode().splitlines()


def record_attached(output: Path, failures: list[str]) -> None:
    """Write the recording of an attached process."""
    if "records_nothing" in failures:
        return
    sample = {"result_dir": str(output), "msprofBinPid": os.getpid()}
    os.environ["PROFILER_SAMPLECONFIG"] = json.dumps(sample)
    from tests.backends import stand_in_acl

    prof = stand_in_acl.init(device="records_no_device" not in failures)
    if "truncates" in failures:
        for file in prof.rglob("*"):
            if file.is_file():
                os.truncate(file, min(10, file.stat().st_size))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
