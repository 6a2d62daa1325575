"""Table of the msprof options that `uprof run` supports, and the presets.

The table defines the command line, its help, the checks before a run, and the arguments of msprof
(`msprof_plan`). Values and ranges are those of the public collector; differences between chips are
in `cann` and `msprof_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ON_OFF = ("on", "off")
U32_MAX = 4294967295
MAX_CUSTOM_EVENTS = 8
MAX_NTS_EVENTS = 10
MIN_STORAGE_MB = 200
AIC_METRICS = (
    "ArithmeticUtilization",
    "PipeUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
    "PipelineExecuteUtilization",
)
NTS_METRICS = ("PipeUtilization",)
HOST_SYSTEMS = ("cpu", "mem", "disk", "network", "osrt", "numa")

_FILES_ONLY = "CSV files of msprof only"


@dataclass(frozen=True, slots=True)
class MsprofOption:
    """One option; names are those of msprof (`--task-time l1` becomes `--task-time=l1`)."""

    flag: str
    help: str  # Help text; names the database tables that it fills.
    values: tuple[str, ...] = ()  # Accepted values; empty for a number or free text.
    most: int | None = None  # Maximum of a number; the minimum is 1.
    many: bool = False  # True if it takes several of `values`, separated by commas.
    requires: str | None = None  # Name of the required switch, which this option turns on.

    @property
    def name(self) -> str:
        """Key of the option in `RunSpec.options`."""
        return self.flag.replace("-", "_")


def _sampled(
    flag: str, help: str, freq: str, sampled: str, *, most: int
) -> tuple[MsprofOption, MsprofOption]:
    """Return a switch, and the option for the number of its samples per second."""
    switch = MsprofOption(flag, help, values=ON_OFF)
    rate = f"Samples per second of {sampled}."
    return switch, MsprofOption(freq, rate, most=most, requires=switch.name)


# Heading of the help -> its options, in order.
OPTION_GROUPS: Mapping[str, tuple[MsprofOption, ...]] = {
    "Tasks, calls and marks": (
        MsprofOption(
            "task-time",
            "Level of detail of tasks: l0 times (TASK); l1 also operators and communication "
            "(COMPUTE_TASK_INFO, COMMUNICATION_OP, COMMUNICATION_TASK_INFO); l2 also "
            "attributes (COMPUTE_TASK_INFO.attrInfo); on is l1; l3 depends on the chip.",
            values=("on", "off", "l0", "l1", "l2", "l3"),
        ),
        MsprofOption("ascendcl", "AscendCL calls (CANN_API, level acl).", values=ON_OFF),
        MsprofOption(
            "runtime-api", "Runtime calls (CANN_API, level runtime; MEMCPY_INFO).", values=ON_OFF
        ),
        MsprofOption(
            "ge-api",
            "Graph engine calls (CANN_API, levels model and node).",
            values=("off", "l0", "l1"),
        ),
        MsprofOption("msproftx", "Marks made with mstx (MSTX_EVENTS).", values=ON_OFF),
        MsprofOption("mstx-domain-include", "Record only marks of these domains (MSTX_EVENTS)."),
        MsprofOption("mstx-domain-exclude", "Exclude marks of these domains (MSTX_EVENTS)."),
        MsprofOption("task-memory", "Memory of operators (NPU_OP_MEM).", values=ON_OFF),
        MsprofOption("aicpu", f"Operators on AI CPUs ({_FILES_ONLY}).", values=ON_OFF),
        MsprofOption(
            "task-block",
            f"Blocks of tasks, on chips that support it; use on for the 950 ({_FILES_ONLY}).",
            values=("all", "on", "off"),
        ),
    ),
    "Counters of the AI cores": (
        MsprofOption(
            "ai-core",
            "Counters of the AI cores (TASK_PMU_INFO, or SAMPLE_PMU_TIMELINE and "
            "SAMPLE_PMU_SUMMARY).",
            values=ON_OFF,
        ),
        MsprofOption(
            "aic-mode",
            "Counters per task (TASK_PMU_INFO) or sampled (SAMPLE_PMU_TIMELINE, "
            "SAMPLE_PMU_SUMMARY).",
            values=("task-based", "sample-based"),
            requires="ai_core",
        ),
        MsprofOption(
            "aic-metrics",
            f"Counter set (TASK_PMU_INFO): those of {', '.join(AIC_METRICS)} that the chip "
            f"has, or Custom: and up to {MAX_CUSTOM_EVENTS} event numbers.",
            requires="ai_core",
        ),
        MsprofOption(
            "aic-freq",
            "Samples per second of sample-based counters (SAMPLE_PMU_*).",
            most=100,
            requires="ai_core",
        ),
        MsprofOption(
            "nts-metrics",
            f"Counters of NTS, on the only chip that supports it ({_FILES_ONLY}): "
            f"{NTS_METRICS[0]}, or Custom: and up to {MAX_NTS_EVENTS} event numbers.",
        ),
    ),
    "Caches, memory, ports and links": (
        *_sampled(
            "sys-hardware-mem",
            "Memory and caches (HBM or DDR, LLC, NPU_MEM, NPU_MODULE_MEM, QOS, ACC_PMU,"
            " SOC_BANDWIDTH_LEVEL).",
            "sys-hardware-mem-freq",
            "memory and caches (HBM, DDR, LLC, NPU_MEM, QOS ...); up to 10000 on the 950",
            most=100,
        ),
        MsprofOption(
            "llc-profiling",
            "Cache events (LLC); capacity or bandwidth on the 310.",
            values=("read", "write"),
            requires="sys_hardware_mem",
        ),
        MsprofOption("l2", f"L2 cache of tasks ({_FILES_ONLY}).", values=ON_OFF),
        MsprofOption(
            "npu-events",
            f"SoC events instead of those of --l2 ({_FILES_ONLY}), for example 0x9c,0x9d or "
            "HA:0x9c;SMMU:0x2.",
        ),
        *_sampled(
            "sys-io-profiling",
            "Network ports (NIC, ROCE, NETDEV_STATS).",
            "sys-io-sampling-freq",
            "network ports (NIC, ROCE, NETDEV_STATS)",
            most=100,
        ),
        *_sampled(
            "sys-interconnection-profiling",
            "Links between chips and host (HCCS, PCIE).",
            "sys-interconnection-freq",
            "links between chips and host (HCCS, PCIE)",
            most=50,
        ),
    ),
    "CPUs of device and host": (
        *_sampled(
            "sys-cpu-profiling",
            f"Functions on the CPUs of the device ({_FILES_ONLY}).",
            "sys-cpu-freq",
            f"these functions ({_FILES_ONLY})",
            most=50,
        ),
        *_sampled(
            "sys-profiling",
            f"Load and memory of the device's system ({_FILES_ONLY}).",
            "sys-sampling-freq",
            f"load and memory ({_FILES_ONLY})",
            most=10,
        ),
        *_sampled(
            "sys-pid-profiling",
            f"Load and memory of processes on the device ({_FILES_ONLY}).",
            "sys-pid-sampling-freq",
            f"load and memory ({_FILES_ONLY})",
            most=10,
        ),
        MsprofOption(
            "host-sys",
            "Workload on the host: cpu (CPU_USAGE), mem (HOST_MEM_USAGE), disk "
            "(HOST_DISK_USAGE, needs iotop), network (HOST_NETWORK_USAGE), osrt (OSRT_API, "
            "needs perf and ltrace), numa.",
            values=HOST_SYSTEMS,
            many=True,
        ),
        MsprofOption(
            "host-sys-usage",
            f"Entire host: cpu, mem ({_FILES_ONLY}); some releases of msprof cannot record it with "
            "a workload and print a warning.",
            values=("cpu", "mem"),
            many=True,
        ),
        MsprofOption(
            "host-sys-usage-freq",
            f"Samples per second of usage ({_FILES_ONLY}).",
            most=50,
            requires="host_sys_usage",
        ),
    ),
    "Time and amount": (
        MsprofOption("delay", "Seconds to wait before recording (all tables).", most=U32_MAX),
        MsprofOption("duration", "Seconds to record (all tables).", most=U32_MAX),
        MsprofOption(
            "storage-limit",
            f"Maximum size of raw data, for example {MIN_STORAGE_MB}MB; the oldest is deleted "
            "first (all tables).",
        ),
    ),
}
OPTIONS = tuple(option for options in OPTION_GROUPS.values() for option in options)
BY_NAME: Mapping[str, MsprofOption] = {option.name: option for option in OPTIONS}

PRESETS: Mapping[str, Mapping[str, str]] = {
    "minimal": {"task_time": "l0", "ascendcl": "off", "ai_core": "off"},
    "default": {"task_time": "l1", "ascendcl": "on", "runtime_api": "on", "msproftx": "on"},
    "full": {
        "task_time": "l2",
        "ascendcl": "on",
        "runtime_api": "on",
        "ge_api": "l1",
        "ai_core": "on",
        "msproftx": "on",
        "task_memory": "on",
        "sys_hardware_mem": "on",
        "sys_io_profiling": "on",
        "sys_interconnection_profiling": "on",
        "host_sys": "cpu,mem,network",
    },
}
DEFAULT_PRESET = "default"
