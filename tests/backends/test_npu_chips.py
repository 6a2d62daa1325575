"""Arguments for msprof compared with what every chip accepts, without a process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.backends import msprof_platforms
from unified_prof.backends import cann, msprof_outcome, npu
from unified_prof.backends.msprof_plan import (
    OPTIONS,
    PRESETS,
    MsprofOption,
    Offer,
    offer_for_chip,
    offer_from_help,
    plan,
)
from unified_prof.errors import UsageError

PLATFORMS = msprof_platforms.NAMES


def by_table(platform: int) -> Offer:
    (chip,) = (chip for chip in cann.CHIPS if platform in chip.platforms)
    return offer_for_chip(chip)


def by_help(platform: int, **kind: bool) -> Offer:
    text = "\n".join(msprof_platforms.help_text(platform, **kind))
    offer = offer_from_help(text, Offer())
    assert offer is not None
    return offer


def first_message(arguments: list[str], platform: int, **kind: bool) -> str | None:
    parsed = msprof_platforms.check([*arguments, "bash", "x.sh"], platform, **kind)
    assert (parsed.status is None) == (not parsed.messages)
    return parsed.messages[0] if parsed.messages else None


def example_value(option: MsprofOption, offer: Offer) -> str:
    """Return a value that `option` accepts on every chip that has it."""
    if option.most:
        return str(option.most)
    if option.values:
        return offer.values.get(option.flag, option.values)[0]
    texts = {"aic-metrics": "Memory", "nts-metrics": "PipeUtilization", "npu-events": "0x9c"}
    return {**texts, "storage-limit": "200MB"}.get(option.flag, "a")


@pytest.mark.parametrize(("preset", "platform"), [*itertools.product(PRESETS, PLATFORMS)])
def test_every_preset_is_accepted_by_every_chip(preset: str, platform: int) -> None:
    for offer in (by_table(platform), by_help(platform)):
        planned = plan({"preset": preset}, offer=offer)
        assert first_message([*planned.arguments], platform) is None
        kept = {word[2:].partition("=")[0] for word in planned.arguments}
        gone = {option.flag for option in planned.left_out}
        assert kept | gone == {name.replace("_", "-") for name in PRESETS[preset]}
        assert not gone & {*msprof_platforms.known_options(platform)}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_unknown_chip_drops_refused_options_until_the_preset_is_accepted(platform: int) -> None:
    for preset in PRESETS:
        offer = Offer()
        for _ in OPTIONS:
            planned = plan({"preset": preset}, offer=offer)
            if (message := first_message([*planned.arguments], platform)) is None:
                break
            refused = msprof_outcome.refused_option([message])
            assert refused in planned.optional
            offer = offer.without(str(refused))
        assert planned.left_out == plan({"preset": preset}, offer=by_table(platform)).left_out


def test_full_preset_omits_only_unsupported_options() -> None:
    left_out = {
        name: [option.flag for option in plan({"preset": "full"}, offer=by_table(number)).left_out]
        for number, name in PLATFORMS.items()
    }
    assert left_out == {
        "310": ["sys-interconnection-profiling"],
        "910A": [],
        "310P": ["sys-io-profiling"],
        "910B": [],
        "310B": ["sys-interconnection-profiling"],
        "950": [],
    }


@pytest.mark.parametrize("platform", PLATFORMS)
def test_chip_table_and_msprof_agree_on_every_option(platform: int) -> None:
    for option in OPTIONS:
        offer = by_table(platform)
        value = example_value(option, offer)
        extra = ["--msproftx=on"] if option.flag.startswith("mstx-domain") else []
        message = first_message([*extra, f"--{option.flag}={value}"], platform)
        assert offer.takes(option.flag) == (message is None), (option.flag, message)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_unsupported_options_are_refused_before_the_run(platform: int) -> None:
    for option in OPTIONS:
        for offer in (by_table(platform), by_help(platform)):
            if offer.takes(option.flag):
                continue
            with pytest.raises(UsageError, match=f"--{option.flag}: "):
                plan({option.name: example_value(option, offer)}, offer=offer)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_counters_are_checked_by_chip_before_the_run(platform: int) -> None:
    known = {*msprof_platforms.metrics_of(platform)}
    candidates = {"L2Cache", "MemoryAccess", "PipelineExecuteUtilization", *known}
    for offer in (by_table(platform), by_help(platform)):
        assert {*(offer.metrics or ())} == known
        for name in candidates:
            if name in known:
                arguments = plan({"aic_metrics": name}, offer=offer).arguments
                assert first_message([*arguments], platform) is None
                continue
            with pytest.raises(
                UsageError, match=f"--aic-metrics: expected one of Ar.*, found '{name}'"
            ):
                plan({"aic_metrics": name}, offer=offer)


def test_limits_of_numbers_are_those_of_msprof() -> None:
    limits = {option.flag: (1, option.most) for option in OPTIONS if option.most}
    assert limits == {flag: msprof_platforms.LIMITS[flag] for flag in limits}


def test_values_that_differ_by_chip_are_checked() -> None:
    assert plan({"llc_profiling": "capacity"}, offer=by_table(0)).arguments
    with pytest.raises(UsageError, match="expected one of capacity, bandwidth"):
        plan({"llc_profiling": "read"}, offer=by_table(0))
    with pytest.raises(UsageError, match="expected one of all, off"):
        plan({"task_block": "on"}, offer=by_table(7))
    for offer in (by_table(15), by_help(15)):
        planned = plan({"task_block": "on", "sys_hardware_mem_freq": "10000"}, offer=offer)
        assert first_message([*planned.arguments], 15) is None
    ten = "Custom:" + ",".join(str(number) for number in range(1, 11))
    assert first_message([*plan({"aic_metrics": ten}, offer=by_table(15)).arguments], 15) is None
    with pytest.raises(UsageError, match="1 to 8"):
        plan({"aic_metrics": ten}, offer=by_table(5))
    with pytest.raises(UsageError, match="expected one of l0, l1, l2, on, off"):
        plan({"task_time": "l3"}, offer=by_help(5))


def test_host_is_not_sampled_on_the_chips_own_system() -> None:
    offer = by_help(7, on_device=True)
    planned = plan({"preset": "full"}, offer=offer)
    assert "host-sys" in {option.flag for option in planned.left_out}
    command = npu.command_line(Path("msprof"), planned.arguments, Path("/out"), [], offer)
    assert first_message(command[1:], 7, on_device=True) is None


HELP = "\n".join(msprof_platforms.help_text(5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[ERROR] Init platform by driver faild!",
        "--output only",
        HELP.partition("--task-time")[0],
    ],
)
def test_incomplete_help_is_rejected(text: str) -> None:
    assert offer_from_help(text, Offer()) is None


@pytest.mark.parametrize(
    ("full_name", "chip"),
    [
        ("Ascend 310", "310"),
        ("Ascend 310P3", "310P"),
        ("Ascend310P1", "310P"),
        ("Ascend 310B4", "310B"),
        ("Ascend 910A", "910A"),
        ("Ascend910ProB", "910A"),
        ("Ascend 910B3", "910B"),
        ("910B4-1", "910B"),
        ("Ascend910_9391", "910B"),
        ("Ascend950PR_9579", "950"),
        # Boards of two generations have these names: only msprof itself can distinguish them.
        ("Ascend 910B", None),
        ("Ascend 910", None),
        ("Ascend 1000", None),
        ("", None),
        (None, None),
    ],
)
def test_chip_is_recognized_by_names_of_tools(full_name: str | None, chip: str | None) -> None:
    found = cann.by_full_name(full_name)
    assert (found.name if found else None) == chip


@pytest.mark.parametrize(
    ("text", "chip"),
    [("310p", "310P"), ("910B", "910B"), ("A3", "910B"), ("910", "910A"), ("Ascend 310B1", "310B")],
)
def test_chip_is_found_by_names_of_users(text: str, chip: str) -> None:
    found = cann.find_chip(text)
    assert found is not None
    assert found.name == chip


def test_unknown_chip_is_a_usage_error() -> None:
    assert cann.find_chip("unknown") is None
    names = "310, 910A, 310P, 910B, 310B, 950, unknown"
    with pytest.raises(UsageError, match=f"expected one of {names}, found 'H100'"):
        cann.find_chip("H100")


def test_refused_option_is_read_from_msprofs_messages() -> None:
    by_getopt = ["msprof: unrecognized option '--bogus=1'"]
    by_itself = ["/opt/a b/msprof: unrecognized option '--sys-io-profiling=on'", "PlatformType:4"]
    assert msprof_outcome.refused_option(by_getopt) == "bogus"
    assert msprof_outcome.refused_option(by_itself) == "sys-io-profiling"
    assert msprof_outcome.refused_option(["[INFO] unrecognized option '--x=1'", ""]) is None


def test_older_release_gets_the_next_lower_level_with_a_note() -> None:
    lines = msprof_platforms.help_text(5, old=True)
    text = "\n".join(lines).replace(
        "The possible parameters are 'l0', 'l1', 'l2', 'on' or 'off'.",
        "\n\t\t The switch can be set in range [l0, l1, on, off]",
    )
    offer = offer_from_help(text, Offer())
    assert offer is not None
    planned = plan({"preset": "full"}, offer=offer)
    assert "--task-time=l1" in planned.arguments
    assert planned.dropped == ("--ge-api", "--task-time=l2")
    assert plan({"preset": "full", "task_time": "l0"}, offer=offer).lowered == ()
    assert plan({"preset": "default"}, offer=offer).lowered == ()
    with pytest.raises(UsageError, match="expected one of l0, l1, on, off, found 'l2'"):
        plan({"task_time": "l2"}, offer=offer)
