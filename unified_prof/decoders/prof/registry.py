"""The decoders of files that need nothing but their own part of a recording.

One row a decoder: the module, and the files (by `DataFolder` name) any of which makes it worth
importing. What needs several parts at once - calls, tasks, operators, communication, PMU of
tasks - is put together by `recording`.
"""

from __future__ import annotations

_PACKAGE = "unified_prof.decoders.prof"

DEVICE_DECODERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (f"{_PACKAGE}.ddr", ("ddr",)),
    (f"{_PACKAGE}.hbm", ("hbm",)),
    (f"{_PACKAGE}.hccs", ("hccs",)),
    (f"{_PACKAGE}.llc", ("llc",)),
    (f"{_PACKAGE}.netdev_stats", ("netdev_stats",)),
    (f"{_PACKAGE}.nic", ("nic", "roce")),
    (f"{_PACKAGE}.npu_mem", ("npu_mem", "npu_mem.app")),
    (f"{_PACKAGE}.npu_module_mem", ("npu_module_mem",)),
    (f"{_PACKAGE}.pcie", ("pcie",)),
    (f"{_PACKAGE}.qos", ("qos",)),
    (f"{_PACKAGE}.sample_pmu", ("ffts_profile", "aicore", "aiVectorCore")),
    (f"{_PACKAGE}.stars_samples", ("stars_soc", "stars_soc_profile")),
)
HOST_DECODERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (f"{_PACKAGE}.host_cpu", ("host_cpu",)),
    (f"{_PACKAGE}.host_disk", ("host_disk",)),
    (f"{_PACKAGE}.host_mem", ("host_mem",)),
    (f"{_PACKAGE}.host_network", ("host_network",)),
    (f"{_PACKAGE}.os_calls", ("host_syscall", "host_pthreadcall")),
)
