"""Options of `uprof run` for msprof."""

from collections.abc import Mapping, Sequence

import pytest

from unified_prof.backends import cann
from unified_prof.backends.msprof_plan import BY_NAME, OPTIONS, PRESETS, Offer, offer_for_chip, plan
from unified_prof.errors import UsageError


def offer(full_name: str) -> Offer:
    chip = cann.by_full_name(full_name)
    assert chip is not None
    return offer_for_chip(chip)


def arguments_of(
    options: Mapping[str, object], *, raw: Sequence[str] = (), offer: Offer | None = None
) -> list[str]:
    """Return the plan's arguments; without `offer`, those that any chip accepts."""
    return [*plan(options, raw=raw, offer=offer or Offer()).arguments]


def test_every_argument_is_one_word_with_an_equals_sign() -> None:
    arguments = arguments_of({"preset": "full", "storage_limit": "500MB"}, raw=["--dvpp=on"])
    assert all(argument.startswith("--") and "=" in argument for argument in arguments)
    assert arguments[-1] == "--dvpp=on"
    assert "--storage-limit=500MB" in arguments


def test_options_override_the_preset() -> None:
    minimal = ["--task-time=l0", "--ascendcl=off", "--ai-core=off"]
    assert arguments_of({"preset": "minimal"}) == minimal
    changed = arguments_of({"preset": "minimal", "task_time": "l1", "aic_mode": None})
    assert changed == ["--task-time=l1", *minimal[1:]]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid(preset: str) -> None:
    assert arguments_of({**PRESETS[preset]})


EVENTS = ("0x9c", "0x9C,0x9d", "HA:0x9c;SMMU:0x2,0x8a", "NOC:0x1")
INVALID: list[tuple[dict[str, str], str]] = [
    ({"task_time": "foo"}, "--task-time: expected one of on, off, l0, l1, l2, l3, found 'foo'"),
    ({"ascendcl": "yes"}, "--ascendcl: expected one of on, off, found 'yes'"),
    ({"ge_api": "l2"}, "--ge-api"),
    ({"aic_metrics": "Foo"}, "--aic-metrics: expected"),
    ({"aic_metrics": "Custom:"}, "Custom: and 1 to 8"),
    ({"aic_metrics": "Custom:1,2,3,4,5,6,7,8,9"}, "Custom: and 1 to 8"),
    ({"aic_metrics": "Custom:0xZZ"}, "Custom: and 1 to 8"),
    ({"aic_freq": "50"}, "requires --aic-mode sample-based"),
    ({"sys_hardware_mem_freq": "1000"}, "a whole number from 1 to 100"),
    ({"delay": "0"}, "from 1 to 4294967295"),
    ({"duration": "1.5"}, "whole number"),
    ({"duration": "٣"}, "whole number"),
    ({"host_sys": "cpu,gpu"}, "a list of cpu, mem, disk, network, osrt, numa"),
    ({"host_sys": ""}, "a list of"),
    ({"storage_limit": "100MB"}, "200MB to 4294967295MB"),
    ({"storage_limit": "1GB"}, "200MB to"),
    ({"mstx_domain_include": "a", "mstx_domain_exclude": "b"}, "cannot be combined"),
    ({"mstx_domain_include": "a", "msproftx": "off"}, "requires --msproftx on"),
    ({"mstx_domain_include": " "}, "a list of names"),
    ({"preset": "huge"}, "unknown preset 'huge'"),
    ({"ai_core": "off", "aic_metrics": "Memory"}, "--aic-metrics requires --ai-core, which is"),
    ({"sys_cpu_profiling": "off", "sys_cpu_freq": "1"}, "requires --sys-cpu-profiling"),
    ({"host_sys_usage_freq": "5"}, "--host-sys-usage-freq requires --host-sys-usage"),
    ({"l2": "on", "npu_events": "0x1"}, "cannot be combined"),
    ({"npu_events": "12"}, "such as 0x9c"),
    ({"npu_events": ""}, "such as 0x9c"),
    ({"npu_events": "0x1;0x2"}, "after one of HA, MATA, SMMU, NOC"),
    ({"npu_events": "HA:0x1;HA:0x2"}, "after one of HA"),
    ({"npu_events": "LLC:0x1"}, "after one of HA"),
    ({"npu_events": "NOC:0x1,0x2,0x3,0x4,0x5"}, "after one of HA"),
    ({"npu_events": ",".join(["0x1"] * 9)}, "1 to 8"),
    ({"nts_metrics": "Memory"}, "one of PipeUtilization, Custom"),
    ({"nts_metrics": "Custom:" + ",".join(["1"] * 11)}, "1 to 10"),
    ({"task_block": "some"}, "one of all, on, off"),
    ({"host_sys_usage": "disk"}, "a list of cpu, mem"),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_options_that_msprof_refuses_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        arguments_of(options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"aic_metrics": "Custom:0x1,0xAf,12"},
        {"aic_mode": "sample-based", "aic_freq": "100"},
        {"host_sys": "cpu,mem,disk"},
        {"mstx_domain_exclude": "a,b"},
        {"storage_limit": "4294967295MB"},
        {"delay": "1", "duration": "4294967295"},
        *({"npu_events": text} for text in EVENTS),
    ],
)
def test_options_that_msprof_accepts_are_passed(options: dict[str, str]) -> None:
    arguments = arguments_of(options)
    for name, value in options.items():
        assert f"--{BY_NAME[name].flag}={value}" in arguments


def test_ascend_950_samples_its_memory_faster() -> None:
    options = {"sys_hardware_mem_freq": "10000"}
    assert "--sys-hardware-mem-freq=10000" in arguments_of(options, offer=offer("Ascend 950PR"))
    with pytest.raises(UsageError):
        arguments_of(options, offer=offer("Ascend 910B3"))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("dvpp=on", "not an option of msprof"),
        ("--output=/elsewhere", "set by uprof"),
        ("--application=x", "set by uprof"),
        ("--export=on", "set by uprof"),
        ("--task-time=l1", "use the option --task-time of uprof"),
    ],
)
def test_raw_arguments_cannot_override_those_of_uprof(raw: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arguments_of({}, raw=[raw])


def test_help_of_every_option_names_its_tables() -> None:
    for option in OPTIONS:
        assert "(" in option.help, option.flag
        assert option.help.endswith("."), option.flag


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "options",
    [
        {"aic_metrics": "Memory"},
        {"aic_mode": "task-based"},
        {"aic_mode": "sample-based", "aic_freq": "10"},
        {"sys_hardware_mem_freq": "10"},
        {"llc_profiling": "write"},
        {"sys_io_sampling_freq": "10"},
        {"sys_interconnection_freq": "10"},
        {"sys_cpu_freq": "10"},
        {"sys_sampling_freq": "10"},
        {"sys_pid_sampling_freq": "10"},
        {"host_sys_usage": "cpu", "host_sys_usage_freq": "10"},
    ],
)
def test_options_enable_what_they_require(preset: str, options: dict[str, str]) -> None:
    arguments = arguments_of({"preset": preset, **options})
    for name in options:
        option = BY_NAME[name]
        assert f"--{option.flag}={options[name]}" in arguments
        if option.requires == "host_sys_usage":
            assert "--host-sys-usage=cpu" in arguments
        elif option.requires:
            assert f"--{BY_NAME[option.requires].flag}=on" in arguments
