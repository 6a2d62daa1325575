"""The decoders of files that need nothing but their own part of a recording.

One row a decoder: the module, and the files (by `DataFolder` name) any of which makes it worth
importing. What needs several parts at once - calls, tasks, operators, communication, PMU of
tasks - is put together by `recording`, `host_side` and `device_side`.
"""

from __future__ import annotations

Decoders = tuple[tuple[str, tuple[str, ...]], ...]

# decode(device, sink)
DEVICE_DECODERS: Decoders = (
    ("samples.ddr", ("ddr",)),
    ("pmu.frequency", ()),
    ("samples.hbm", ("hbm",)),
    ("samples.hccs", ("hccs",)),
    ("samples.llc", ("llc",)),
    ("samples.netdev_stats", ("netdev_stats",)),
    ("samples.nic", ("nic", "roce")),
    ("samples.npu_mem", ("npu_mem", "npu_mem.app")),
    ("samples.npu_module_mem", ("npu_module_mem",)),
    ("samples.pcie", ("pcie",)),
    ("samples.qos", ("qos",)),
    ("pmu.sample_pmu", ("ffts_profile", "aicore", "aiVectorCore")),
    ("samples.stars_samples", ("stars_soc", "stars_soc_profile")),
    ("samples.unified_bus", ("ub",)),
)

# decode(device, tasks, sink): after the tasks of the device are known.
TASK_DECODERS: Decoders = (
    ("collectives.ccu", ("ccu0.instr", "ccu1.instr")),
    ("pmu.task_pmu", ("ffts_profile",)),
)

# decode(host, sink)
HOST_DECODERS: Decoders = (
    ("samples.host_cpu", ("host_cpu",)),
    ("samples.host_disk", ("host_disk",)),
    ("samples.host_mem", ("host_mem",)),
    ("samples.host_network", ("host_network",)),
    ("host.os_calls", ("host_syscall", "host_pthreadcall")),
    (
        "host.operator_memory",
        ("unaging.additional.task_memory_info", "aging.additional.task_memory_info"),
    ),
)

# decode(host, ids, sink): tasks that only the host records.
HOST_TASK_DECODERS: Decoders = (
    (
        "collectives.dpu",
        (
            "unaging.compact.dpu_track",
            "aging.compact.dpu_track",
            "unaging.additional.dpu_hccl_info",
            "aging.additional.dpu_hccl_info",
        ),
    ),
)
