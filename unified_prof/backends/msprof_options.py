"""The options of msprof that `uprof run` offers: their values, what they record, the presets.

One table drives the command line, its help, the checks made before anything starts, and the
arguments given to msprof. Values and ranges are those of the public collector; what differs from
chip to chip stands in `npu_chips` and `msprof_offer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unified_prof.backends.msprof_offer import Offer
from unified_prof.errors import UsageError

ON_OFF = ("on", "off")
_U32_MAX = 4294967295
_MAX_CUSTOM_EVENTS = 8
_MAX_NTS_EVENTS = 10
_MAX_SOC_EVENTS = {"HA": 8, "MATA": 8, "SMMU": 8, "NOC": 4}
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
NTS_METRICS = ("PipeUtilization",)
HOST_SYSTEMS = ("cpu", "mem", "disk", "network", "osrt", "numa")

WORK = "Tasks, calls and marks"
COUNTERS = "Counters of the AI cores"
HARDWARE = "Caches, memory, ports and links"
CPUS = "CPUs of device and host"
LIMITS = "When and how much"
GROUPS = (WORK, COUNTERS, HARDWARE, CPUS, LIMITS)
"""Headings of the help, in its order."""


_FILES_ONLY = "no table; msprof's CSV files"


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
    group: str = WORK
    of: str | None = None
    """The name of the switch without which it has no effect: giving it turns that on."""

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
    MsprofOption("msproftx", "Marks made with mstx (MSTX_EVENTS).", values=ON_OFF),
    MsprofOption("mstx-domain-include", "Only marks of these domains (MSTX_EVENTS)."),
    MsprofOption("mstx-domain-exclude", "No marks of these domains (MSTX_EVENTS)."),
    MsprofOption("task-memory", "Memory of operators (NPU_OP_MEM).", values=ON_OFF),
    MsprofOption("aicpu", f"Operators on AI CPUs ({_FILES_ONLY}).", values=ON_OFF),
    MsprofOption(
        "task-block",
        f"Blocks of tasks, on chips that have them; on is for the 950 ({_FILES_ONLY}).",
        values=("all", "on", "off"),
    ),
    MsprofOption(
        "ai-core",
        "Counters of the AI cores (TASK_PMU_INFO, or SAMPLE_PMU_TIMELINE and SAMPLE_PMU_SUMMARY).",
        values=ON_OFF,
        group=COUNTERS,
    ),
    MsprofOption(
        "aic-mode",
        "Counters per task (TASK_PMU_INFO) or sampled (SAMPLE_PMU_TIMELINE, SAMPLE_PMU_SUMMARY).",
        values=("task-based", "sample-based"),
        group=COUNTERS,
        of="ai_core",
    ),
    MsprofOption(
        "aic-metrics",
        f"Which counters (TASK_PMU_INFO): of {', '.join(AIC_METRICS)} those that the chip has,"
        f" or Custom: and up to {_MAX_CUSTOM_EVENTS} event numbers.",
        group=COUNTERS,
        of="ai_core",
    ),
    MsprofOption(
        "aic-freq",
        "Samples a second of sample-based counters (SAMPLE_PMU_*).",
        range=(1, 100),
        group=COUNTERS,
        of="ai_core",
    ),
    MsprofOption(
        "nts-metrics",
        f"Counters of NTS, on the one chip that has it ({_FILES_ONLY}): {NTS_METRICS[0]}, or"
        f" Custom: and up to {_MAX_NTS_EVENTS} event numbers.",
        group=COUNTERS,
    ),
    MsprofOption(
        "sys-hardware-mem",
        "Memory and caches (HBM or DDR, LLC, NPU_MEM, NPU_MODULE_MEM, QOS, ACC_PMU,"
        " SOC_BANDWIDTH_LEVEL).",
        values=ON_OFF,
        group=HARDWARE,
    ),
    MsprofOption(
        "sys-hardware-mem-freq",
        "Samples a second of memory and caches (HBM, DDR, LLC, NPU_MEM, QOS ...);"
        " up to 10000 on the 950.",
        range=(1, 100),
        group=HARDWARE,
        of="sys_hardware_mem",
    ),
    MsprofOption(
        "llc-profiling",
        "Which cache events (LLC); capacity or bandwidth on the 310.",
        values=("read", "write"),
        group=HARDWARE,
        of="sys_hardware_mem",
    ),
    MsprofOption("l2", f"L2 cache of tasks ({_FILES_ONLY}).", values=ON_OFF, group=HARDWARE),
    MsprofOption(
        "npu-events",
        f"Events of the SoC in place of those of --l2 ({_FILES_ONLY}), such as 0x9c,0x9d or"
        " HA:0x9c;SMMU:0x2.",
        group=HARDWARE,
    ),
    MsprofOption(
        "sys-io-profiling",
        "Network ports (NIC, ROCE, NETDEV_STATS).",
        values=ON_OFF,
        group=HARDWARE,
    ),
    MsprofOption(
        "sys-io-sampling-freq",
        "Samples a second of network ports (NIC, ROCE, NETDEV_STATS).",
        range=(1, 100),
        group=HARDWARE,
        of="sys_io_profiling",
    ),
    MsprofOption(
        "sys-interconnection-profiling",
        "Links between chips and host (HCCS, PCIE).",
        values=ON_OFF,
        group=HARDWARE,
    ),
    MsprofOption(
        "sys-interconnection-freq",
        "Samples a second of links between chips and host (HCCS, PCIE).",
        range=(1, 50),
        group=HARDWARE,
        of="sys_interconnection_profiling",
    ),
    MsprofOption(
        "sys-cpu-profiling",
        f"Functions on the CPUs of the device ({_FILES_ONLY}).",
        values=ON_OFF,
        group=CPUS,
    ),
    MsprofOption(
        "sys-cpu-freq",
        f"Samples a second of those ({_FILES_ONLY}).",
        range=(1, 50),
        group=CPUS,
        of="sys_cpu_profiling",
    ),
    MsprofOption(
        "sys-profiling",
        f"Load and memory of the device's system ({_FILES_ONLY}).",
        values=ON_OFF,
        group=CPUS,
    ),
    MsprofOption(
        "sys-sampling-freq",
        f"Samples a second of those ({_FILES_ONLY}).",
        range=(1, 10),
        group=CPUS,
        of="sys_profiling",
    ),
    MsprofOption(
        "sys-pid-profiling",
        f"Load and memory of processes on the device ({_FILES_ONLY}).",
        values=ON_OFF,
        group=CPUS,
    ),
    MsprofOption(
        "sys-pid-sampling-freq",
        f"Samples a second of those ({_FILES_ONLY}).",
        range=(1, 10),
        group=CPUS,
        of="sys_pid_profiling",
    ),
    MsprofOption(
        "host-sys",
        "What the workload does on the host: cpu (CPU_USAGE), mem (HOST_MEM_USAGE), disk"
        " (HOST_DISK_USAGE, needs iotop), network (HOST_NETWORK_USAGE), osrt (OSRT_API, needs perf"
        " and ltrace), numa.",
        values=HOST_SYSTEMS,
        many=True,
        group=CPUS,
    ),
    MsprofOption(
        "host-sys-usage",
        f"The whole host: cpu, mem ({_FILES_ONLY}); some releases of msprof do not record it"
        " beside a workload, and say so.",
        values=("cpu", "mem"),
        many=True,
        group=CPUS,
    ),
    MsprofOption(
        "host-sys-usage-freq",
        f"Samples a second of those ({_FILES_ONLY}).",
        range=(1, 50),
        group=CPUS,
        of="host_sys_usage",
    ),
    MsprofOption(
        "delay",
        "Seconds to wait before recording (all tables).",
        range=(1, _U32_MAX),
        group=LIMITS,
    ),
    MsprofOption("duration", "Seconds to record (all tables).", range=(1, _U32_MAX), group=LIMITS),
    MsprofOption(
        "storage-limit",
        f"Keep no more than this much raw data, such as {_MIN_STORAGE_MB}MB; the oldest goes"
        " first (all tables).",
        group=LIMITS,
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
        "environment",
        "python-path",
        "help",
    ]
)


_LOWER = {"task_time": ("l1", "on")}
"""Option -> what old releases have in place of the value that a preset asks for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What msprof is to be given."""

    arguments: tuple[str, ...]
    """`--name=value`, everything checked."""
    left_out: tuple[MsprofOption, ...]
    """Options of the preset that msprof does not take here."""
    lowered: tuple[str, ...]
    """Values of the preset that this msprof does not know, such as `--task-time=l2`; there is a
    lower one in their place."""
    preset: str
    can_go: frozenset[str]
    """Options of the preset that may be left out should msprof refuse them after all."""

    @property
    def shortened(self) -> tuple[str, ...]:
        """What the preset has and msprof does not take here, as a user would write it."""
        return (*(f"--{option.flag}" for option in self.left_out), *self.lowered)


def plan(options: Mapping[str, object], *, raw: Sequence[str] = (), offer: Offer) -> Plan:
    """Choose the arguments for msprof from a preset and what the user gave.

    Args:
        options: Option names of this table, and `preset`, with their values; None is not given.
        raw: More arguments, passed as they are, after a look at what they would change.
        offer: What msprof takes here. Of the preset the rest is left out; it is wrong use where
            the user asks for it.

    Raises:
        UsageError: a value msprof would not take, or options that exclude each other.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    preset = given.pop("preset", DEFAULT_PRESET)
    if preset not in PRESETS:
        raise UsageError(f"no preset {preset!r}", hint=f"known: {', '.join(PRESETS)}")
    for name, text in given.items():
        option = BY_NAME[name]
        if not offer.takes(option.flag):
            raise UsageError(f"--{option.flag}: msprof does not take it {offer.place}")
        _check(option, text, offer)
    given = _with_switches(given)
    usual, lowered = _lowered(PRESETS[preset], offer)
    chosen = {**usual, **given}
    _check_together(chosen, given)
    left_out = [o for o in OPTIONS if o.name in chosen and not offer.takes(o.flag)]
    if asked := [option for option in left_out if option.name in given]:
        raise UsageError(f"--{asked[0].flag}: msprof does not take it {offer.place}")
    arguments = [
        f"--{o.flag}={chosen[o.name]}" for o in OPTIONS if o.name in chosen and o not in left_out
    ]
    return Plan(
        (*arguments, *(_checked_raw(argument) for argument in raw)),
        tuple(left_out),
        tuple(f"--{BY_NAME[name].flag}={lowered[name]}" for name in lowered if name not in given),
        preset,
        frozenset(o.flag for o in OPTIONS if o.name in chosen and o.name not in given),
    )


def msprof_arguments(
    options: Mapping[str, object], *, raw: Sequence[str] = (), offer: Offer | None = None
) -> list[str]:
    """Return the arguments of `plan`; without `offer` whatever any chip takes is possible.

    Raises:
        UsageError: a value msprof would not take, or options that exclude each other.
    """
    return [*plan(options, raw=raw, offer=offer or Offer()).arguments]


def _lowered(preset: Mapping[str, str], offer: Offer) -> tuple[dict[str, str], dict[str, str]]:
    """Return a preset with values that msprof has, and those that had to give way."""
    usual, gone = dict(preset), {}
    for name, instead in _LOWER.items():
        known = offer.values.get(BY_NAME[name].flag)
        if known and name in usual and usual[name] not in known:
            gone[name] = usual[name]
            usual[name] = next((one for one in instead if one in known), usual[name])
    return usual, gone


def _with_switches(given: Mapping[str, str]) -> dict[str, str]:
    """Return `given` with the switches turned on without which one of its options does nothing.

    Raises:
        UsageError: the user turned one of these off.
    """
    result = dict(given)
    for name in given:
        option = BY_NAME[name]
        if option.of is None:
            continue
        switch = BY_NAME[option.of]
        if given.get(switch.name) == "off":
            raise UsageError(
                f"--{option.flag} needs --{switch.flag}, which is turned off",
                hint=f"leave out one of them, or give --{switch.flag} on",
            )
        if switch.values == ON_OFF:
            result.setdefault(switch.name, "on")
        elif switch.name not in given:
            raise UsageError(f"--{option.flag} needs --{switch.flag}")
    return result


def _check(option: MsprofOption, text: str, offer: Offer) -> None:
    if option.range:
        low, high = option.range
        high = offer.limits.get(option.flag, high)
        if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
            raise _bad_value(option, text, f"a whole number from {low} to {high}")
    elif option.many:
        parts = text.split(",")
        if not {*parts} <= {*option.values}:
            raise _bad_value(option, text, f"a list of {', '.join(option.values)}")
    elif option.values:
        values = offer.values.get(option.flag, option.values)
        if text not in values:
            raise _bad_value(option, text, f"one of {', '.join(values)}")
    elif option.flag == "aic-metrics":
        _check_metrics(
            option, text, offer.metrics or AIC_METRICS, offer.custom_events or _MAX_CUSTOM_EVENTS
        )
    elif option.flag == "nts-metrics":
        _check_metrics(option, text, NTS_METRICS, _MAX_NTS_EVENTS)
    elif option.flag == "npu-events":
        _check_events(option, text)
    elif option.flag == "storage-limit":
        size = re.fullmatch(r"(\d{1,10})MB", text, re.ASCII)
        if not (size and _MIN_STORAGE_MB <= int(size[1]) <= _U32_MAX):
            raise _bad_value(option, text, f"{_MIN_STORAGE_MB}MB to {_U32_MAX}MB")
    elif not text.strip():
        raise _bad_value(option, text, "a list of names")


def _check_metrics(option: MsprofOption, text: str, known: Sequence[str], most: int) -> None:
    kind, colon, events = text.partition(":")
    if kind == "Custom" and colon:
        numbers = events.split(",")
        valid = all(re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", n, re.ASCII) for n in numbers)
        if not valid or len(numbers) > most:
            expected = f"Custom: and 1 to {most} hexadecimal or decimal numbers"
            raise _bad_value(option, text, expected)
    elif text not in known:
        raise _bad_value(option, text, f"one of {', '.join(known)}, Custom:0x1,0x2...")


def _check_events(option: MsprofOption, text: str) -> None:
    groups = [group.rpartition(":") for group in text.split(";")]
    kinds = [kind for kind, _, _ in groups]
    named = all(kind in _MAX_SOC_EVENTS for kind in kinds) and len({*kinds}) == len(kinds)
    valid = all(
        all(re.fullmatch(r"0[xX][0-9a-fA-F]+", event, re.ASCII) for event in events.split(","))
        and len(events.split(",")) <= _MAX_SOC_EVENTS.get(kind, 8)
        for kind, _, events in groups
    )
    if not valid or not (named or kinds == [""]):
        kinds_known = ", ".join(_MAX_SOC_EVENTS)
        expected = (
            f"1 to 8 numbers such as 0x9c, or several such lists, each after one of {kinds_known}"
        )
        raise _bad_value(option, text, f"{expected} and a colon, separated by semicolons,")


def _check_together(chosen: Mapping[str, str], given: Mapping[str, str]) -> None:
    domains = [name for name in ("mstx_domain_include", "mstx_domain_exclude") if name in given]
    if len(domains) == 2:
        raise UsageError("--mstx-domain-include and --mstx-domain-exclude exclude each other")
    if domains and chosen.get("msproftx") != "on":
        raise UsageError(f"--{domains[0].replace('_', '-')} needs --msproftx on")
    if "aic_freq" in given and chosen.get("aic_mode") != "sample-based":
        raise UsageError("--aic-freq needs --aic-mode sample-based")
    if "npu_events" in given and given.get("l2") == "on":
        raise UsageError("--npu-events and --l2 exclude each other: msprof would record only l2")


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
