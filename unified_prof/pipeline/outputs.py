"""Where a run puts its reports, and whether it may."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from unified_prof.base.run_spec import MEMORY, RUN_TIME
from unified_prof.errors import OutputError, UprofError
from unified_prof.sqlite.atomic import output_error, refuse_existing

if TYPE_CHECKING:
    from unified_prof.pipeline.distributed import Rank

_FILE_NAMES = {RUN_TIME: "run_time", MEMORY: "memory"}


def default_directory(target: str, is_module: bool, rank: Rank) -> Path:
    """Return the folder of the reports where none is named, the same for all ranks of a job.

    `uprof_<script>_<timestamp>`, the time being that of the launcher where there is one. Ranks on
    several hosts have no time in common: there the name of the job takes its place, and a job of
    a name that was used before gets a number.
    """
    stem = target.rpartition(".")[2] if is_module else Path(target).stem
    if rank.one_host or rank.job is None:
        started = datetime.now() if not rank.suffix else _parent_start() or datetime.now()
        return Path(f"uprof_{stem}_{started:%Y%m%d_%H%M%S}")
    from unified_prof.sqlite.run_folder import has_entry

    folder = Path(f"uprof_{stem}_{rank.job}")
    number = 1
    while has_entry(attempt_directory(folder, rank), rank.number or 0):
        number += 1
        folder = Path(f"uprof_{stem}_{rank.job}_{number}")
    return folder


def attempt_directory(directory: Path, rank: Rank) -> Path:
    """Return where this attempt of a job writes that its launcher may have started anew.

    What the ranks of the attempt before have left is theirs, and must not keep this one from
    running.
    """
    return directory / f"restart{rank.restarts}" if rank.restarts else directory


def skyline_files(directory: Path, reports: Sequence[str], rank: Rank) -> dict[str, Path]:
    """Return the file of each Skyline report in `reports`."""
    return {
        report: directory / f"{_FILE_NAMES[report]}{rank.suffix}.sqlite"
        for report in reports
        if report in _FILE_NAMES
    }


def timeline_file(directory: Path, rank: Rank) -> Path:
    """Return the database of the trace that torch.profiler left in `directory`."""
    return directory / f"timeline{rank.suffix}.db"


def raw_directory(directory: Path, rank: Rank) -> Path:
    """Return where raw recordings go: one folder a rank, whose files bear the same names."""
    return directory / rank.suffix.removeprefix("_") if rank.suffix else directory


@contextmanager
def output_directory(path: Path) -> Iterator[Path]:
    """Make `path`, check that it can be written to, and remove it if nothing came of it.

    Raises:
        OutputError: the folder cannot be made or written to.
    """
    made = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        make_directory(path)
        _probe(path)
        yield path
    finally:
        for folder in made:
            with suppress(OSError):  # something was written there, or it was never made
                folder.rmdir()


def make_directory(path: Path) -> None:
    """Make `path` and its parents, where they are missing; OutputError where it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OutputError(
            f"{path} is not a directory, reports cannot be written there", slug="wrong-output-place"
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
    """Raise OutputError before anything runs when a report of the same name is there already."""
    for path in files:
        if path.parent.is_dir():
            refuse_existing(path, overwrite=force)


def _parent_start() -> datetime | None:
    """Return when the parent process (torchrun's agent) started, where the system tells."""
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


def in_words(error: Exception) -> str:
    """Return what an error has to say to the user, be it one of ours or a bug's."""
    if isinstance(error, UprofError):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"
