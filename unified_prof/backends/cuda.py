"""NVIDIA GPUs (and AMD's, which torch presents under the same name)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from unified_prof.backends import cuda_facts
from unified_prof.backends.torch_device import TorchBackend
from unified_prof.tracking.watch.device import asked_in_child, runtime_left_alone

_NONE_SHOWN = "the driver shows no CUDA device"


class CudaBackend(TorchBackend):
    """Track operations on the CUDA devices that a workload uses, with device events."""

    name = "cuda"

    def facts(self, when: str) -> dict[str, str]:
        """Return what is known of driver, libraries, clocks and switches."""
        return {**cuda_facts.of_torch(), **cuda_facts.of_library(when)}

    def device_missing_reason(self) -> str | None:
        """Return why no CUDA device answers, in the driver's words where it has some.

        This process asks the driver's library only: one that has asked the runtime can fork no
        children that use a device, and the workload is to run in it.
        """
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            return f"this PyTorch ({torch.__version__}) is built without CUDA"
        if torch.cuda.is_initialized():
            return None
        counted = _devices_in_library()
        if counted < 0:  # there is no such library, or it does not work: the runtime decides
            return asked_in_child(_runtime_reason) or None
        if counted:
            return None
        return asked_in_child(_runtime_reason) or _NONE_SHOWN


def _devices_in_library() -> int:
    """Return how many devices the driver's library shows, as torch asks it; -1: it cannot say."""
    import torch

    with runtime_left_alone(), suppress(Exception):
        count: Callable[[], int] = torch.cuda._device_count_nvml
        if torch.version.hip:
            count = getattr(torch.cuda, "_device_count_amdsmi", count)
        return int(count())
    return -1


def _runtime_reason() -> str:
    """Return why the runtime has no device, in its words; empty where it has one."""
    import torch

    try:
        torch.cuda.init()
        return "" if torch.cuda.device_count() > 0 else _NONE_SHOWN
    except Exception as err:  # whatever the driver complains of
        return f"no CUDA device answers ({str(err).splitlines()[0]})"
