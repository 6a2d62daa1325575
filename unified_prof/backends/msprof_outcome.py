"""What came of a run of msprof, judged by what lies on disk and said in plain words.

msprof exits 0 although the application failed, the export failed or nothing was recorded, so its
exit status decides nothing alone.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unified_prof.backends.msprof_process import Ended

# Exit statuses of msprof (0 is no promise of anything).
_REFUSED = 255
_VIRTUAL_NPU = 254
_LEAST_FREE_BYTES = 20 * 1024 * 1024  # msprof stops recording below this

_APP_FAILED = re.compile(
    r"exception has occurred in process App, return code: ?(.*)", re.IGNORECASE
)
_PROBLEM = re.compile(r"^\[(?:ERROR|WARNING)\]\s*(?!\s|Running profiling failed)(.+)")
_EXPORT_FAILED = re.compile(
    r"exception has occurred in process Export.*, return code: ?(.*)", re.IGNORECASE
)
# getopt names the program as it was called, msprof's own check by its path.
_REFUSED_OPTION = re.compile(r"^\S.*?: (unrecognized option '(--[a-z][a-z0-9-]*)(?:=.*)?')")
_ERROR = re.compile(r"^(?:\[ERROR\]|msprof:)\s*(.*)")
# Signals that end processes which asked for nothing: out of memory, a crash in a library.
_LIKELY_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGKILL", "SIGSEGV", "SIGABRT") if hasattr(signal, name)
)
_FULL = re.compile(r"no space left|disk (is )?full|(disk|storage) space", re.IGNORECASE)
_NATIVE = re.compile(r"msprof_\d{14}\.db")


@dataclass(frozen=True, slots=True)
class ProfDirectory:
    """One PROF_* directory that a run left."""

    path: Path
    native: Path | None
    """The newest database that msprof itself exported into it."""
    has_device_data: bool


def find(folder: Path) -> set[Path]:
    """Return the PROF_* directories below `folder`, which need not exist."""
    try:
        return {path for path in folder.glob("PROF_*") if path.is_dir() and not path.is_symlink()}
    except OSError:
        return set()


def inspect(path: Path) -> ProfDirectory:
    """Look at what msprof left in the PROF_* directory `path`."""
    natives = sorted(p for p in path.glob("msprof_*.db") if _NATIVE.fullmatch(p.name))
    has_device_data = any(
        not file.name.endswith((".done", ".complete"))
        for file in path.glob("device_*/data/*.data.*")
    )
    return ProfDirectory(path, natives[-1] if natives else None, has_device_data)


def refused_option(lines: Iterable[str]) -> str | None:
    """Return the option, without dashes, because of which msprof started nothing."""
    for line in lines:
        if found := _REFUSED_OPTION.match(line):
            return found[2].removeprefix("--")
    return None


def remove_record(folder: Path, process: int) -> None:
    """Remove the list of recordings that a killed msprof has left in `folder`."""
    with suppress(OSError):
        (folder / f"{process}_profiling_output_record").unlink(missing_ok=True)


def workload_exit_code(reported: int | None, observed: int | None, ended: Ended) -> int:
    """Return the workload's exit code.

    Args:
        reported: What the launcher noted at the workload's end; None: it did not come to that,
            because a signal or `os._exit` ended the process, or it is no Python program.
        observed: How its process was seen to end; None: msprof was quicker.
        ended: How msprof ended; its warning carries the code as the text of an errno.
    """
    said = next((found[1] for one in ended.lines if (found := _APP_FAILED.search(one))), None)
    if ended.interrupted_by is not None and observed == 128 + signal.SIGTERM:
        observed = 128 + ended.interrupted_by  # msprof passes everything on as SIGTERM
    if observed or (observed == 0 and not reported and said is None):
        return observed  # 0 is also what the system shows to those who may not know
    if reported is not None:
        return reported
    if ended.interrupted_by is not None:
        return 128 + ended.interrupted_by
    if said is not None:
        return _code_of_text(said.strip())
    return 128 - ended.status if ended.status < 0 else 0


def what_went_wrong(
    ended: Ended, exit_code: int, directories: Sequence[ProfDirectory], folder: Path
) -> str | None:
    """Return a sentence (or two) on what is missing and why, or None when all is there."""
    parts: list[str] = []
    if ended.interrupted_by is not None:
        parts.append("the run was interrupted")
    if exit_code and ended.interrupted_by is None:
        parts.append(f"the workload ended with exit code {exit_code}")
    if _disk_is_full(ended.lines, folder):
        parts.append(f"the disk of {folder} is full, so the recording is cut short or missing")
    if not directories:
        parts.append(_why_nothing(ended))
    parts += [
        f"{directory.path} has no device data: nothing ran on an NPU while it was recorded"
        for directory in directories
        if not directory.has_device_data
    ]
    return "; ".join(parts) or None


def _why_nothing(ended: Ended) -> str:
    errors = [
        found[1]
        for line in ended.lines
        if (found := _REFUSED_OPTION.match(line) or _ERROR.match(line))
    ]
    if ended.status == _VIRTUAL_NPU:
        return "msprof cannot record here: this container has a virtual NPU (vNPU)"
    if ended.status < 0:
        return f"msprof was killed by signal {-ended.status} and recorded nothing"
    if any("aclInit" in error or "profiling data" in error for error in errors):
        return (
            "msprof recorded nothing: the workload never initialised an NPU (no aclInit), "
            "so it ran on another device or ended before"
        )
    if errors:
        return f"msprof recorded nothing: {errors[0]}"
    if ended.status == _REFUSED:
        return "msprof recorded nothing and gives no reason"
    return f"msprof ended with {ended.status} and recorded nothing"


def why_not_exported(ended: Ended) -> str | None:
    """Return why what an export left cannot be relied on; None: nothing speaks against it."""
    for line in ended.lines:
        if found := _REFUSED_OPTION.match(line):
            return f"msprof's export failed: {found[1]}"
        if found := _EXPORT_FAILED.search(line):
            return f"msprof's export failed: {found[1].removesuffix('.')}"
    if ended.status < 0:
        return f"msprof's export was killed by signal {-ended.status}"
    return why_no_database(ended) if ended.status else None


def why_no_database(ended: Ended) -> str:
    """Return why an export left no database, even if it seems to have done well."""
    said = [found[1] for line in ended.lines if (found := _PROBLEM.match(line))]
    if said:  # the last before it gave up
        return f"msprof's export failed: {said[-1]}"
    status = f" and exit status {ended.status}" if ended.status else ""
    return f"msprof's export failed without a reason{status}"


def _disk_is_full(lines: Iterable[str], folder: Path) -> bool:
    if any(_FULL.search(line) for line in lines if line.startswith(("[ERROR]", "[WARNING]"))):
        return True
    try:
        return shutil.disk_usage(folder).free < _LEAST_FREE_BYTES
    except OSError:
        return False


def _code_of_text(text: str) -> int:
    """Return the exit code of which msprof printed `strerror`; 1 where the text is no such.

    It prints a full stop behind it, and the number of a signal as if it were an exit code.
    """
    for one in (text, text.removesuffix(".")):
        if unknown := re.fullmatch(r"(?:Unknown error )?(\d+)", one, re.ASCII):
            return int(unknown[1]) & 0xFF or 1
        for code in range(1, 256):
            if os.strerror(code) == one:
                return 128 + code if code in _LIKELY_SIGNALS else code
    return 1
