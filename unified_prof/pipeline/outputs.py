"""Determines the rank of this process, and the directories and files of its reports.

The rank is found in environment variables of launchers. Ranks that are not profiled replace their
process with the workload.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple, NoReturn

from msgspec import Struct

from unified_prof.base.run_spec import MEMORY, RUN_TIME
from unified_prof.errors import OutputError, UprofError, UsageError, system_errors
from unified_prof.sqlite.atomic import output_errors, refuse_existing, remove_abandoned


class _Names(NamedTuple):
    """Environment variables of one launcher; the first variable with a number is used."""

    launcher: str
    rank: tuple[str, ...]
    local_rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_world_size: tuple[str, ...] = ()


# In order of precedence. torchrun comes first, because it can start a script within any other
# launcher; mpirun precedes Slurm, because each daemon of mpirun is a task of Slurm, whose numbers
# all of its ranks inherit.
_TORCHRUN = _Names("torchrun", ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",))


def _with_prefixes(launcher: str, *prefixes: str) -> _Names:
    ends = ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")
    return _Names(launcher, *(tuple(f"{one}_{end}" for one in prefixes) for end in ends))


_OTHERS = (
    _with_prefixes("openmpi", "OMPI_COMM_WORLD"),
    _with_prefixes("mvapich", "MV2_COMM_WORLD", "MVP_COMM_WORLD"),
    _with_prefixes("jsm", "JSM_NAMESPACE"),
    _Names("pals", ("PALS_RANKID",), ("PALS_LOCAL_RANKID",), ("PALS_SIZE", "PMI_SIZE")),
    _Names(
        "mpich",
        ("PMI_RANK", "PMIX_RANK"),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("PMI_SIZE", "PMIX_SIZE"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    _Names("flux", ("FLUX_TASK_RANK",), ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    # The size of the step if srun started one: SLURM_NTASKS can be that of the allocation.
    _Names(
        "slurm",
        ("SLURM_PROCID",),
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    ),
)

# Variables that identify a job, equal for all its ranks on all hosts, by a prefix for names.
_JOBS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torchrun", ("TORCHELASTIC_RUN_ID",)),
    ("pmix", ("PMIX_NAMESPACE",)),
    ("pals", ("PALS_APID",)),
    ("slurm", ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    ("flux", ("FLUX_JOB_ID",)),
    ("lsf", ("LSB_JOBID", "JSM_NAMESPACE_ID")),
    ("pbs", ("PBS_JOBID",)),
    ("sge", ("JOB_ID",)),
)
# Values that identify no job: torchrun's default id is `none`.
_NO_JOB = {"none", ""}
_THIS_HOST = {"localhost", "127.0.0.1", "::1"}
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


class Rank(Struct, frozen=True):
    """Rank of one process in a run; all fields are None if there is only one process."""

    rank: int | None
    local_rank: int | None
    world_size: int | None
    launcher: str | None = None  # Launcher that set the environment variables.
    job: str | None = None  # Name of the job, the same for all ranks and hosts.
    one_host: bool = True  # True if all ranks are on this host, as far as known.
    restarts: int = 0  # Number of restarts of the job by its launcher.

    @property
    def number(self) -> int | None:
        """The global rank, or the local rank if unknown; None if there is only one process."""
        return self.rank if self.rank is not None else self.local_rank

    @property
    def suffix(self) -> str:
        """Suffix for file names, such as `_rank3`; empty if there is only one process."""
        return "" if self.number is None else f"_rank{self.number}"

    @property
    def is_distributed(self) -> bool:
        """True if there are other processes."""
        return self.world_size is not None and self.world_size > 1


def rank_of(environment: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank of this process from the environment; invalid numbers are ignored.

    Variables of launchers other than torchrun are used only if there are several processes, because
    an interactive Slurm shell also sets "rank 0 of 1".
    """
    found = _read(_TORCHRUN, environment)
    if found.number is not None:
        return found
    # The script of a batch job has rank 0 and the size of the job in its environment, but no
    # SLURM_STEP_ID, which only srun sets.
    is_batch = environment.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in environment
    for names in _OTHERS:
        if names.launcher == "slurm" and is_batch:
            continue
        found = _read(names, environment)
        if found.rank is not None and found.is_distributed:
            return found
    return Rank(None, None, None)


def rank_here() -> Rank:
    """Return the current rank of this process.

    If no launcher set it, the rank is taken from the process group of torch.distributed, which a
    trainer or a process of `torch.multiprocessing.spawn` may have initialized.
    """
    found = rank_of()
    distributed = sys.modules.get("torch.distributed")
    if found.rank is not None or distributed is None:
        return found
    if not (distributed.is_available() and distributed.is_initialized()):
        return found
    if distributed.get_world_size() == 1:
        return found
    job = found.job or _job(os.environ, "")
    return Rank(
        distributed.get_rank(),
        found.local_rank,
        distributed.get_world_size(),
        launcher=found.launcher,
        job=job,
        one_host=job is None or os.environ.get("MASTER_ADDR") in _THIS_HOST,
    )


def _read(names: _Names, environment: Mapping[str, str]) -> Rank:
    def number(variables: tuple[str, ...]) -> int | None:
        for variable in variables:
            text = environment.get(variable, "")
            if text.isascii() and text.isdecimal():
                return int(text)
        return None

    world_size, local = number(names.world_size), number(names.local_world_size)
    nodes = number(("SLURM_STEP_NUM_NODES", "SLURM_NNODES"))
    if local is None and names.launcher == "slurm" and nodes == 1:
        local = world_size
    return Rank(
        number(names.rank),
        number(names.local_rank),
        world_size,
        launcher=names.launcher,
        job=_job(environment, names.launcher),
        one_host=world_size is None or world_size == 1 or local == world_size,
        restarts=number(_RESTARTS) or 0,
    )


def _job(environment: Mapping[str, str], launcher: str) -> str | None:
    """Return the job's name, made valid for file names; None if it is unknown."""
    for prefix, variables in _JOBS:
        if prefix == "torchrun" and launcher != "torchrun":
            continue
        first, *others = (environment.get(variable, "") for variable in variables)
        if first not in _NO_JOB:
            parts = [prefix + _plain(first), *(_plain(other) for other in others if other)]
            return ".".join(parts)
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return f"{_plain(address)}.{_plain(port)}" if address and port else None


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64]


class RankSelection(Struct, frozen=True):
    """Ranks selected by `--ranks`."""

    ranges: tuple[tuple[int, int], ...] = ()  # First and last of each range.
    every: int = 1  # N in `every:N`; used if `ranges` is empty.

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, int):
            return False
        if self.ranges:
            return any(first <= rank <= last for first, last in self.ranges)
        return rank % self.every == 0

    def selected_from(self, world_size: int) -> list[int]:
        """Return the selected ranks below `world_size`, ascending."""
        return [rank for rank in range(world_size) if rank in self]

    def size(self, known: Sequence[int]) -> int:
        """Return the number of ranks that `numbers` returns, at least."""
        return sum(last - first + 1 for first, last in self.ranges) or len(known)

    def numbers(self, known: Sequence[int]) -> list[int]:
        """Return all ranks that are named, or those of `known` that are selected."""
        named = [rank for first, last in self.ranges for rank in range(first, last + 1)]
        return list(dict.fromkeys(named)) or [rank for rank in known if rank in self]


ALL = RankSelection()


def parse_ranks(text: str) -> RankSelection:
    """Parse `all`, `every:N`, or numbers and ranges such as `0,8-15`.

    Raises UsageError if the text is invalid.
    """
    text = text.strip()
    if text == "all":
        return ALL
    if found := re.fullmatch(r"every:([1-9][0-9]{0,8})", text):
        return RankSelection(every=int(found[1]))
    ranges = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(
                f"--ranks: {part.strip()!r} is not a rank or a range of ranks",
                hint="for example 0,8-15 or every:8",
                slug="wrong-ranks",
            )
        ranges.append((int(found[1]), int(found[2] or found[1])))
    return RankSelection(tuple(ranges))


class Workload(Struct, frozen=True):
    """Workload to run."""

    # Path of a script, or name of a module if `is_module`.
    target: str
    is_module: bool
    arguments: tuple[str, ...]


def is_measured(rank: Rank, chosen: RankSelection) -> bool:
    """Return True if this rank is selected by --ranks.

    Raises UsageError if no rank of this run is selected.
    """
    if chosen == ALL:
        return True
    world_size = rank.world_size or 1
    if not chosen.selected_from(world_size):
        there = "one rank, 0" if world_size == 1 else f"{world_size} ranks, 0 to {world_size - 1}"
        raise UsageError(
            f"--ranks selects no rank of this run, which has {there}", slug="no-such-rank"
        )
    return (rank.number or 0) in chosen


def exec_unprofiled(workload: Workload) -> NoReturn:
    """Replace this process with the workload; does not return.

    Raises UsageError if the workload cannot be started.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, full, or None
            stream.flush()
    path = Path(workload.target)
    # This interpreter with the options it was started with (-X, -W, -u, ...).
    options: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
    command = [sys.executable, *options, *(["-m"] if workload.is_module else []), workload.target]
    is_script = path.suffix in (".py", ".pyw")
    if not (workload.is_module or is_script) and path.is_file() and os.access(path, os.X_OK):
        command = [str(path.absolute())]
    with system_errors(UsageError, f"cannot start {command[0]}", slug="cannot-start"):
        os.execv(command[0], [*command, *workload.arguments])


_FILE_NAMES = {RUN_TIME: "run_time", MEMORY: "memory"}


def default_directory(target: str, is_module: bool, rank: Rank) -> Path:
    """Return the default directory of the reports, the same for all ranks of a job.

    The name is `uprof_<script>_<timestamp>` with the start time of the launcher. Ranks on several
    hosts have no common start time; they use the job name. A number follows if the directory is
    already in use.
    """
    stem = target.rpartition(".")[2] if is_module else Path(target).stem
    if rank.one_host or rank.job is None:
        started = datetime.now() if not rank.suffix else _parent_start() or datetime.now()
        name = f"uprof_{stem}_{started:%Y%m%d_%H%M%S}"
        if rank.suffix:
            return Path(name)  # Another rank may have created it.
        return next(one for one in _numbered(name) if not one.exists())
    from unified_prof.sqlite.run_folder import has_entry

    return next(
        one
        for one in _numbered(f"uprof_{stem}_{rank.job}")
        if not has_entry(attempt_directory(one, rank), rank.number or 0)
    )


def _numbered(name: str) -> Iterator[Path]:
    """Yield a name, then the name with 2, 3, and so on."""
    yield Path(name)
    yield from (Path(f"{name}_{number}") for number in count(2))


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


@contextmanager
def output_directory(path: Path) -> Iterator[Path]:
    """Create `path`, check that it is writable, and remove it afterwards if it is empty.

    Partial files of killed commands are removed: if names contain the time, nothing else does.
    Raises OutputError if the directory cannot be created or written to.
    """
    created = [parent for parent in (path, *path.parents) if not os.path.lexists(parent)]
    try:
        make_directory(path)
        probe = path / f".uprof.{os.getpid()}.probe"
        with output_errors(path / "reports"):
            try:
                probe.write_bytes(b"uprof")
            finally:
                probe.unlink(missing_ok=True)
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
