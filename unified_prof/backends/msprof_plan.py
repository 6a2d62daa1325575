"""Options and presets of msprof, and the choice of its arguments from both.

The accepted options are read from `msprof --help`, which lists the options and counters of the chip
without starting a recording; if it fails, the table of chips is used. Preset options that may be
unsupported are tried, and omitted if msprof rejects them. Invalid options of the user are rejected
here, before anything starts.

The table of options defines the command line, its help, the checks before a run, and the arguments
of msprof. Values and ranges are those of the public collector; differences between chips are in
`cann` and here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from unified_prof.backends import cann
from unified_prof.backends.cann import Chip
from unified_prof.errors import UsageError

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


class MsprofOption(Struct, frozen=True):
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


_OPTION = re.compile(r"^\s*--([a-z][a-z0-9-]*)\s+<(?:Optional|Mandatory)>", re.MULTILINE)
_METRICS = re.compile(r"\binclude:?\s+([A-Za-z0-9,\s]+?)\s*\.")
_UPPER_LIMIT = re.compile(r"\b\d+ ?~ ?(\d+)\b")
_QUOTED = re.compile(r"'([a-z0-9]+)'")
_BRACKETED = re.compile(r"\bin range \[([a-z0-9, ]+)\]")
# Options that the complete help of msprof always contains.
_REQUIRED_OPTIONS = frozenset({"output", "ascendcl", "task-time"})
_WITH_VALUES = ("task-time", "task-block")
_WITH_LIMIT = "sys-hardware-mem-freq"


class Offer(Struct, frozen=True):
    """Options and values that msprof accepts; if unknown, they count as accepted."""

    chip: str | None = None  # Name of the chip.
    place: str = "here"  # Name of the chip in messages, such as `on a 310P`.
    refused: frozenset[str] = frozenset()  # Options that msprof rejects on this chip.
    options: frozenset[str] | None = None  # All options of msprof, None if not known.
    metrics: tuple[str, ...] | None = None  # Values of `--aic-metrics`, None if not known.
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    custom_events: int | None = None

    def takes(self, flag: str) -> bool:
        """Return True unless msprof is known to reject `--FLAG`."""
        return flag not in self.refused and (self.options is None or flag in self.options)

    def without(self, flag: str) -> Offer:
        """Return a copy without the option `--FLAG`, which msprof rejected."""
        return replace(self, refused=self.refused | {flag})


def detect_offer(chip_name: str | None = None) -> Offer:
    """Return the options that msprof accepts on this machine, or on the named chip.

    Raises UsageError if there is no chip of that name.
    """
    if chip_name is not None:
        chip = cann.find_chip(chip_name)
        return replace(offer_for_chip(chip) if chip else Offer(), chip=chip_name)
    full_name = cann.chip()
    chip = cann.by_full_name(full_name)
    base = replace(offer_for_chip(chip) if chip else Offer(), chip=full_name)
    return offer_from_help(cann.msprof_help() or "", base) or base


def offer_for_chip(chip: Chip) -> Offer:
    """Return the options that msprof accepts on `chip`, according to the table of chips."""
    return Offer(
        place=f"on a {chip.name}",
        refused=chip.refuses,
        metrics=chip.metrics,
        values=chip.values,
        limits=chip.limits,
        custom_events=chip.custom_events,
    )


def offer_from_help(text: str, base: Offer) -> Offer | None:
    """Parse the help text of msprof; return None if `text` is not its help.

    `base` has the values for information that is not in the help.
    """
    starts = [*_OPTION.finditer(text)]
    bounds = [*(start.start() for start in starts), len(text)]
    details = {
        start[1]: text[start.end() : end] for start, end in zip(starts, bounds[1:], strict=True)
    }
    if not details.keys() >= _REQUIRED_OPTIONS:
        return None
    values = {
        name: found for name in _WITH_VALUES if len(found := _values_in(details.get(name, ""))) > 1
    }
    limits = [int(one) for one in _UPPER_LIMIT.findall(details.get(_WITH_LIMIT, ""))]
    return replace(
        base,
        refused=frozenset(),
        options=frozenset(details),
        metrics=_metrics_in(details.get("aic-metrics", "")) or base.metrics,
        values={**base.values, **values},
        limits={**base.limits, **({_WITH_LIMIT: max(limits)} if limits else {})},
    )


def _values_in(detail: str) -> tuple[str, ...]:
    if found := _BRACKETED.search(detail):
        return tuple(one.strip() for one in found[1].split(","))
    return tuple(dict.fromkeys(_QUOTED.findall(detail)))


def _metrics_in(detail: str) -> tuple[str, ...]:
    found = _METRICS.search(detail)
    names = [one.strip() for one in found[1].split(",")] if found else []
    return tuple(names) if names and all(map(str.isalnum, names)) else ()


_MAX_SOC_EVENTS = {"HA": 8, "MATA": 8, "SMMU": 8, "NOC": 4}
# Options that uprof sets, or that make msprof do something else than run a workload.
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

# Option -> values of old releases that replace the value of a preset.
_LOWER = {"task_time": ("l1", "on")}


class Plan(Struct, frozen=True):
    """Arguments of msprof."""

    arguments: tuple[str, ...]  # Checked arguments as `--name=value`.
    # Omitted options of the preset, which msprof does not accept here.
    left_out: tuple[MsprofOption, ...]
    # Values of the preset that this msprof does not have, such as `--task-time=l2`, and that a
    # lower value replaces.
    lowered: tuple[str, ...]
    preset: str
    optional: frozenset[str]  # Options of the preset that can be omitted if msprof rejects them.

    @property
    def dropped(self) -> tuple[str, ...]:
        """Unsupported options and values of the preset, written as on the command line."""
        return (*(f"--{option.flag}" for option in self.left_out), *self.lowered)


def plan(options: Mapping[str, object], *, raw: Sequence[str] = (), offer: Offer) -> Plan:
    """Choose the arguments for msprof from a preset and the user's options.

    `options` are values by name, including `preset`; None means not given. `raw` are arguments for
    msprof, which are checked first. Options of the preset that msprof does not offer are omitted;
    such options of the user are an error. Raises UsageError if a value is invalid, or two options
    cannot be combined.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    preset = given.pop("preset", DEFAULT_PRESET)
    if preset not in PRESETS:
        raise UsageError(
            f"unknown preset {preset!r}",
            hint=f"known: {', '.join(PRESETS)}",
            slug="wrong-npu-option",
        )
    for name, text in given.items():
        option = BY_NAME[name]
        if not offer.takes(option.flag):
            raise UsageError(
                f"--{option.flag}: not supported by msprof {offer.place}", slug="wrong-npu-option"
            )
        _check(option, text, offer)
    given = _with_switches(given)
    usual, lowered = _lowered(PRESETS[preset], offer)
    chosen = {**usual, **given}
    _check_together(chosen, given)
    left_out = [o for o in OPTIONS if o.name in chosen and not offer.takes(o.flag)]
    if asked := [option for option in left_out if option.name in given]:
        raise UsageError(
            f"--{asked[0].flag}: not supported by msprof {offer.place}", slug="wrong-npu-option"
        )
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


def _lowered(preset: Mapping[str, str], offer: Offer) -> tuple[dict[str, str], dict[str, str]]:
    """Replace unsupported values of a preset by lower ones; also return the replaced values."""
    usual, gone = dict(preset), {}
    for name, instead in _LOWER.items():
        known = offer.values.get(BY_NAME[name].flag)
        if known and name in usual and usual[name] not in known:
            gone[name] = usual[name]
            usual[name] = next((one for one in instead if one in known), usual[name])
    return usual, gone


def _with_switches(given: Mapping[str, str]) -> dict[str, str]:
    """Return `given` with all required switches turned on.

    Raises UsageError if the user turned a required switch off.
    """
    result = dict(given)
    for name in given:
        option = BY_NAME[name]
        if option.requires is None:
            continue
        switch = BY_NAME[option.requires]
        if given.get(switch.name) == "off":
            raise UsageError(
                f"--{option.flag} requires --{switch.flag}, which is off",
                hint=f"omit one of them, or use --{switch.flag} on",
                slug="wrong-npu-option",
            )
        if switch.values == ON_OFF:
            result.setdefault(switch.name, "on")
        elif switch.name not in given:
            raise UsageError(f"--{option.flag} requires --{switch.flag}", slug="wrong-npu-option")
    return result


def _check(option: MsprofOption, text: str, offer: Offer) -> None:
    if option.most:
        most = offer.limits.get(option.flag, option.most)
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
            raise _bad_value(option, text, f"a whole number from 1 to {most}")
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
            option, text, offer.metrics or AIC_METRICS, offer.custom_events or MAX_CUSTOM_EVENTS
        )
    elif option.flag == "nts-metrics":
        _check_metrics(option, text, NTS_METRICS, MAX_NTS_EVENTS)
    elif option.flag == "npu-events":
        _check_events(option, text)
    elif option.flag == "storage-limit":
        size = re.fullmatch(r"(\d{1,10})MB", text, re.ASCII)
        if not (size and MIN_STORAGE_MB <= int(size[1]) <= U32_MAX):
            raise _bad_value(option, text, f"{MIN_STORAGE_MB}MB to {U32_MAX}MB")
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
        raise UsageError(
            "--mstx-domain-include and --mstx-domain-exclude cannot be combined",
            slug="wrong-npu-option",
        )
    if domains and chosen.get("msproftx") != "on":
        raise UsageError(
            f"--{domains[0].replace('_', '-')} requires --msproftx on", slug="wrong-npu-option"
        )
    if "aic_freq" in given and chosen.get("aic_mode") != "sample-based":
        raise UsageError("--aic-freq requires --aic-mode sample-based", slug="wrong-npu-option")
    if "npu_events" in given and given.get("l2") == "on":
        raise UsageError(
            "--npu-events and --l2 cannot be combined: msprof would record only l2",
            slug="wrong-npu-option",
        )


def _checked_raw(argument: str) -> str:
    name = argument.partition("=")[0]
    if not re.fullmatch(r"--[a-z0-9-]+", name, re.ASCII):
        raise UsageError(
            f"--msprof-arg {argument!r} is not an option of msprof",
            hint="write --msprof-arg=--name=value",
            slug="wrong-npu-option",
        )
    if name[2:] in _NOT_TO_BE_PASSED:
        raise UsageError(f"--msprof-arg: {name} is set by uprof", slug="wrong-npu-option")
    if name[2:] in {option.flag for option in OPTIONS}:
        raise UsageError(f"--msprof-arg: use the option {name} of uprof", slug="wrong-npu-option")
    return argument


def _bad_value(option: MsprofOption, found: str, expected: str) -> UsageError:
    return UsageError(
        f"--{option.flag}: expected {expected}, found {found!r}", slug="wrong-npu-option"
    )
