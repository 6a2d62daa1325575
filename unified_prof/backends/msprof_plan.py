"""Chooses the arguments of msprof from a preset and the user's options.

The accepted options are read from `msprof --help`, which lists the options and counters of the chip
without starting a recording; if it fails, the table of chips is used. Preset options that may be
unsupported are tried, and omitted if msprof rejects them. Invalid options of the user are rejected
here, before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from unified_prof.backends import cann
from unified_prof.backends.cann import Chip
from unified_prof.backends.msprof_options import (
    AIC_METRICS,
    BY_NAME,
    DEFAULT_PRESET,
    MAX_CUSTOM_EVENTS,
    MAX_NTS_EVENTS,
    MIN_STORAGE_MB,
    NTS_METRICS,
    ON_OFF,
    OPTIONS,
    PRESETS,
    U32_MAX,
    MsprofOption,
)
from unified_prof.errors import UsageError

_OPTION = re.compile(r"^\s*--([a-z][a-z0-9-]*)\s+<(?:Optional|Mandatory)>", re.MULTILINE)
_METRICS = re.compile(r"\binclude:?\s+([A-Za-z0-9,\s]+?)\s*\.")
_UPPER_LIMIT = re.compile(r"\b\d+ ?~ ?(\d+)\b")
_QUOTED = re.compile(r"'([a-z0-9]+)'")
_BRACKETED = re.compile(r"\bin range \[([a-z0-9, ]+)\]")
# Options that the complete help of msprof always contains.
_REQUIRED_OPTIONS = frozenset({"output", "ascendcl", "task-time"})
_WITH_VALUES = ("task-time", "task-block")
_WITH_LIMIT = "sys-hardware-mem-freq"


@dataclass(frozen=True, slots=True)
class Offer:
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


@dataclass(frozen=True, slots=True)
class Plan:
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
