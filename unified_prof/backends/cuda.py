"""NVIDIA GPUs (and AMD's, which torch presents under the same name)."""

from __future__ import annotations

from unified_prof.backends.torch_device import TorchBackend


class CudaBackend(TorchBackend):
    """Track operations on the current CUDA device with device events."""

    name = "cuda"

    def device_missing_reason(self) -> str | None:
        """Return why no CUDA device answers, in the driver's words where it has some."""
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            return f"this PyTorch ({torch.__version__}) is built without CUDA"
        # Counts the devices without creating a context: the workload may still fork.
        if torch.cuda.is_available() and torch.cuda.device_count() > 0:
            return None
        try:
            torch.cuda.init()
        except Exception as err:  # whatever the driver complains of
            return f"no CUDA device answers ({str(err).splitlines()[0]})"
        return "the driver shows no CUDA device"
