"""Chooses and checks the directories and files of the reports of a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.base.run_spec import MEMORY, RUN_TIME
from unified_prof.errors import OutputError, UprofError
from unified_prof.sqlite.atomic import output_error, refuse_existing, remove_abandoned

if TYPE_CHECKING:
    from unified_prof.pipeline.distributed import Rank

_FILE_NAMES = {RUN_TIME: "run_time", MEMORY: "memory"}


def default_directory(target: str, is_module: bool, rank: Rank) -> Path:
    """Return the default directory of the reports, the same for all ranks of a job.

    The name is `uprof_<script>_<timestamp>` with the start time of the launcher. Ranks on several
    hosts have no common start time; they use the job name, with a number if the directory is
    already in use.
    """
    stem = target.rpartition(".")[2] if is_module else Path(target).stem
    if rank.one_host or rank.job is None:
        started = datetime.now() if not rank.suffix else _parent_start() or datetime.now()
        return Path(f"uprof_{stem}_{started:%Y%m%d_%H%M%S}")
    from unified_prof.sqlite.run_folder import has_entry

    directory = Path(f"uprof_{stem}_{rank.job}")
    number = 1
    while has_entry(attempt_directory(directory, rank), rank.number or 0):
        number += 1
        directory = Path(f"uprof_{stem}_{rank.job}_{number}")
    return directory


def attempt_directory(directory: Path, rank: Rank) -> Path:
    """Return the directory for this attempt of a job; reports of earlier attempts are kept."""
    return directory / f"restart{rank.restarts}" if rank.restarts else directory


def skyline_files(directory: Path, reports: Sequence[str], rank: Rank) -> dict[str, Path]:
    """Return report kind -> file for the Skyline reports in `reports`."""
    return {
        report: directory / f"{_FILE_NAMES[report]}{rank.suffix}.sqlite"
        for report in reports
        if report in _FILE_NAMES
    }


def timeline_file(directory: Path, rank: Rank) -> Path:
    """Return the database of the torch.profiler trace in `directory`."""
    return directory / f"timeline{rank.suffix}.db"


def raw_directory(directory: Path, rank: Rank) -> Path:
    """Return the directory of raw recordings of a rank (file names of ranks are equal)."""
    return directory / rank.suffix.removeprefix("_") if rank.suffix else directory


@contextmanager
def output_directory(path: Path) -> Iterator[Path]:
    """Create `path`, check that it is writable, and remove it afterwards if it is empty.

    Partial files of killed commands are removed: if names contain the time, nothing else does.

    Raises:
        OutputError: the directory cannot be created or written to.
    """
    created = [parent for parent in (path, *path.parents) if not os.path.lexists(parent)]
    try:
        make_directory(path)
        _probe(path)
        remove_abandoned(path)
        yield path
    finally:
        for parent in created:
            with suppress(OSError):  # it is not empty, or was not created
                parent.rmdir()


def make_directory(path: Path) -> None:
    """Create `path` and its parents if they are missing; raise OutputError on failure."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(
            f"{path} is not a directory, cannot write reports to it", slug="wrong-output-place"
        ) from None
    except OSError as err:
        raise OutputError(
            f"cannot create the directory {path}: {err.strerror or err}",
            hint="choose another directory",
            slug="cannot-write",
        ) from err


def _probe(path: Path) -> None:
    probe = path / f".uprof.{os.getpid()}.probe"
    try:
        try:
            probe.write_bytes(b"uprof")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as err:
        raise output_error(path / "reports", err) from err


def refuse_existing_files(files: Iterable[Path], *, force: bool) -> None:
    """Raise OutputError if a file exists, unless `force` is true."""
    for path in files:
        if path.parent.is_dir():
            refuse_existing(path, overwrite=force)


def _parent_start() -> datetime | None:
    """Return the start time of the parent process (torchrun's agent), None if unknown."""
    try:
        stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8", errors="replace")
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines()
            if line.startswith("btime")
        )
        ticks = int(stat.rpartition(")")[2].split()[19])
        return datetime.fromtimestamp(boot + ticks // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def error_text(error: Exception) -> str:
    """Return the message for the user; unexpected exceptions become internal errors."""
    if isinstance(error, UprofError):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"
