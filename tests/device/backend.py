"""Backend of the test device."""

from tests.device import build
from unified_prof.backends.torch_device import TorchBackend


class BenchBackend(TorchBackend):
    """Track operations on the test device."""

    name = "bench"

    def device_missing_reason(self) -> str | None:
        """Return why the test device cannot be built, or None."""
        return build.why_not()
