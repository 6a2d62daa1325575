"""The test device as `torch.bench`, with the functions of `torch.cuda` that programs use."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.device import build

NAME_VARIABLE = "UPROF_BENCH_NAME"
"""Name of the device; torch allows only one additional device in a process."""
KERNEL_NS_VARIABLE = "UPROF_BENCH_KERNEL_NS"
_INSTALLED = Path(__file__).with_name("installed")
_library: Any = None


def environment(name: str = "bench", **settings: str) -> dict[str, str]:
    """Return the variables that give a process the device."""
    paths = [str(_INSTALLED), str(_INSTALLED.parents[2]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), NAME_VARIABLE: name, **settings}


def autoload() -> None:
    """Install the device while torch is imported; this is the entry point."""
    if NAME_VARIABLE in os.environ and build.why_not() is None:
        install(os.environ[NAME_VARIABLE])


def install(name: str = "bench") -> ModuleType:
    """Register the device with torch as `name`; return its torch module."""
    import torch

    global _library
    if _library is None:
        _library = ctypes.CDLL(str(build.library()), mode=ctypes.RTLD_GLOBAL)
        _declare(_library)
        torch.utils.rename_privateuse1_backend(name)
        torch._register_device_module(name, _module(name))
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        atexit.register(_wait_for_autograd)
        if ns := os.environ.get(KERNEL_NS_VARIABLE):
            set_duration(int(ns))
    module: ModuleType = getattr(torch, name)
    return module


def set_duration(ns: int, kernel: str = "") -> None:
    """Set the duration of kernels with this name, or of all others."""
    _library.bench_set_duration(kernel.encode(), ns)


def set_capacity(size_bytes: int) -> None:
    """Set the memory of each device."""
    _library.bench_set_capacity(size_bytes)


def set_event_cost(ns: int) -> None:
    """Set the time that a stream takes to record an event, as on GPUs."""
    _library.bench_set_event_cost(ns)


def lose_kernels(share: float) -> None:
    """Make the profiler lose this share of the records of kernels and copies."""
    _library.bench_set_lost_kernels(share)


def recover() -> None:
    """Clear errors, pending work and settings."""
    _library.bench_recover()


def launch(name: str, ns: int) -> None:
    """Launch a kernel on the current stream."""
    _raise(_library.bench_launch(name.encode(), ns))


class Graph:
    """Launches on the current stream within `with graph:`, which can be replayed."""

    def __init__(self) -> None:
        self._number = -1

    def __enter__(self) -> Graph:
        _raise(_library.bench_begin_capture())
        return self

    def __exit__(self, *_: object) -> None:
        self._number = _library.bench_end_capture()

    def replay(self) -> None:
        _raise(_library.bench_replay(self._number))

    @property
    def names(self) -> list[str]:
        """The nodes: kernels, copies, events."""
        names: bytes = _library.bench_graph_names(self._number)
        return names.decode().split()


def _module(name: str) -> ModuleType:
    import torch

    module = ModuleType(f"torch.{name}")
    accelerator = torch.accelerator
    members: dict[str, Any] = {
        "device_count": lambda: 2,
        "is_available": lambda: True,
        "is_initialized": lambda: bool(_library.bench_is_touched()),
        "_is_in_bad_fork": lambda: bool(_library.bench_is_bad_fork()),
        "_lazy_init": lambda: _raise(_library.bench_touch()),
        "init": lambda: _raise(_library.bench_touch()),
        "manual_seed_all": lambda seed: None,
        "manual_seed": lambda seed: None,
        "current_device": accelerator.current_device_index,
        "set_device": accelerator.set_device_index,
        "synchronize": accelerator.synchronize,
        "current_stream": accelerator.current_stream,
        "set_stream": accelerator.set_stream,
        "Stream": lambda device=None: torch.Stream(device=_record_of(name, device)),
        "Event": lambda enable_timing=False: torch.Event(name, enable_timing=enable_timing),
        "stream": _on_stream,
        "device": accelerator.device_index,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "get_device_name": lambda device=None: "Test Bench 1",
        "get_device_capability": lambda device=None: (1, 0),
        "is_current_stream_capturing": lambda: bool(_library.bench_is_capturing()),
        f"{name.upper()}Graph": Graph,
        "_sleep": lambda cycles: launch("spin_kernel", int(cycles)),
    }
    for function in (
        "empty_cache memory_stats memory_allocated memory_reserved max_memory_allocated "
        "max_memory_reserved reset_peak_memory_stats reset_accumulated_memory_stats"
    ).split():
        members[function] = getattr(accelerator, function)
    for key, member in members.items():
        setattr(module, key, member)
    sys.modules[module.__name__] = module
    return module


def _record_of(name: str, device: Any) -> Any:
    return f"{name}:{device}" if isinstance(device, int) else device or name


@contextmanager
def _on_stream(stream: Any) -> Iterator[None]:
    with stream:
        yield


def _raise(message: bytes | None) -> None:
    if message is not None:
        raise RuntimeError(message.decode())


def _wait_for_autograd() -> None:
    """Wait until autograd's device threads are idle.

    A backward pass ends when its gradients exist, but its thread still releases objects, for which
    it needs Python's lock. If Python exits meanwhile, it kills that thread, and the process ends
    with an abort (seen with torch 2.13 and 2.14, Python 3.11).
    """
    before = None
    while (switches := _switches_of_autograd()) != before:
        before = switches
        time.sleep(0.02)


def _switches_of_autograd() -> list[str]:
    """Return the context switches of each of these threads."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("pt_autograd"):
                lines = (task / "status").read_text().splitlines()
                found += [
                    line for line in lines if line.startswith(("Pid", "State")) or "ctxt" in line
                ]
        except OSError:
            pass  # it has ended
    return found


def _declare(library: Any) -> None:
    text, whole, long = ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
    for name, arguments, result in (
        ("launch", [text, long], text),
        ("touch", [], text),
        ("is_touched", [], whole),
        ("is_bad_fork", [], whole),
        ("is_capturing", [], whole),
        ("set_duration", [text, long], None),
        ("set_capacity", [long], None),
        ("set_event_cost", [long], None),
        ("set_lost_kernels", [ctypes.c_double], None),
        ("recover", [], None),
        ("now", [], long),
        ("begin_capture", [], text),
        ("end_capture", [], whole),
        ("replay", [whole], text),
        ("graph_names", [whole], text),
    ):
        function = getattr(library, f"bench_{name}")
        function.argtypes, function.restype = arguments, result
