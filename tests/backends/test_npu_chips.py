"""Arguments for msprof compared with what it accepts on every chip, without a process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.backends import msprof_platforms
from unified_prof.backends import cann, msprof_command, msprof_outcome
from unified_prof.backends.msprof_options import OPTIONS, PRESETS, MsprofOption
from unified_prof.backends.msprof_plan import Offer, offer_for_chip, offer_from_help, plan
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


def refusal(arguments: list[str], platform: int, **kind: bool) -> str | None:
    parsed = msprof_platforms.check([*arguments, "bash", "x.sh"], platform, **kind)
    assert (parsed.status is None) == (not parsed.said)
    return parsed.said[0] if parsed.said else None


def a_value(option: MsprofOption, offer: Offer) -> str:
    """Return a value that `option` takes wherever it is taken."""
    if option.range:
        return str(option.range[1])
    if option.values:
        return offer.values.get(option.flag, option.values)[0]
    texts = {"aic-metrics": "Memory", "nts-metrics": "PipeUtilization", "npu-events": "0x9c"}
    return {**texts, "storage-limit": "200MB"}.get(option.flag, "a")


@pytest.mark.parametrize(("preset", "platform"), [*itertools.product(PRESETS, PLATFORMS)])
def test_every_preset_is_taken_by_every_chip(preset: str, platform: int) -> None:
    for offer in (by_table(platform), by_help(platform)):
        made = plan({"preset": preset}, offer=offer)
        assert refusal([*made.arguments], platform) is None
        kept = {word[2:].partition("=")[0] for word in made.arguments}
        gone = {option.flag for option in made.left_out}
        assert kept | gone == {name.replace("_", "-") for name in PRESETS[preset]}
        assert not gone & {*msprof_platforms.known_options(platform)}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_unknown_chip_refuses_one_option_after_the_other_until_all_are_taken(
    platform: int,
) -> None:
    for preset in PRESETS:
        offer = Offer()
        for _ in OPTIONS:
            made = plan({"preset": preset}, offer=offer)
            if (said := refusal([*made.arguments], platform)) is None:
                break
            refused = msprof_outcome.refused_option([said])
            assert refused in made.optional
            offer = offer.without(str(refused))
        assert made.left_out == plan({"preset": preset}, offer=by_table(platform)).left_out


def test_what_full_leaves_out_is_what_the_chip_has_not() -> None:
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
def test_the_table_and_msprof_agree_on_every_option(platform: int) -> None:
    for option in OPTIONS:
        offer = by_table(platform)
        value = a_value(option, offer)
        extra = ["--msproftx=on"] if option.flag.startswith("mstx-domain") else []
        said = refusal([*extra, f"--{option.flag}={value}"], platform)
        assert offer.takes(option.flag) == (said is None), (option.flag, said)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_the_user_asks_for_and_the_chip_has_not_is_found_before_anything_starts(
    platform: int,
) -> None:
    for option in OPTIONS:
        for offer in (by_table(platform), by_help(platform)):
            if offer.takes(option.flag):
                continue
            with pytest.raises(UsageError, match=f"--{option.flag}: "):
                plan({option.name: a_value(option, offer)}, offer=offer)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_counters_are_checked_by_chip_before_anything_starts(platform: int) -> None:
    known = {*msprof_platforms.metrics_of(platform)}
    everywhere = {"L2Cache", "MemoryAccess", "PipelineExecuteUtilization", *known}
    for offer in (by_table(platform), by_help(platform)):
        assert {*(offer.metrics or ())} == known
        for name in everywhere:
            if name in known:
                arguments = plan({"aic_metrics": name}, offer=offer).arguments
                assert refusal([*arguments], platform) is None
                continue
            with pytest.raises(
                UsageError, match=f"--aic-metrics: expected one of Ar.*, found '{name}'"
            ):
                plan({"aic_metrics": name}, offer=offer)


def test_values_that_differ_from_chip_to_chip() -> None:
    assert plan({"llc_profiling": "capacity"}, offer=by_table(0)).arguments
    with pytest.raises(UsageError, match="expected one of capacity, bandwidth"):
        plan({"llc_profiling": "read"}, offer=by_table(0))
    with pytest.raises(UsageError, match="expected one of all, off"):
        plan({"task_block": "on"}, offer=by_table(7))
    for offer in (by_table(15), by_help(15)):
        made = plan({"task_block": "on", "sys_hardware_mem_freq": "10000"}, offer=offer)
        assert refusal([*made.arguments], 15) is None
    ten = "Custom:" + ",".join(str(one) for one in range(1, 11))
    assert refusal([*plan({"aic_metrics": ten}, offer=by_table(15)).arguments], 15) is None
    with pytest.raises(UsageError, match="1 to 8"):
        plan({"aic_metrics": ten}, offer=by_table(5))
    with pytest.raises(UsageError, match="expected one of l0, l1, l2, on, off"):
        plan({"task_time": "l3"}, offer=by_help(5))


def test_on_the_chip_s_own_system_the_host_is_not_sampled() -> None:
    offer = by_help(7, on_device=True)
    made = plan({"preset": "full"}, offer=offer)
    assert "host-sys" in {option.flag for option in made.left_out}
    command = msprof_command.command_line(Path("msprof"), made.arguments, Path("/out"), [], offer)
    assert refusal(command[1:], 7, on_device=True) is None


@pytest.mark.parametrize("text", ["", "[ERROR] Init platform by driver faild!", "--output only"])
def test_what_is_no_help_is_not_taken_for_one(text: str) -> None:
    assert offer_from_help(text, Offer()) is None


def test_a_text_cut_short_is_not_taken_for_the_whole_help() -> None:
    lines = msprof_platforms.help_text(5)
    cut = next(number for number, line in enumerate(lines) if "--task-time" in line)
    assert offer_from_help("\n".join(lines[:cut]), Offer()) is None


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
        # Boards of two generations are called so: only msprof itself can tell.
        ("Ascend 910B", None),
        ("Ascend 910", None),
        ("Ascend 1000", None),
        ("", None),
        (None, None),
    ],
)
def test_the_names_that_tools_give_to_chips(full_name: str | None, chip: str | None) -> None:
    found = cann.by_full_name(full_name)
    assert (found.name if found else None) == chip


@pytest.mark.parametrize(
    ("text", "chip"),
    [("310p", "310P"), ("910B", "910B"), ("A3", "910B"), ("910", "910A"), ("Ascend 310B1", "310B")],
)
def test_the_names_that_users_give_to_chips(text: str, chip: str) -> None:
    found = cann.find_chip(text)
    assert found is not None
    assert found.name == chip


def test_a_chip_that_there_is_not() -> None:
    assert cann.find_chip("unknown") is None
    with pytest.raises(
        UsageError, match="expected one of 310, 910A, 310P, 910B, 310B, 950, unknown, found 'H100'"
    ):
        cann.find_chip("H100")


def test_a_refusal_is_known_by_msprof_s_words_alone() -> None:
    by_getopt = ["msprof: unrecognized option '--bogus=1'"]
    by_itself = ["/opt/a b/msprof: unrecognized option '--sys-io-profiling=on'", "PlatformType:4"]
    assert msprof_outcome.refused_option(by_getopt) == "bogus"
    assert msprof_outcome.refused_option(by_itself) == "sys-io-profiling"
    assert msprof_outcome.refused_option(["[INFO] unrecognized option '--x=1'", ""]) is None


def test_a_release_without_the_finest_level_gets_the_next_and_it_is_said() -> None:
    lines = msprof_platforms.help_text(5, old=True)
    text = "\n".join(lines).replace(
        "The possible parameters are 'l0', 'l1', 'l2', 'on' or 'off'.",
        "\n\t\t The switch can be set in range [l0, l1, on, off]",
    )
    offer = offer_from_help(text, Offer())
    assert offer is not None
    made = plan({"preset": "full"}, offer=offer)
    assert "--task-time=l1" in made.arguments
    assert made.dropped == ("--ge-api", "--task-time=l2")
    assert plan({"preset": "full", "task_time": "l0"}, offer=offer).lowered == ()
    assert plan({"preset": "default"}, offer=offer).lowered == ()
    with pytest.raises(UsageError, match="expected one of l0, l1, on, off, found 'l2'"):
        plan({"task_time": "l2"}, offer=offer)
