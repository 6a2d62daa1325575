"""Builds the msprof command line, and the script that msprof runs as its application.

msprof splits the application's command line at spaces, rejects some characters and symbolic links,
and cannot pass an argument that contains a space. The application is therefore always `bash
<file>`: a script at a safe path that contains the quoted workload and its arguments, and replaces
itself (`exec`) by the workload.
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

# Characters that msprof rejects in paths; a space is allowed.
FORBIDDEN_IN_PATHS = frozenset("\n\f\r\b\t\v\x7f\"'\\%><|&$;`")
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_PYTHON, _TYPE = "python-path", "type"
# Options that only save work; old releases of msprof may reject them.
OWN_OPTIONS = frozenset({_PYTHON, _TYPE})
_SCRIPT_NAME = "workload.sh"
_JOB_NAME = "job.json"


def check_path(path: Path, what: str) -> None:
    """Raise UsageError if msprof would reject `path`."""
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
    """Return the command; options have the form `--name=value`, the only one that msprof accepts.

    msprof would export its recording with a Python program that is much slower than uprof. The only
    way to skip the export is to pass a no-op program as the Python interpreter.
    """
    own = []
    if offer.takes(_PYTHON) and (nothing := _no_op_program()):
        own.append(f"--{_PYTHON}={nothing}")
    own.append(f"--output={output}")
    if offer.takes(_TYPE):
        own.append(f"--{_TYPE}=db")
    return [str(msprof), *own, *arguments, *application]


def _no_op_program() -> str | None:
    """Return the path of a program that ignores its arguments and exits with 0."""
    for path in ("/bin/true", "/usr/bin/true", shutil.which("true") or ""):
        if path and os.access(path, os.X_OK) and not {*os.path.realpath(path)} & {*" \n"}:
            return path
    return None


def application(folder: Path) -> list[str]:
    """Return the command that starts the script in `folder`, made by `create_safe_folder`."""
    shell = next((name for name in ("bash", "sh") if shutil.which(name)), None)
    if shell is None:
        raise DeviceUnavailableError("msprof needs bash or sh, neither is on PATH", slug="no-shell")
    return [shell, str(folder / _SCRIPT_NAME)]


def create_safe_folder() -> Path:
    """Create a directory whose path msprof handles correctly.

    Raises:
        OutputError: The directory cannot be created.
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
def recording_directory(output: Path) -> Iterator[Path]:
    """Yield the directory in which msprof records: `output`, or a temporary replacement.

    msprof passes the directory to its application as JSON, so its path must be valid UTF-8.
    Recordings in a temporary directory are moved to `output` afterwards.

    Raises:
        OutputError: The recordings cannot be moved; the message contains their path.
    """
    try:
        str(output).encode("utf-8")
    except UnicodeEncodeError:
        pass
    else:
        yield output
        return
    folder = create_safe_folder()
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
    """Write the script that runs `words` with `environment` added to its environment."""
    path = folder / _SCRIPT_NAME
    path.write_bytes(os.fsencode(script(words, environment, folder / STARTED_FILE)))
    path.chmod(0o700)


def script(words: Sequence[str], environment: Mapping[str, str], started: Path) -> str:
    """Return the text of the script that runs `words` with `environment`.

    The script writes its process id to `started` and changes to the working directory of uprof.
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
    """Return True if the target is an executable, not a Python script."""
    path = Path(spec.target)
    return (
        not spec.is_module
        and path.suffix not in (".py", ".pyw")
        and path.is_file()
        and os.access(path, os.X_OK)
    )


def has_providers(spec: RunSpec) -> bool:
    """Return True if the target is a script that defines Skyline providers.

    Raises:
        CaptureError: The script defines some of the providers, but not all.
    """
    if spec.is_module or is_program(spec):
        return False
    from unified_prof.tracking.program import prefix_of

    try:
        return prefix_of(Path(spec.target).read_bytes(), spec.target) is not None
    except (OSError, SyntaxError, ValueError):
        return False  # running it shows the error


def workload_words(spec: RunSpec, folder: Path) -> list[str]:
    """Return the command that the script runs."""
    if is_program(spec):
        return [str(Path(spec.target).resolve()), *spec.arguments]
    # Neither `-m` nor a file: both would leave one of our directories on the workload's sys.path.
    code = (
        f"import sys; sys.path.insert(0, {str(_PACKAGE_PARENT)!r}); "
        "from unified_prof.backends.npu_launcher import main; "
        # The first entry is the one that the launcher sets for the workload.
        f"sys.path[:] = ['', *filter(None, sys.path[1:])]; main({str(folder / _JOB_NAME)!r})"
    )
    return [sys.executable, "-c", code]


def write_job(folder: Path, spec: RunSpec, *, streams: Mapping[int, int], tracked: bool) -> None:
    """Write the JSON file that tells the launcher what to run.

    Args:
        folder: Directory for the job and its result.
        spec: What to run.
        streams: Output descriptor of the workload -> inherited descriptor to use instead.
        tracked: If True, run the workload under the tracker.
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
