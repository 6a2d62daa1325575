"""NPU backend: profiles Huawei Ascend NPUs with CANN's msprof command.

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
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from unified_prof.backends import cann, msprof_outcome
from unified_prof.backends.cann import DeferredOutput, Feed, ProcessResult, run_group
from unified_prof.backends.msprof_outcome import STARTED_FILE, Exporter, WorkloadWatch
from unified_prof.backends.msprof_plan import BY_NAME, Offer, Plan, detect_offer, plan
from unified_prof.backends.npu_launcher import MeasurementRelay, Result, read_result
from unified_prof.backends.registry import check_options
from unified_prof.backends.torch_device import DEVICE_VARIABLE
from unified_prof.base.redaction import redact_arguments
from unified_prof.base.run_spec import MEMORY, RUN_TIME, TIMELINE, Capture, Recording, RunSpec
from unified_prof.base.text import printable
from unified_prof.errors import DeviceUnavailableError, OutputError, UsageError, system_errors
from unified_prof.schema.catalogue import MSPROF, resolve

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_PYTHON, _TYPE = "python-path", "type"
# Options that only save work; old releases of msprof may reject them.
OWN_OPTIONS = frozenset({_PYTHON, _TYPE})
_SCRIPT_NAME = "workload.sh"
_JOB_NAME = "job.json"


def command_line(
    msprof: Path, arguments: Sequence[str], output: Path, application: Sequence[str], offer: Offer
) -> list[str]:
    """Return the command; options have the form `--name=value`, the only one that msprof accepts.

    msprof would export its recording with a Python program that is much slower than uprof. The only
    way to skip the export is to pass a no-op program as the Python interpreter.
    """
    own = [f"--output={output}"]
    for path in ("/bin/true", "/usr/bin/true", shutil.which("true") or ""):
        is_program = path and os.access(path, os.X_OK)
        if is_program and offer.takes(_PYTHON) and not {*os.path.realpath(path)} & {*" \n"}:
            own.insert(0, f"--{_PYTHON}={path}")
            break
    if offer.takes(_TYPE):
        own.append(f"--{_TYPE}=db")
    return [str(msprof), *own, *arguments, *application]


def create_safe_folder() -> Path:
    """Create a directory whose path msprof handles correctly.

    Raises OutputError if the directory cannot be created.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        real = os.path.realpath(parent)
        if {*real} & cann.FORBIDDEN_IN_PATHS or " " in real:
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
            with system_errors(
                OutputError,
                f"cannot move {recorded} to {output}",
                hint="the recording stays where it is; convert it with `uprof convert`",
                slug="cannot-move",
            ):
                shutil.move(recorded, output / recorded.name)
        shutil.rmtree(folder, ignore_errors=True)


def write_script(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write the script that runs `words` with `environment` added to its environment.

    The script stores its process id and changes to the working directory of uprof.
    """
    lines = [
        "#!/bin/sh",
        f"echo $$ >{shlex.quote(str(folder / STARTED_FILE))}",
        f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        f"exec {shlex.join(words)}",
    ]
    path = folder / _SCRIPT_NAME
    path.write_bytes(os.fsencode("\n".join([*lines, ""])))
    path.chmod(0o700)


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

    Raises CaptureError if the script defines some of the providers, but not all.
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

    `streams` maps output descriptors of the workload to inherited descriptors to use instead; if
    `tracked`, the workload runs under the tracker.
    """
    job: dict[str, Any] = {"spec": spec.as_data(), "tracked": tracked, "streams": {}}
    for number, inherited in streams.items():
        status = os.fstat(inherited)
        job["streams"][number] = {"fd": inherited, "file": [status.st_dev, status.st_ino]}
    (folder / _JOB_NAME).write_text(json.dumps(job), encoding="utf-8")


EXPORTERS = ("uprof", "native")
_SHOWN_FOLDER = Path("/tmp/uprof_XXXXXXXX")
_OTHER_OPTIONS = frozenset({"preset", "exporter", "schema", "msprof_arg", "pid", "npu_chip"})


class _Attempt(Struct, frozen=True):
    """Result of starting msprof once."""

    ended: ProcessResult
    result: Result
    observed: int | None  # Exit code of the workload process, None if unknown.
    started: bool  # True if the workload has started.
    report_error: Exception | None = None


class NpuBackend:
    """Runs a workload as msprof's application.

    Options (`RunSpec.options`): those of `msprof_plan` by name; `preset`; `npu_chip`, which
    overrides the detected chip; `msprof_arg`, a sequence of further arguments; `pid`, a running
    process to attach to instead of starting a workload; `exporter` and `schema`, which the database
    build uses.
    """

    name = "npu"
    reports: tuple[str, ...] = (TIMELINE, RUN_TIME, MEMORY)
    default_reports: tuple[str, ...] = (TIMELINE,)

    def unavailable_reason(self) -> str | None:
        """Return why msprof cannot run here, None if it can."""
        if cann.find_msprof() is None:
            return (
                "msprof was not found on PATH, in ASCEND_TOOLKIT_HOME, in "
                "ASCEND_HOME_PATH or in the default directories (install CANN and source "
                "its set_env.sh)"
            )
        return None

    def doubt(self) -> str | None:
        """Return why `auto` should not choose this backend (no visible NPU), otherwise None."""
        names = (path.name.removeprefix("davinci") for path in Path("/dev").glob("davinci*"))
        is_visible = any(map(str.isdecimal, names))
        return None if is_visible else "no NPU is visible (no /dev/davinci0 ...)"

    def describe(self, spec: RunSpec) -> list[str]:
        """Return the lines for `--dry-run`: the msprof command, and the command in its script."""
        plan, offer = _check(spec)
        lines = [shlex.join(self._command(spec, plan, offer, _SHOWN_FOLDER))]
        if plan.dropped:
            lines.append(f"# {_without(plan, offer)}")
        if not spec.options.get("pid"):
            words = [spec.target, *spec.arguments]
            if spec.is_module:
                words.insert(0, "-m")
            lines.append(
                f"# {_SHOWN_FOLDER}/workload.sh runs: {shlex.join(redact_arguments(words))}"
            )
        return lines

    def run(self, spec: RunSpec) -> Capture:
        """Run the workload under msprof, or attach to a running process; return the recordings.

        If msprof rejects an option of the preset, it is started again without the option; the
        workload has not started at that point.

        Raises:
            UsageError: msprof would reject an option or a path.
            DeviceUnavailableError: msprof cannot be started.
            CaptureError: The providers of the workload are invalid. If nothing was recorded, no
                error is raised, but `Capture.failure` is set.
        """
        plan, offer = _check(spec)
        if reason := self.unavailable_reason():
            raise DeviceUnavailableError(reason, slug="backend-unavailable")
        output = spec.output_dir.resolve()
        with recording_directory(output) as place:
            recording = replace(spec, output_dir=place)
            before = msprof_outcome.find(place)
            while True:
                if plan.dropped:
                    spec.relay(f"uprof: {_without(plan, offer)}")
                attempt = self._attempt(recording, plan, offer)
                refused = _retriable_option(attempt.ended, plan)
                if refused is None or attempt.started or not offer.takes(refused):
                    break
                offer = offer.without(refused)
                plan = _plan(spec, offer)
            msprof_outcome.remove_record(place, attempt.ended.process)
            found = sorted(path.name for path in msprof_outcome.find(place) - before)
        ended, result = attempt.ended, attempt.result
        exit_code = msprof_outcome.workload_exit_code(result.exit_code, attempt.observed, ended)
        directories = [msprof_outcome.inspect(output / name) for name in found]
        exporter = Exporter(spec.relay)
        recordings = (
            Recording(
                "prof", one.path, native=one.native, export=partial(exporter.export, one.path)
            )
            for one in directories
        )
        facts = {
            "cann": cann.version(),
            "npu_chip": offer.chip,
            "msprof": printable(shlex.join(self._command(spec, plan, offer, _SHOWN_FOLDER))),
        }
        if plan.dropped:
            facts["msprof_left_out"] = ", ".join(plan.dropped)
        failure = msprof_outcome.describe_failure(ended, exit_code, directories)
        reasons = filter(None, (failure, result.failure, result.unmarked))
        return Capture(
            exit_code,
            result.tracked,
            tuple(recordings),
            failure="; ".join(reasons) or None,
            facts=facts,
            error=msprof_outcome.disk_error(ended, output) or attempt.report_error,
        )

    def _command(self, spec: RunSpec, plan: Plan, offer: Offer, folder: Path) -> list[str]:
        if pid := spec.options.get("pid"):
            application = ["--dynamic=on", f"--pid={pid}"]
        else:
            shell = next((name for name in ("bash", "sh") if shutil.which(name)), None)
            if shell is None:
                message = "msprof needs bash or sh, neither is on PATH"
                raise DeviceUnavailableError(message, slug="no-shell")
            application = [shell, str(folder / _SCRIPT_NAME)]
        return command_line(
            cann.find_msprof() or Path("msprof"),
            plan.arguments,
            spec.output_dir.resolve(),
            application,
            offer,
        )

    def _attempt(self, spec: RunSpec, plan: Plan, offer: Offer) -> _Attempt:
        folder = create_safe_folder()
        try:
            watch = WorkloadWatch(folder)
            progress = MeasurementRelay(folder, spec)
            said = DeferredOutput(spec.relay)
            attached = bool(spec.options.get("pid"))
            if attached:
                said.show()

            def tick(process: int) -> bool:
                if watch.started:
                    said.show()
                watch.look(process)
                progress.look()
                return watch.runs()

            command = self._command(spec, plan, offer, folder)
            environment = {**os.environ, DEVICE_VARIABLE: self.name}
            streams = {} if attached else {1: os.dup(1), 2: os.dup(2)}
            try:
                if attached:
                    duration = spec.options.get("duration")
                    feed = _start_and_stop(int(str(duration)) if duration else None)
                    ended = run_group(command, environment=environment, relay=said, feed=feed)
                else:
                    tracked = spec.asks_for_operations or has_providers(spec)
                    write_job(folder, spec, streams=streams, tracked=tracked)
                    words = workload_words(spec, folder)
                    write_script(folder, words, {DEVICE_VARIABLE: self.name})
                    ended = run_group(
                        command,
                        environment=environment,
                        inherited=tuple(streams.values()),
                        relay=said,
                        tick=tick,
                        workload_runs=watch.runs,
                    )
            finally:
                for descriptor in streams.values():
                    os.close(descriptor)
                started = watch.started
                if started:
                    said.show()
            if started or _retriable_option(ended, plan) is None:
                said.show()
            result = progress.completed(read_result(folder))
            return _Attempt(ended, result, watch.exit_code, started, progress.error)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _retriable_option(ended: ProcessResult, plan: Plan) -> str | None:
    """Return the rejected option if msprof can be started again without it, else None."""
    refused = msprof_outcome.refused_option(ended.lines)
    may_go = plan.optional | OWN_OPTIONS
    return refused if refused in may_go and ended.interrupted_by is None else None


def _check(spec: RunSpec) -> tuple[Plan, Offer]:
    """Check the options and paths before starting msprof; return the plan and the offer."""
    check_options(NpuBackend.name, spec, {*BY_NAME, *_OTHER_OPTIONS})
    exporter = spec.options.get("exporter", EXPORTERS[0])
    if exporter not in EXPORTERS:
        raise UsageError(
            f"unknown exporter {exporter!r}",
            hint=f"known: {', '.join(EXPORTERS)}",
            slug="wrong-npu-option",
        )
    resolve(MSPROF, str(spec.options.get("schema") or "documented"))
    cann.check_path(spec.output_dir.resolve(), "the output directory")
    if pid := spec.options.get("pid"):
        text = str(pid)
        if not (text.isascii() and text.isdecimal() and int(text) > 0):
            raise UsageError(f"--pid: expected a process id, found {text!r}", slug="cannot-attach")
        if not Path(f"/proc/{text}").is_dir() and Path("/proc").is_dir():
            raise UsageError(f"--pid {text}: no such process", slug="cannot-attach")
        if "delay" in spec.options:
            raise UsageError("--delay cannot be combined with --pid", slug="option-without-effect")
    else:
        _check_target(spec)
    name = spec.options.get("npu_chip")
    offer = detect_offer(None if name is None else str(name))
    if pid and not offer.takes("dynamic"):
        raise UsageError(
            f"--pid: msprof cannot attach to a process {offer.place}", slug="cannot-attach"
        )
    return _plan(spec, offer), offer


def _plan(spec: RunSpec, offer: Offer) -> Plan:
    options = {name: spec.options[name] for name in spec.options if name not in _OTHER_OPTIONS}
    if "preset" in spec.options:
        options["preset"] = spec.options["preset"]
    duration = options.pop("duration", None) if spec.options.get("pid") else None
    raw = spec.options.get("msprof_arg", ())
    assert isinstance(raw, tuple | list)
    if duration is not None:  # only checked: msprof receives the command on its standard input
        plan({"duration": duration}, offer=offer)
    return plan(options, raw=raw, offer=offer)


def _without(plan: Plan, offer: Offer) -> str:
    """Return a note about the omitted options of the preset."""
    what = ", ".join(plan.dropped)
    return f"--preset {plan.preset} without {what}: not supported by msprof {offer.place}"


def _check_target(spec: RunSpec) -> None:
    if spec.is_module:
        return
    path = Path(spec.target)
    if not path.is_file():
        found = "is a directory" if path.is_dir() else "does not exist"
        raise UsageError(f"{spec.target} {found}, expected a script", slug="no-script")
    if not os.access(path, os.R_OK):
        raise UsageError(f"no permission to read {spec.target}", slug="no-script")
    if spec.asks_for_operations and is_program(spec):
        raise UsageError(
            f"{spec.target} is not a Python script, so its operations cannot be tracked",
            hint="omit --report",
            slug="not-a-python-script",
        )


def _start_and_stop(duration_s: int | None) -> Feed:
    """Return a `feed` for `run_group` that starts and stops recording in attached mode."""

    def feed(stdin: IO[bytes], asked_to_end: threading.Event) -> None:
        with suppress(OSError):  # msprof has ended; its output is shown anyway
            stdin.write(b"start\n")
            stdin.flush()
            asked_to_end.wait(duration_s)
            stdin.write(b"stop\nquit\n")
            stdin.close()  # msprof sees a command behind another one only at the end of its input

    return feed
