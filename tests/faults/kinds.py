"""Faults: signals, full and read-only disks, limits, closed streams, missing directories."""

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures of a command without faults."""

    seconds: float
    # Counted by child/sitecustomize.py.
    events: int
    peak_address_space: int
    # Open at the same time, in any of the samples.
    descriptors: int
    output_bytes: int
    # Descriptors of the standard streams that the command writes.
    streams: frozenset[int] = frozenset()
    # True if the command makes temporary files in TMPDIR.
    uses_tmpdir: bool = False
    # Suffix -> sizes of complete outputs, as measured by `commands.size_of`.
    sizes: Mapping[str, Set[object]] = field(default_factory=dict)


@dataclass(slots=True)
class Launch:
    """How to start a command."""

    folder: Path  # current directory, with the outputs
    tmp: Path
    environment: dict[str, str]
    plan: dict[str, object] = field(default_factory=dict)
    # Called in the child before the command starts.
    before: list[Callable[[], object]] = field(default_factory=list)
    # Descriptor -> file; None closes it.
    streams: dict[int, str | None] = field(default_factory=dict)
    # Signal, seconds after the start, and whether the whole process group gets it.
    kill: tuple[signal.Signals, float, bool] | None = None
    mounts: list[Path] = field(default_factory=list)
    # True if the command is known to meet the fault, whatever its exit code.
    strikes: bool = False


Prepare = Callable[[Launch, Reference, random.Random], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the exit codes that a command may return besides that of success."""

    name: str
    group: str
    prepare: Prepare
    codes: tuple[int, ...] = ()
    # True if the fault may leave temporary files until the next run.
    leaves_partials: bool = False
    # True if the exit codes that the command documents are accepted as well.
    command_codes: bool = False
    needs_mount: bool = False
    weight: int = 3

    @property
    def is_repaired(self) -> bool:
        """True if the trial also runs the command again, without the fault."""
        return self.weight > 3 or self.needs_mount


def _signal(number: signal.Signals) -> Prepare:
    def prepare(launch: Launch, reference: Reference, chance: random.Random) -> None:
        """Half of the signals come at a random time, half before a random operation on a file."""
        if chance.random() < 0.5:
            launch.plan |= {"event": chance.randint(1, reference.events), "signal": int(number)}
            return
        to_group = number in (signal.SIGINT, signal.SIGHUP) and chance.random() < 0.5
        launch.kill = number, chance.uniform(0, 1.1 * reference.seconds), to_group

    return prepare


def mount(*arguments: str) -> None:
    """Call the command `mount`."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True, timeout=400)


def _mounted(folder: Path, options: str, launch: Launch) -> None:
    """Move a directory to a file system of its own."""
    kept = folder.with_name(f"{folder.name}.kept")
    folder.rename(kept)
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=256m,mode=700", "none", str(folder))
    launch.mounts.append(folder)
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    shutil.rmtree(kept)
    mount("-o", f"remount,{options}", str(folder))


def _full_disk(launch: Launch, reference: Reference, chance: random.Random) -> None:
    used = sum(path.stat().st_blocks * 512 for path in launch.folder.rglob("*"))
    free = chance.randrange(max(reference.output_bytes, 4096))
    size = used + (free // 4096) * 4096 + 4096
    _mounted(launch.folder, f"size={size}", launch)


def _read_only(launch: Launch, reference: Reference, chance: random.Random) -> None:
    _mounted(launch.folder, "ro", launch)


def _full_tmpdir(launch: Launch, reference: Reference, chance: random.Random) -> None:
    launch.strikes = reference.uses_tmpdir
    _mounted(launch.tmp, "size=4096", launch)


def _no_tmpdir(launch: Launch, reference: Reference, chance: random.Random) -> None:
    launch.plan["no tmpdir"] = True
    launch.environment["TMPDIR"] = "/nonexistent"


def _symlinked_tmpdir(launch: Launch, reference: Reference, chance: random.Random) -> None:
    link = launch.tmp.with_name("link")
    link.symlink_to(launch.tmp, target_is_directory=True)
    launch.environment["TMPDIR"] = str(link)
    launch.strikes = reference.uses_tmpdir


def _limit(kind: int, value: Callable[[Reference, random.Random], int]) -> Prepare:
    def prepare(launch: Launch, reference: Reference, chance: random.Random) -> None:
        limit = value(reference, chance)
        launch.before.append(lambda: resource.setrlimit(kind, (limit, limit)))

    return prepare


def _streams(**streams: str) -> Prepare:
    numbers = {"stdin": 0, "stdout": 1, "stderr": 2}

    def prepare(launch: Launch, reference: Reference, chance: random.Random) -> None:
        for name, target in streams.items():
            launch.streams[numbers[name]] = target or None
        # Closed descriptors are taken by the next files that a command opens.
        launch.strikes = not all(streams.values()) or bool(reference.streams & {*launch.streams})

    return prepare


def _deleted_directory(launch: Launch, reference: Reference, chance: random.Random) -> None:
    gone = launch.tmp.with_name("gone")

    def enter() -> None:
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()

    launch.before.append(enter)
    launch.strikes = True


def _clock_set_back(launch: Launch, reference: Reference, chance: random.Random) -> None:
    launch.plan["clock"] = chance.randrange(4)


FAULTS = (
    Fault("KILL", "signals", _signal(signal.SIGKILL), (-9,), leaves_partials=True, weight=8),
    Fault("TERM", "signals", _signal(signal.SIGTERM), (-15, 143), weight=8),
    Fault("HUP", "signals", _signal(signal.SIGHUP), (-1, 129), weight=8),
    Fault("INT", "signals", _signal(signal.SIGINT), (-2, 130), weight=8),
    Fault("full disk", "disk", _full_disk, (9,), needs_mount=True),
    Fault("read-only directory", "disk", _read_only, (9,), needs_mount=True),
    Fault("full TMPDIR", "TMPDIR", _full_tmpdir, (9,), needs_mount=True),
    Fault("no TMPDIR", "TMPDIR", _no_tmpdir, (9,)),
    Fault("TMPDIR is a link", "TMPDIR", _symlinked_tmpdir),
    Fault(
        "RLIMIT_AS",
        "limits",
        _limit(
            resource.RLIMIT_AS,
            lambda reference, chance: int(reference.peak_address_space * chance.uniform(0.6, 1.05)),
        ),
        (71,),
        command_codes=True,
    ),
    Fault(
        "RLIMIT_NOFILE",
        "limits",
        _limit(
            resource.RLIMIT_NOFILE,
            # Python itself needs five to start.
            lambda reference, chance: chance.randrange(5, max(7, reference.descriptors)),
        ),
        (9, 71),
        command_codes=True,
    ),
    Fault(
        "RLIMIT_FSIZE",
        "limits",
        _limit(
            resource.RLIMIT_FSIZE,
            lambda reference, chance: chance.randrange(max(reference.output_bytes, 4096)),
        ),
        (9,),
    ),
    Fault("closed stdout", "streams", _streams(stdout=""), (9,)),
    Fault("full stdout", "streams", _streams(stdout="/dev/full"), (9,)),
    Fault("closed stderr", "streams", _streams(stderr="")),
    Fault("full stderr", "streams", _streams(stderr="/dev/full")),
    Fault("all streams closed", "streams", _streams(stdin="", stdout="", stderr=""), (9,)),
    # 71: processes cannot be started without a current directory.
    Fault("deleted directory", "other", _deleted_directory, (71,), command_codes=True),
    Fault("clock set back", "other", _clock_set_back),
)


def can_mount(folder: Path) -> bool:
    """Return True if this user may mount a file system."""
    try:
        mount("-t", "tmpfs", "none", str(folder))
    except (OSError, subprocess.SubprocessError):
        return False
    subprocess.run(["umount", folder], check=True, timeout=400)
    return True
