"""Runs one command with one fault and checks what it leaves."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import ROOT
from tests.faults import commands, kinds
from tests.faults.commands import Command
from tests.faults.kinds import Fault, Launch, Reference

# A command that takes longer than this hangs.
PATIENCE_S = 400
# Time in which the processes that a command has started must end after it.
ORPHANS_S = 15
# Never in the messages of a command.
FORBIDDEN = ("Traceback", "internal error", "Exception ignored", "resource_tracker", "distributed.")


@dataclass(slots=True)
class Outcome:
    """What a trial found."""

    command: str
    fault: str
    seed: int
    code: int | None = None
    # The command met the fault while it ran.
    struck: bool = False
    failures: list[str] = field(default_factory=list)
    message: str = ""


class Session:
    """Inputs and references that all trials share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.inputs = root / "in"
        commands.make_inputs(self.inputs, self._plain)
        self.hashes = _hashes(self.inputs)
        self.can_mount = kinds.can_mount(_new(root / "mount"))
        self._references: dict[str, Reference] = {}
        self._number = 0

    def _plain(self, words: list[str], folder: Path) -> None:
        subprocess.run([*UPROF, *words], cwd=folder, check=True, timeout=PATIENCE_S)

    def _folders(self, command: Command) -> Launch:
        """Return a launch in new directories."""
        self._number += 1
        place = _new(self.root / f"{self._number}")
        folder, tmp = _new(place / "out"), _new(place / "tmp")
        commands.copy_changed(command, self.inputs, folder)
        path = os.pathsep.join([str(Path(__file__).parent / "child"), str(ROOT)])
        return Launch(
            folder,
            tmp,
            {
                **os.environ,
                "PATH": os.pathsep.join([str(self.inputs / "bin"), os.environ["PATH"]]),
                "PYTHONPATH": path,
                "TMPDIR": str(tmp),
                "HOME": str(_new(place / "home")),
                "XDG_CACHE_HOME": str(place / "home"),
                "FAULT_TRIAL": f"{self.root}-{self._number}",
                "FAULT_ROOT": str(self.root),
                "FAULT_STRUCK": str(place / "struck"),
            },
        )

    def reference(self, command: Command) -> Reference:
        """Run the command without faults, once, and return its figures."""
        if command.name not in self._references:
            launch = self._folders(command)
            counted = launch.tmp.with_name("events")
            launch.plan["count"] = str(counted)
            peak = descriptors = 0
            process = _start(launch, command.words(self.inputs))
            while process.poll() is None:
                peak = max(peak, _address_space(process.pid))
                with suppress(OSError):
                    now = len([*Path(f"/proc/{process.pid}/fd").iterdir()])
                    descriptors = max(descriptors, now)
                time.sleep(0.005)
            seconds = time.time() - launch.tmp.with_name("started").stat().st_mtime
            error = launch.tmp.with_name("stderr").read_text()
            assert process.returncode in command.success, error
            outputs = [path for path in launch.folder.rglob("*") if path.is_file()]
            sizes: dict[str, set[object]] = {}
            for path in outputs if command.is_constant else ():
                sizes.setdefault(path.suffix, set()).add(commands.size_of(path))
            for name, _ in command.changes if command.is_constant else ():
                sizes[Path(name).suffix].add(commands.size_of(self.inputs / name))
            streams = {1: launch.tmp.with_name("stdout"), 2: launch.tmp.with_name("stderr")}
            self._references[command.name] = Reference(
                seconds,
                counted.stat().st_size,
                peak,
                descriptors,
                max((path.stat().st_size for path in outputs), default=0),
                frozenset(number for number, path in streams.items() if path.stat().st_size),
                counted.with_name("events.tmp").exists(),
                sizes,
            )
            shutil.rmtree(launch.folder.parent)
        return self._references[command.name]

    def run(self, command: Command, fault: Fault, seed: int) -> Outcome:
        """Run one trial."""
        chance = random.Random(seed)
        outcome = Outcome(command.name, fault.name, seed)
        reference = self.reference(command)
        launch = self._folders(command)
        old = command.is_file and chance.random() < 0.3
        target = launch.folder / command.output if old else None
        words = command.words(self.inputs)
        if target is not None:
            target.write_bytes(b"old\n")
            words = command.replacing(words)
        fault.prepare(launch, reference, chance)
        check = _Check(outcome, launch, target, reference.sizes)
        try:
            self._first_run(command, fault, launch, words, check)
            for mount in launch.mounts:
                kinds.mount("-o", "remount,rw,size=256m", str(mount))
            if fault.is_repaired:
                self._next_run(command, launch, check)
            check.that(_hashes(self.inputs) == self.hashes, "an input has changed")
        finally:
            for mount in launch.mounts:
                subprocess.run(["umount", "-l", mount], check=False, timeout=PATIENCE_S)
            if not outcome.failures:
                shutil.rmtree(launch.folder.parent, ignore_errors=True)
        return outcome

    def _first_run(
        self, command: Command, fault: Fault, launch: Launch, words: list[str], check: _Check
    ) -> None:
        outcome = check.outcome
        process = _start(launch, words)
        if launch.kill is not None:
            number, after, to_group = launch.kill
            started = launch.tmp.with_name("started")
            while not started.exists() and process.poll() is None:
                time.sleep(0.002)
            with suppress(subprocess.TimeoutExpired):
                process.wait(after)
            if process.poll() is None:
                outcome.struck = True
                (os.killpg if to_group else os.kill)(process.pid, number)
        code = check.end_of(process)
        outcome.code = code
        outcome.struck |= launch.strikes or code not in command.success
        outcome.struck |= launch.tmp.with_name("struck").exists()
        allowed = {*command.success, *command.run_codes, *fault.codes}
        allowed |= {*command.codes} if fault.command_codes else set()
        check.that(code in allowed, f"exit code {code}")
        check.messages()
        check.outputs(partials=fault.leaves_partials)

    def _next_run(self, command: Command, launch: Launch, check: _Check) -> None:
        """The same command without the fault completes the outputs and removes left-overs."""
        launch.plan, launch.before, launch.streams = {}, [], {}
        launch.environment["TMPDIR"] = str(launch.tmp)
        words = command.replacing(command.words(self.inputs))
        code = check.end_of(_start(launch, words))
        check.that(code in command.success, f"next run: exit code {code}")
        check.messages()
        check.old = None
        check.outputs(partials=False)


@dataclass(slots=True)
class _Check:
    """Collects failures of a trial."""

    outcome: Outcome
    launch: Launch
    # An output that existed before with the content b"old\n".
    old: Path | None
    sizes: Mapping[str, Set[object]]

    def that(self, holds: bool, failure: str) -> None:
        """Add a failure if a condition does not hold."""
        if not holds:
            self.outcome.failures.append(failure)

    def end_of(self, process: subprocess.Popen[bytes]) -> int | None:
        """Wait for a command and everything it started; return its exit code."""
        try:
            code: int | None = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
            self.that(False, "hangs")
            process.kill()
            process.wait()
        trial = self.launch.environment["FAULT_TRIAL"]
        end = time.monotonic() + ORPHANS_S
        while (left := _processes_of(trial)) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in left:
            line = _read(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode()[-120:]
            self.that(False, f"left a process: {line}")
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return code

    def messages(self) -> None:
        """Check stderr, if it was written to a file."""
        text = self.launch.tmp.with_name("stderr").read_text(errors="replace")
        self.outcome.message += text[-2000:]
        for word in FORBIDDEN:
            self.that(word not in text, f"stderr has {word!r}")

    def outputs(self, *, partials: bool) -> None:
        """Check that all files are complete and none is temporary."""
        for path in [*self.launch.folder.rglob("*"), *self.launch.tmp.rglob("*")]:
            name = path.name
            if path.is_relative_to(self.launch.tmp):
                self.that(partials or not name.startswith("uprof"), f"left {name} in TMPDIR")
            elif ".partial" in name:
                self.that(partials, f"left {name}")
            elif path.is_file() and not (path == self.old and path.read_bytes() == b"old\n"):
                why = commands.damage(path, self.sizes.get(path.suffix))
                self.that(not why, f"{path.relative_to(self.launch.folder)} is incomplete: {why}")


UPROF = [sys.executable, "-m", "unified_prof"]


def _start(launch: Launch, words: list[str]) -> subprocess.Popen[bytes]:
    environment = {**launch.environment, "FAULT_STARTED": str(launch.tmp.with_name("started"))}
    if launch.plan:
        environment = {**environment, "FAULT_PLAN": json.dumps(launch.plan)}
    place = launch.tmp.parent
    files = {0: Path(os.devnull), 1: place / "stdout", 2: place / "stderr"}
    files |= {number: Path(name) for number, name in launch.streams.items() if name is not None}
    closed = [number for number, name in launch.streams.items() if name is None]
    (place / "stderr").write_bytes(b"")

    def before() -> None:
        for step in launch.before:
            step()
        for number in closed:
            os.close(number)

    with files[0].open("rb") as stdin, files[1].open("wb") as stdout, files[2].open("wb") as stderr:
        return subprocess.Popen(
            [*UPROF, *words],
            cwd=launch.folder,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=before,
            start_new_session=True,
        )


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _hashes(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _address_space(pid: int) -> int:
    """Return the largest address space of a process in bytes, 0 if it has ended."""
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith(b"VmPeak:"):
            return int(line.split()[1]) * 1024
    return 0


def _processes_of(trial: str) -> list[int]:
    """Return the processes that a trial has started and that have not ended."""
    mark = f"FAULT_TRIAL={trial}\0".encode()
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if mark in _read(folder / "environ")
    ]
