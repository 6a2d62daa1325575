"""CPU and CUDA backends: run the workload in this process under the tracker.

AMD GPUs are CUDA devices in torch, too. Facts that can explain differences between runs, such as
clocks and throttling, are read from the driver library through `pynvml` (package nvidia-ml-py) if
it is installed. It does not initialize the CUDA runtime, so the workload can still fork.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from unified_prof.backends.registry import check_options
from unified_prof.base.process_tuning import environment
from unified_prof.base.run_spec import MEMORY, RUN_TIME, TIMELINE, Capture, Recording, RunSpec
from unified_prof.errors import CaptureError, MeasuringError, UsageError
from unified_prof.schema.catalogue import MSPROF, resolve
from unified_prof.tracking.device import driver_library_only, run_in_child
from unified_prof.tracking.timeline import DETAILS, USUAL_DETAILS, TimelineInstrument

DEVICE_VARIABLE = "UPROF_DEVICE"
TRACE_NAME = "timeline.json.gz"
TIMELINE_DETAIL = "timeline_detail"
_MARK_ITERATIONS = "mark the iterations with unified_prof.step()"
_TIMELINE_OPTIONS = (TIMELINE_DETAIL, "schema")


def torch_missing_reason() -> str | None:
    """Return why torch cannot be imported, None if it can."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as err:
        if err.name == "torch":
            return "PyTorch is not installed"
        return f"PyTorch is installed but requires {err.name}"
    except Exception as err:  # a broken installation can raise anything
        return f"PyTorch is installed but cannot be imported ({err})"
    return None


@contextmanager
def workload_environment(device: str) -> Iterator[None]:
    """Set UPROF_DEVICE during the block; restore the working directory and output streams after it.

    The workload may change them, but uprof needs them to write its results.
    """
    folder, stdout, stderr = Path.cwd(), sys.stdout, sys.stderr
    try:
        with environment(DEVICE_VARIABLE, device):
            yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        with suppress(OSError):  # the directory is gone
            os.chdir(folder)


def _end_forked_child(exit_code: int) -> NoReturn:
    """End a forked child of the workload at its end; the parent writes the report."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


class TorchBackend(ABC):
    """Tracks a workload in this process on one type of torch device."""

    name: str
    reports: tuple[str, ...] = (RUN_TIME, MEMORY, TIMELINE)
    default_reports: tuple[str, ...] = (RUN_TIME, MEMORY)

    def unavailable_reason(self) -> str | None:
        """Return why this backend cannot run here, None if it can; accesses the device."""
        return torch_missing_reason() or self.device_missing_reason()

    @abstractmethod
    def device_missing_reason(self) -> str | None:
        """Return why torch cannot use the device, None if it can."""

    def facts(self, when: str) -> dict[str, str]:
        """Return facts about the device that explain differences between runs.

        `when` is `before` or `after`, part of the names of facts that can change.
        """
        return {}

    def run(self, spec: RunSpec) -> Capture:
        """Run the workload and measure it; see `tracking.workload.run_workload`."""
        check_options(self.name, spec, _TIMELINE_OPTIONS)
        unused = [name for name in _TIMELINE_OPTIONS if name in spec.options]
        if unused and TIMELINE not in spec.reports:
            raise UsageError(
                f"--{unused[0].replace('_', '-')} applies to timelines, but none is requested",
                hint="add --report timeline",
                slug="option-without-effect",
            )
        timeline = self._timeline(spec)
        from unified_prof.tracking.workload import run_workload

        before = self.facts("before")

        def with_facts(capture: Capture) -> Capture:
            return replace(capture, facts={**capture.facts, **before, **self.facts("after")})

        def measured(capture: Capture) -> None:
            spec.on_measured(with_facts(_with_timeline(capture, timeline)))

        process = os.getpid()
        try:
            with workload_environment(self.name):
                capture = run_workload(
                    self.name,
                    replace(spec, on_measured=measured),
                    instruments=[timeline] if timeline else [],
                )
        except CaptureError as err:
            if os.getpid() != process:
                _end_forked_child(0)
            if timeline is None:
                raise
            whole = timeline.whole_program
            reasons = [None if whole.is_all else str(err), timeline.remarks]
            told = "; ".join(filter(None, reasons)) or str(err)
            if timeline.written:
                # Complete iterations are in the trace, even if other measurements failed.
                return with_facts(
                    Capture(0, recordings=_recordings(timeline), failure=told, facts=timeline.facts)
                )
            hint = _MARK_ITERATIONS if isinstance(err, MeasuringError) else err.hint
            raise type(err)(told, hint=hint) from err
        if os.getpid() != process:
            _end_forked_child(capture.exit_code)
        return with_facts(_with_timeline(capture, timeline))

    def _timeline(self, spec: RunSpec) -> TimelineInstrument | None:
        """Return the instrument for the timeline, None if no timeline is requested.

        Raises UsageError if a detail or the schema is unknown.
        """
        if TIMELINE not in spec.reports:
            return None
        resolve(MSPROF, str(spec.options.get("schema") or "documented"))
        details = spec.options.get(TIMELINE_DETAIL, USUAL_DETAILS)
        names = details if isinstance(details, tuple) else (str(details),)
        if unknown := [name for name in names if name not in DETAILS]:
            raise UsageError(
                f"unknown timeline detail {unknown[0]!r}",
                hint=f"known: {', '.join(DETAILS)}",
                slug="wrong-option-value",
            )
        return TimelineInstrument(spec.output_dir / TRACE_NAME, self.name, names)


def _with_timeline(capture: Capture, timeline: TimelineInstrument | None) -> Capture:
    """Return `capture` with the recordings and remarks of the timeline."""
    failures = [capture.failure, timeline.remarks if timeline else None]
    return replace(
        capture,
        recordings=_recordings(timeline),
        failure="; ".join(filter(None, failures)) or None,
        facts={**capture.facts, **(timeline.facts if timeline else {})},
    )


def _recordings(timeline: TimelineInstrument | None) -> tuple[Recording, ...]:
    return (Recording("kineto", timeline.path),) if timeline and timeline.written else ()


class CpuBackend(TorchBackend):
    """Tracks operations on the CPU with a monotonic clock."""

    name = "cpu"

    def device_missing_reason(self) -> str | None:
        """Return None: the CPU is always available."""
        return None


_NONE_SHOWN = "the driver reports no CUDA device"


class CudaBackend(TorchBackend):
    """Tracks operations on the CUDA devices that a workload uses, with device events."""

    name = "cuda"

    def facts(self, when: str) -> dict[str, str]:
        """Return facts about driver, libraries, clocks and settings; see `TorchBackend.facts`."""
        return {**torch_facts(), **driver_facts(when)}

    def device_missing_reason(self) -> str | None:
        """Return why no CUDA device is available, with the driver's message if there is one.

        Only the driver library is queried: the workload runs in this process, and after the CUDA
        runtime is initialized, forked child processes cannot use a device.
        """
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            return f"this PyTorch ({torch.__version__}) is built without CUDA"
        if torch.cuda.is_initialized():
            return None
        counted = _devices_in_library()
        if counted < 0:  # no such library, or it does not work: ask the runtime
            return run_in_child(_runtime_reason) or None
        if counted:
            return None
        return run_in_child(_runtime_reason) or _NONE_SHOWN


def _devices_in_library() -> int:
    """Return the number of devices that the driver library reports, -1 if it is not available."""
    import torch

    with driver_library_only(), suppress(Exception):
        count: Callable[[], int] = torch.cuda._device_count_nvml
        if torch.version.hip:
            count = getattr(torch.cuda, "_device_count_amdsmi", count)
        return int(count())
    return -1


def _runtime_reason() -> str:
    """Return why the CUDA runtime has no device, an empty string if it has one."""
    import torch

    try:
        torch.cuda.init()
        return "" if torch.cuda.device_count() > 0 else _NONE_SHOWN
    except Exception as err:  # any error of the driver
        return f"no CUDA device responds ({str(err).splitlines()[0]})"


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# Reasons for reduced clocks by NVML's bits; idleness (1) is not listed.
_THROTTLED = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


def torch_facts() -> dict[str, str]:
    """Return torch's facts: libraries, devices, and settings that change times."""
    import torch

    facts = {f"environment {name}": os.environ[name] for name in _VISIBLE if name in os.environ}
    asked: dict[str, Callable[[], Any]] = {
        "device_runtime": lambda: torch.version.cuda or f"ROCm {torch.version.hip}",
        "cudnn": torch.backends.cudnn.version,
        "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
        "tf32_matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": lambda: torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    }
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            asked[f"compute_capability {device}"] = partial(_capability, device)
    for name, ask in asked.items():
        with suppress(Exception):  # not in this version or build of torch
            if (answer := ask()) is not None:
                facts[name] = str(answer)
    return facts


def _capability(device: int) -> str:
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability(device)))


def driver_facts(when: str) -> dict[str, str]:
    """Return facts from the driver library; names of facts that can change contain `when`."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return {}
    facts: dict[str, str] = {}
    try:
        with suppress(Exception):
            version = nvml.nvmlSystemGetDriverVersion()
            facts["device_driver"] = version.decode() if isinstance(version, bytes) else version
        for device, handle in _handles(nvml):
            facts |= _device_facts(nvml, handle, device, when)
    finally:
        with suppress(Exception):
            nvml.nvmlShutdown()
    return facts


def _device_facts(nvml: Any, handle: Any, device: int, when: str) -> dict[str, str]:
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    asked: dict[str, Callable[[], str]] = {
        f"mig {device}": lambda: "on" if nvml.nvmlDeviceGetMigMode(handle)[0] else "off",
        f"power_limit_w {device}": lambda: str(nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        f"sm_clock_mhz {when} {device}": lambda: str(nvml.nvmlDeviceGetClockInfo(handle, sm)),
        f"memory_clock_mhz {when} {device}": lambda: str(
            nvml.nvmlDeviceGetClockInfo(handle, memory)
        ),
        f"temperature_c {when} {device}": lambda: str(nvml.nvmlDeviceGetTemperature(handle, 0)),
        f"throttled {when} {device}": lambda: throttled(
            int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        ),
    }
    facts = {}
    for name, ask in asked.items():
        with suppress(Exception):  # not supported by this card, or not permitted
            facts[name] = ask()
    return facts


def throttled(reasons: int) -> str:
    """Return the reasons for reduced clocks, `no` if there are none."""
    names = [name for bit, name in _THROTTLED.items() if reasons & bit]
    return ", ".join(names) or "no"


def _handles(nvml: Any) -> Iterator[tuple[int, Any]]:
    """Yield the devices visible to this process, with their numbers in torch."""
    visible: list[Any] = list(range(nvml.nvmlDeviceGetCount()))
    torch = sys.modules.get("torch")
    with suppress(Exception):
        assert torch is not None
        visible = torch.cuda._parse_visible_devices()
    for device, which in enumerate(visible):
        with suppress(Exception):
            if isinstance(which, str):
                yield device, nvml.nvmlDeviceGetHandleByUUID(which)
            elif which < nvml.nvmlDeviceGetCount():
                yield device, nvml.nvmlDeviceGetHandleByIndex(which)
