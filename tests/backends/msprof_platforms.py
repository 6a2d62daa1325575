"""Options that the real msprof accepts and rejects per platform, with its messages."""

import os
from dataclasses import dataclass, field

NAMES = {0: "310", 1: "910A", 4: "310P", 5: "910B", 7: "310B", 15: "950", 16: "950"}
"""Platform -> common name of the chip."""

_ON_OFF = ["on", "off"]
_OPTIONS: dict[str, list[str] | tuple[int, int] | None] = {
    **dict.fromkeys(
        [
            *("output", "application", "environment", "python-path", "mstx-domain-include"),
            *("mstx-domain-exclude", "sys-devices", "reports", "host-sys-pid", "storage-limit"),
            *("aic-metrics", "npu-events", "host-sys", "host-sys-usage", "nts-metrics"),
            *("iteration-id", "model-id", "instr-profiling-freq", "optype"),
        ]
    ),
    **dict.fromkeys(
        [
            *("ascendcl", "runtime-api", "ai-core", "ai-vector-core", "aicpu", "hccl", "l2"),
            *("msproftx", "task-memory", "task-tsfw", "model-execution", "sys-cpu-profiling"),
            *("sys-profiling", "sys-pid-profiling", "sys-hardware-mem", "sys-io-profiling"),
            *("sys-interconnection-profiling", "dvpp-profiling", "instr-profiling", "sys-lp"),
            *("parse", "query", "export", "analyze", "clear", "dynamic"),
        ],
        _ON_OFF,
    ),
    "task-time": ["on", "off", "l0", "l1", "l2", "l3"],
    "ge-api": ["off", "l0", "l1"],
    "task-block": ["on", "off", "all"],
    "aic-mode": ["task-based", "sample-based"],
    "aiv-mode": ["task-based", "sample-based"],
    "llc-profiling": ["read", "write"],
    "type": ["text", "db"],
    "summary-format": ["csv", "json"],
    "aic-freq": (1, 100),
    "sys-sampling-freq": (1, 10),
    "sys-pid-sampling-freq": (1, 10),
    "sys-cpu-freq": (1, 50),
    "sys-hardware-mem-freq": (1, 100),
    "sys-io-sampling-freq": (1, 100),
    "sys-interconnection-freq": (1, 50),
    "host-sys-usage-freq": (1, 50),
    "dvpp-freq": (1, 100),
    "sys-period": (1, 2592000),
    "pid": (1, 2147483647),
    "delay": (1, 4294967295),
    "duration": (1, 4294967295),
}
LIMITS = {flag: values for flag, values in _OPTIONS.items() if isinstance(values, tuple)}
_AIV = ["ai-vector-core", "aiv-mode"]
_LINKS = ["sys-interconnection-profiling", "sys-interconnection-freq"]
_PORTS = ["sys-io-profiling", "sys-io-sampling-freq"]
_INSTRUCTIONS = ["instr-profiling", "instr-profiling-freq"]
_REFUSED = {
    0: [
        *_LINKS,
        *_AIV,
        *_INSTRUCTIONS,
        *("l2", "storage-limit", "task-block", "dynamic", "pid", "npu-events", "delay", "duration"),
        *("sys-lp", "optype"),
    ],
    1: [*_AIV, "task-block", "sys-lp", *_INSTRUCTIONS, "optype"],
    4: [*_AIV, *_PORTS, "task-block", *_INSTRUCTIONS, "sys-lp", "optype"],
    5: [*_AIV, "sys-lp"],
    7: [*_AIV, *_LINKS, *_INSTRUCTIONS, "sys-lp"],
    15: _AIV,
    16: _AIV,
}
_METRICS = ["ArithmeticUtilization", "PipeUtilization", "Memory", "MemoryL0", "MemoryUB"]
_MORE_METRICS = {
    5: ["L2Cache", "ResourceConflictRatio", "MemoryAccess"],
    7: ["L2Cache", "ResourceConflictRatio", "PipelineExecuteUtilization"],
    15: ["L2Cache", "ResourceConflictRatio"],
    16: ["L2Cache", "ResourceConflictRatio"],
}
_BLOCKS = {7: ["off", "all"], 15: ["on", "off", "all"], 16: ["on", "off", "all"]}
_ON_THE_DEVICE = ["host-sys", "host-sys-usage", "host-sys-usage-freq", "python-path", "export"]
"""Refused if msprof runs on the chip's own system."""


@dataclass
class Parsed:
    """Result of a command line."""

    status: int | None = None
    """Exit status of a refusal, None if the command continues."""
    messages: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    application: list[str] = field(default_factory=list)


def metrics_of(platform: int) -> list[str]:
    return [*_METRICS, *_MORE_METRICS.get(platform, ["ResourceConflictRatio"])]


def known_options(platform: int, *, on_device: bool = False, old: bool = False) -> list[str]:
    """Return the options in the help of msprof; an old release lacks --type and newer ones."""
    unsupported = [*_REFUSED[platform], *(_ON_THE_DEVICE if on_device else [])]
    unsupported += ["nts-metrics", *([] if platform in _BLOCKS else ["task-block"])]
    unsupported += ["type", "python-path", "npu-events", "ge-api"] if old else []
    return [name for name in _OPTIONS if name not in unsupported]


def help_text(platform: int, *, on_device: bool = False, old: bool = False) -> list[str]:
    lines = ["", "Usage:", "      ./msprof [--options]", "", "Options:"]
    details = {
        "aic-metrics": "The aic metrics groups, include "
        + ", ".join(metrics_of(platform))
        + ".\n\t\t\t\t\t\t   the default value is PipeUtilization.",
        "sys-hardware-mem-freq": "QOS, HBM, LLC, SOC and mem acquisition frequency, range 1 ~ 10000"
        " for QOS and SOC, 1 ~ 100 for HBM, LLC and mem, the default value is 50, unit Hz."
        if platform in (15, 16)
        else "LLC, DDR, HBM acquisition frequency, range 1 ~ 100, the default value is 50.",
        "task-time": "Show task profiling data, the default value is on. The possible parameters"
        " are 'l0', 'l1', 'l2', 'on' or 'off'.",
        "task-block": "Show task block profiling data, the default value is off.The possible"
        f" parameters are {', '.join(repr(value) for value in _BLOCKS.get(platform, []))}.",
    }
    for name in [*known_options(platform, on_device=on_device, old=old), "help"]:
        detail = details.get(name, f"About {name}, the default value is off.")
        lines += f"      --{name:<32}<Optional> {detail}".split("\n")
    return lines


def check(
    arguments: list[str], platform: int, *, on_device: bool = False, old: bool = False
) -> Parsed:
    """Parse a command line in the order of the genuine command."""
    parsed = Parsed()

    def refuse(*lines: str) -> Parsed:
        parsed.status = 255
        parsed.messages += lines
        return parsed

    usage = help_text(platform, on_device=on_device, old=old)
    rest = [*arguments]
    while rest and rest[0].startswith("--"):
        word = rest.pop(0)
        name, equals, value = word[2:].partition("=")
        if name == "help":
            parsed.status, parsed.messages = 0, usage
            return parsed
        listed = known_options(platform, on_device=on_device, old=True)
        if name not in _OPTIONS or (old and name not in [*listed, *_REFUSED[platform]]):
            return refuse(f"msprof: unrecognized option '{word}'", *usage)
        unsupported = [*_REFUSED[platform], *(_ON_THE_DEVICE if on_device else [])]
        if name in unsupported:
            return refuse(
                f"/usr/local/Ascend/bin/msprof: unrecognized option '{word}'",
                f"PlatformType:{platform}",
                *usage,
            )
        if not equals:
            return refuse(
                f"[ERROR] Argument --{name}: expected one argument. Please use --{name}=<value>."
            )
        if why := _wrong_value(name, value, platform):
            return refuse(f"[ERROR] {why}")
        parsed.options[name] = value
    parsed.application = rest
    if "pid" in parsed.options and parsed.options.get("dynamic") != "on":
        return refuse("[ERROR] Argument --dynamic=off, but --pid is set.")
    domains = [name for name in parsed.options if name.startswith("mstx-domain")]
    if domains and parsed.options.get("msproftx") != "on":
        return refuse(
            "[ERROR] Argument --mstx-domain-include/--mstx-domain-exclude must be used with"
            " --msproftx=on."
        )
    output = parsed.options.get("output", ".")
    if {*output} & {*"\n\f\r\b\t\v\x7f\"'\\%><|&$;`"}:
        return refuse(f"[ERROR] Argument --output {output} contains invalid character.")
    return parsed


def _wrong_value(name: str, value: str, platform: int) -> str | None:
    expected = _OPTIONS[name]
    if isinstance(expected, tuple):
        low, high = expected
        if name == "sys-hardware-mem-freq" and platform in (15, 16):
            high = 10000
        if not value.isdecimal() or not low <= int(value) <= high:
            return (
                f"Argument --{name}: invalid int value: {value}."
                f"Please input data is in {low} to {high}."
            )
    if name == "llc-profiling" and platform == 0:
        expected = ["capacity", "bandwidth"]
    if name == "task-block":
        expected = _BLOCKS.get(platform, [])
    if name == "task-time" and value == "l3":
        return "l3 is not supported on this platform."
    if isinstance(expected, list) and value not in expected:
        choices = " or ".join(repr(value) for value in expected)
        return f"Argument --{name}: invalid value: {value}. Please input {choices}."
    if name == "aic-metrics":
        kinds = metrics_of(platform)
        maximum = 10 if platform in (15, 16) else 8
        kind, colon, events = value.partition(":")
        custom = kind == "Custom" and colon and events and len(events.split(",")) <= maximum
        if not custom and value not in kinds:
            return (
                f"Argument --aic-metrics: invalid value:{value}. Please input in the range of "
                f"[{'|'.join(kinds)}]"
            )
    if name == "nts-metrics":
        return "Argument [nts_metrics] is not supported."
    if name in ("host-sys", "host-sys-usage"):
        most_kinds = "cpu mem" if name == "host-sys-usage" else "cpu mem disk network osrt numa"
        if not {*value.split(",")} <= {*most_kinds.split()}:
            return f"Argument --{name}: invalid value:{value}."
    if name == "python-path":
        if not os.path.exists(value):  # noqa: PTH110
            return f"Argument --python-path {value} does not exist or permission denied!!!"
        if not os.access(value, os.X_OK):
            return f"Argument --python-path {value} permission denied."
    return None
