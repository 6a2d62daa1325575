"""The decoders of files that need nothing but their own part of a recording.

One row a decoder: the module, and the files (by `DataFolder` name) any of which makes it worth
importing. What needs several parts at once - calls, tasks, operators, communication, PMU of
tasks - is put together by `recording`, `host_side` and `device_side`.
"""

from __future__ import annotations

Decoders = tuple[tuple[str, tuple[str, ...]], ...]

# decode(device, sink)
DEVICE_DECODERS: Decoders = (
    ("ddr", ("ddr",)),
    ("frequency", ()),
    ("hbm", ("hbm",)),
    ("hccs", ("hccs",)),
    ("llc", ("llc",)),
    ("netdev_stats", ("netdev_stats",)),
    ("nic", ("nic", "roce")),
    ("npu_mem", ("npu_mem", "npu_mem.app")),
    ("npu_module_mem", ("npu_module_mem",)),
    ("pcie", ("pcie",)),
    ("qos", ("qos",)),
    ("sample_pmu", ("ffts_profile", "aicore", "aiVectorCore")),
    ("stars_samples", ("stars_soc", "stars_soc_profile")),
    ("unified_bus", ("ub",)),
)

# decode(device, tasks, sink): after the tasks of the device are known.
TASK_DECODERS: Decoders = (
    ("ccu", ("ccu0.instr", "ccu1.instr")),
    ("task_pmu", ("ffts_profile",)),
)

# decode(host, sink)
HOST_DECODERS: Decoders = (
    ("host_cpu", ("host_cpu",)),
    ("host_disk", ("host_disk",)),
    ("host_mem", ("host_mem",)),
    ("host_network", ("host_network",)),
    ("os_calls", ("host_syscall", "host_pthreadcall")),
    (
        "operator_memory",
        ("unaging.additional.task_memory_info", "aging.additional.task_memory_info"),
    ),
)

# decode(host, ids, sink): tasks that only the host records.
HOST_TASK_DECODERS: Decoders = (
    (
        "dpu",
        (
            "unaging.compact.dpu_track",
            "aging.compact.dpu_track",
            "unaging.additional.dpu_hccl_info",
            "aging.additional.dpu_hccl_info",
        ),
    ),
)
