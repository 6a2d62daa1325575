"""The command line of msprof for one run, and the script that is its application.

msprof takes apart the application's command line at spaces, refuses some characters and soft
links, and cannot be told an argument with a blank in it. So the application is always `bash
<file>`: a small script of ours at a harmless path, which has the workload and its arguments safely
quoted and becomes (`exec`) the workload.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unified_prof.backends.msprof_outcome import STARTED_FILE
from unified_prof.backends.msprof_plan import Offer
from unified_prof.backends.registry import RunSpec
from unified_prof.errors import DeviceUnavailableError, OutputError, UsageError

# What msprof refuses in its paths (a space is allowed).
FORBIDDEN_IN_PATHS = frozenset("\n\f\r\b\t\v\x7f\"'\\%><|&$;`")
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_PYTHON, _TYPE = "python-path", "type"
OWN_OPTIONS = frozenset({_PYTHON, _TYPE})
"""Options of ours that only save work: msprof may refuse them, as old ones do."""
_SCRIPT_NAME = "workload.sh"
_JOB_NAME = "job.json"


def check_path(path: Path, what: str) -> None:
    """Raise UsageError when msprof would refuse `path`."""
    if bad := sorted({*str(path)} & FORBIDDEN_IN_PATHS):
        raise UsageError(
            f"{what} {path} has characters that msprof rejects: {' '.join(map(repr, bad))}",
            hint="choose a directory without them",
            slug="msprof-refuses-path",
        )


def command_line(
    msprof: Path,
    arguments: Sequence[str],
    output: Path,
    application: Sequence[str],
    offer: Offer,
) -> list[str]:
    """Return the command; every option as `--name=value`, the only form that msprof takes.

    msprof exports by itself what it recorded, by a Python program that takes many times what we
    take. A program that does nothing in place of the interpreter is the one way to leave it out.
    """
    own = []
    if offer.takes(_PYTHON) and (nothing := _does_nothing()):
        own.append(f"--{_PYTHON}={nothing}")
    own.append(f"--output={output}")
    if offer.takes(_TYPE):
        own.append(f"--{_TYPE}=db")
    return [str(msprof), *own, *arguments, *application]


def _does_nothing() -> str | None:
    """Return the path of a program that takes any arguments, does nothing and succeeds."""
    for path in ("/bin/true", "/usr/bin/true", shutil.which("true") or ""):
        if path and os.access(path, os.X_OK) and not {*os.path.realpath(path)} & {*" \n"}:
            return path
    return None


def application(folder: Path) -> list[str]:
    """Return the words that start the script in `folder`, a folder of `harmless_folder`."""
    shell = next((name for name in ("bash", "sh") if shutil.which(name)), None)
    if shell is None:
        raise DeviceUnavailableError("msprof needs bash or sh, neither is on PATH", slug="no-shell")
    return [shell, str(folder / _SCRIPT_NAME)]


def harmless_folder() -> Path:
    """Make a new folder whose path msprof cannot misread.

    Raises:
        OutputError: no such folder can be made.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        real = os.path.realpath(parent)
        if {*real} & FORBIDDEN_IN_PATHS or " " in real:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="uprof_", dir=real))
        except OSError:
            continue
    raise OutputError(
        "no writable directory for temporary files",
        hint="set TMPDIR to a directory without spaces",
        slug="no-temporary-space",
    )


@contextmanager
def recording_place(output: Path) -> Iterator[Path]:
    """Yield the folder in which msprof is to record: `output`, or one that stands in for it.

    msprof tells its application of the folder in a JSON text, where a name that is not UTF-8 has
    no place. What is recorded elsewhere is in `output` afterwards.

    Raises:
        OutputError: it cannot be moved there; the message says where it is.
    """
    try:
        str(output).encode("utf-8")
    except UnicodeEncodeError:
        pass
    else:
        yield output
        return
    folder = harmless_folder()
    try:
        yield folder
    finally:
        for recorded in sorted(folder.glob("PROF_*")):
            try:
                shutil.move(recorded, output / recorded.name)
            except OSError as err:
                raise OutputError(
                    f"cannot move {recorded} to {output}: {err.strerror or err}",
                    hint="the recording stays where it is; convert it with `uprof convert`",
                    slug="cannot-move",
                ) from err
        shutil.rmtree(folder, ignore_errors=True)


def write_script(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the script that becomes `words`, with `environment` added to its environment."""
    path = folder / _SCRIPT_NAME
    path.write_bytes(os.fsencode(script(words, environment, folder / STARTED_FILE)))
    path.chmod(0o700)


def script(words: Sequence[str], environment: Mapping[str, str], started: Path) -> str:
    """Return the text of that script.

    It says in `started` that it runs, and begins where we are, wherever msprof starts it.
    """
    lines = [
        "#!/bin/sh",
        f"echo $$ >{shlex.quote(str(started))}",
        f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        f"exec {shlex.join(words)}",
    ]
    return "\n".join([*lines, ""])


def is_program(spec: RunSpec) -> bool:
    """Return whether the target is an executable of its own rather than a Python script."""
    path = Path(spec.target)
    return (
        not spec.is_module
        and path.suffix not in (".py", ".pyw")
        and path.is_file()
        and os.access(path, os.X_OK)
    )


def has_providers(spec: RunSpec) -> bool:
    """Return whether the target is a script that defines providers.

    Raises:
        CaptureError: it defines some of them, but not all.
    """
    if spec.is_module or is_program(spec):
        return False
    from unified_prof.tracking.program import prefix_of

    try:
        return prefix_of(Path(spec.target).read_bytes(), spec.target) is not None
    except (OSError, SyntaxError, ValueError):
        return False  # running it will say what is wrong


def workload_words(spec: RunSpec, folder: Path) -> list[str]:
    """Return program and arguments that the script becomes."""
    if is_program(spec):
        return [str(Path(spec.target).resolve()), *spec.arguments]
    # Neither `-m` nor a file: both would leave a folder of ours on the workload's sys.path.
    code = (
        f"import sys; sys.path.insert(0, {str(_PACKAGE_PARENT)!r}); "
        "from unified_prof.backends.npu_launcher import main; "
        # The first entry is the one that the launcher gives to the workload.
        f"sys.path[:] = ['', *filter(None, sys.path[1:])]; main({str(folder / _JOB_NAME)!r})"
    )
    return [sys.executable, "-c", code]


def write_job(folder: Path, spec: RunSpec, *, streams: Mapping[int, int], tracked: bool) -> None:
    """Write what the launcher is to do.

    Args:
        folder: Where the job and its outcome lie.
        spec: What to run.
        streams: The workload's descriptor -> the inherited descriptor that it is to be.
        tracked: Whether to drive the workload through the tracker.
    """
    job: dict[str, Any] = {
        "spec": spec.as_data(),
        "tracked": tracked,
        "streams": {},
    }
    for number, inherited in streams.items():
        status = os.fstat(inherited)
        job["streams"][number] = {"fd": inherited, "file": [status.st_dev, status.st_ino]}
    (folder / _JOB_NAME).write_text(json.dumps(job), encoding="utf-8")
