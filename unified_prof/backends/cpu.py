"""The CPU as a device."""

from __future__ import annotations

from unified_prof.backends.torch_device import TorchBackend


class CpuBackend(TorchBackend):
    """Track operations on the CPU with a monotonic clock."""

    name = "cpu"

    def device_missing_reason(self) -> str | None:
        """Return None: where torch runs, the CPU is there."""
        return None
