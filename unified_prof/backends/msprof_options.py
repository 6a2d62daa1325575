"""The options of msprof that `uprof run` offers: their values, what they record, the presets.

One table drives the command line, its help, the checks made before anything starts, and the
arguments given to msprof. Values and ranges are those of the public collector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unified_prof.errors import UsageError

ON_OFF = ("on", "off")
_U32_MAX = 4294967295
_MAX_CUSTOM_EVENTS = 8
_MIN_STORAGE_MB = 200
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
HOST_SYSTEMS = ("cpu", "mem", "disk", "network", "osrt", "numa")


@dataclass(frozen=True, slots=True)
class MsprofOption:
    """One option, spelled as msprof spells it: `--task-time` here is `--task-time=l1` there."""

    flag: str
    help: str
    """What it does; names the tables of the database that it fills."""
    values: tuple[str, ...] = ()
    """The values it takes; empty: a number or free text."""
    range: tuple[int, int] | None = None
    """Smallest and largest number it takes."""
    many: bool = False
    """Takes several of `values`, separated by commas."""

    @property
    def name(self) -> str:
        """The key of the option in `RunSpec.options`."""
        return self.flag.replace("-", "_")


OPTIONS: tuple[MsprofOption, ...] = (
    MsprofOption(
        "task-time",
        "How much of every task: l0 its times (TASK), l1 what it computes and communicates too"
        " (COMPUTE_TASK_INFO, COMMUNICATION_OP, COMMUNICATION_TASK_INFO), l2 attributes as well"
        " (COMPUTE_TASK_INFO.attrInfo); on is l1, l3 depends on the chip.",
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
    MsprofOption(
        "ai-core",
        "Counters of the AI cores (TASK_PMU_INFO, or SAMPLE_PMU_TIMELINE and SAMPLE_PMU_SUMMARY).",
        values=ON_OFF,
    ),
    MsprofOption(
        "aic-mode",
        "Counters per task (TASK_PMU_INFO) or sampled (SAMPLE_PMU_TIMELINE, SAMPLE_PMU_SUMMARY).",
        values=("task-based", "sample-based"),
    ),
    MsprofOption(
        "aic-metrics",
        f"Which counters (TASK_PMU_INFO): {', '.join(AIC_METRICS)},"
        f" or Custom: and up to {_MAX_CUSTOM_EVENTS} event numbers.",
    ),
    MsprofOption(
        "aic-freq", "Samples a second of sample-based counters (SAMPLE_PMU_*).", range=(1, 100)
    ),
    MsprofOption(
        "sys-hardware-mem",
        "Memory and caches (HBM or DDR, LLC, NPU_MEM, NPU_MODULE_MEM, QOS, ACC_PMU,"
        " SOC_BANDWIDTH_LEVEL).",
        values=ON_OFF,
    ),
    MsprofOption(
        "sys-hardware-mem-freq",
        "Samples a second of memory and caches (HBM, DDR, LLC, NPU_MEM, QOS ...);"
        " up to 10000 on the 950.",
        range=(1, 100),
    ),
    MsprofOption("llc-profiling", "Which cache events (LLC).", values=("read", "write")),
    MsprofOption("sys-io-profiling", "Network ports (NIC, ROCE, NETDEV_STATS).", values=ON_OFF),
    MsprofOption(
        "sys-io-sampling-freq",
        "Samples a second of network ports (NIC, ROCE, NETDEV_STATS).",
        range=(1, 100),
    ),
    MsprofOption(
        "sys-interconnection-profiling", "Links between chips and host (HCCS, PCIE).", values=ON_OFF
    ),
    MsprofOption(
        "sys-interconnection-freq",
        "Samples a second of links between chips and host (HCCS, PCIE).",
        range=(1, 50),
    ),
    MsprofOption(
        "host-sys",
        "What the host does: cpu (CPU_USAGE), mem (HOST_MEM_USAGE), disk (HOST_DISK_USAGE, needs"
        " iotop), network (HOST_NETWORK_USAGE), osrt (OSRT_API, needs perf and ltrace), numa.",
        values=HOST_SYSTEMS,
        many=True,
    ),
    MsprofOption("msproftx", "Marks made with mstx (MSTX_EVENTS).", values=ON_OFF),
    MsprofOption("mstx-domain-include", "Only marks of these domains (MSTX_EVENTS)."),
    MsprofOption("mstx-domain-exclude", "No marks of these domains (MSTX_EVENTS)."),
    MsprofOption("task-memory", "Memory of operators (NPU_OP_MEM).", values=ON_OFF),
    MsprofOption("delay", "Seconds to wait before recording (all tables).", range=(1, _U32_MAX)),
    MsprofOption("duration", "Seconds to record (all tables).", range=(1, _U32_MAX)),
    MsprofOption(
        "storage-limit",
        f"Keep no more than this much raw data, such as {_MIN_STORAGE_MB}MB; the oldest goes"
        " first (all tables).",
    ),
)
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

# What uprof itself decides, or what would make msprof do something else than run a workload.
_NOT_TO_BE_PASSED = frozenset(
    [
        "output",
        "application",
        "dynamic",
        "pid",
        "type",
        "parse",
        "query",
        "export",
        "analyze",
        "sys-devices",
        "sys-period",
        "host-sys-pid",
        "host-sys-usage",
        "environment",
        "python-path",
        "help",
    ]
)


def msprof_arguments(
    options: Mapping[str, object], *, raw: Sequence[str] = (), chip: str | None = None
) -> list[str]:
    """Return `--name=value` arguments for msprof, everything checked.

    Args:
        options: Option names of this table, and `preset`, with their values; None is not given.
        raw: More arguments, passed as they are, after a look at what they would change.
        chip: Name of the chip, where it is known: some ranges depend on it.

    Raises:
        UsageError: a value msprof would not take, or options that exclude each other.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    preset = given.pop("preset", DEFAULT_PRESET)
    if preset not in PRESETS:
        raise UsageError(f"no preset {preset!r}", hint=f"known: {', '.join(PRESETS)}")
    for name, text in given.items():
        _check(BY_NAME[name], text, chip)
    chosen = {**PRESETS[preset], **given}
    _check_together(chosen, given)
    arguments = [f"--{o.flag}={chosen[o.name]}" for o in OPTIONS if o.name in chosen]
    return [*arguments, *(_checked_raw(argument) for argument in raw)]


def _check(option: MsprofOption, text: str, chip: str | None) -> None:
    if option.range:
        low, high = option.range
        if option.flag == "sys-hardware-mem-freq" and chip and "950" in chip:
            high = 10000
        if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
            raise _bad_value(option, text, f"a whole number from {low} to {high}")
    elif option.many:
        parts = text.split(",")
        if not {*parts} <= {*option.values}:
            raise _bad_value(option, text, f"a list of {', '.join(option.values)}")
    elif option.values:
        if text not in option.values:
            raise _bad_value(option, text, f"one of {', '.join(option.values)}")
    elif option.flag == "aic-metrics":
        _check_metrics(option, text)
    elif option.flag == "storage-limit":
        size = re.fullmatch(r"(\d{1,10})MB", text, re.ASCII)
        if not (size and _MIN_STORAGE_MB <= int(size[1]) <= _U32_MAX):
            raise _bad_value(option, text, f"{_MIN_STORAGE_MB}MB to {_U32_MAX}MB")
    elif not text.strip():
        raise _bad_value(option, text, "a list of names")


def _check_metrics(option: MsprofOption, text: str) -> None:
    kind, colon, events = text.partition(":")
    if kind == "Custom" and colon:
        numbers = events.split(",")
        known = all(re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", n, re.ASCII) for n in numbers)
        if not known or len(numbers) > _MAX_CUSTOM_EVENTS:
            expected = f"Custom: and 1 to {_MAX_CUSTOM_EVENTS} hexadecimal or decimal numbers"
            raise _bad_value(option, text, expected)
    elif text not in AIC_METRICS:
        raise _bad_value(option, text, f"one of {', '.join(AIC_METRICS)}, Custom:0x1,0x2...")


def _check_together(chosen: Mapping[str, str], given: Mapping[str, str]) -> None:
    domains = [name for name in ("mstx_domain_include", "mstx_domain_exclude") if name in given]
    if len(domains) == 2:
        raise UsageError("--mstx-domain-include and --mstx-domain-exclude exclude each other")
    if domains and chosen.get("msproftx") != "on":
        raise UsageError(f"--{domains[0].replace('_', '-')} needs --msproftx on")
    if "aic_freq" in given and chosen.get("aic_mode") != "sample-based":
        raise UsageError("--aic-freq needs --aic-mode sample-based")


def _checked_raw(argument: str) -> str:
    name = argument.partition("=")[0]
    if not re.fullmatch(r"--[a-z0-9-]+", name, re.ASCII):
        raise UsageError(
            f"--msprof-arg {argument!r} is no option of msprof",
            hint="write --msprof-arg=--name=value",
        )
    if name[2:] in _NOT_TO_BE_PASSED:
        raise UsageError(f"--msprof-arg: {name} is decided by uprof")
    if name[2:] in {option.flag for option in OPTIONS}:
        raise UsageError(f"--msprof-arg: give {name} to uprof itself")
    return argument


def _bad_value(option: MsprofOption, found: str, expected: str) -> UsageError:
    return UsageError(f"--{option.flag}: {found!r} found, {expected} expected")
