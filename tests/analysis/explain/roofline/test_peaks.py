"""Peaks of devices: lookup by name, parts of devices, and entries of users."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from unified_prof.cli import app
from unified_prof.errors import UsageError
from unified_prof.explain.roofline import peaks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(autouse=True)
def reset_devices() -> Iterator[None]:
    yield
    peaks.add({}, "")


def bf16(name: str) -> float | None:
    """Return the bf16 peak of a device in TFLOP/s."""
    found = peaks.find(name)
    peak = None if found is None else found.matrix("bf16")
    return None if peak is None else peak.rate / 1e12


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI300X VF", 1307),
        ("AMD Instinct MI250X/MI250", 191.5),
        ("Tesla V100-SXM2-16GB", None),
        ("NVIDIA GeForce GTX 1080", None),
        ("NVIDIA GeForce RTX 4090 D", 147),
        ("NVIDIA GeForce RTX 3090 Ti", 80),
        ("NVIDIA L40", 181),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX A6000 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D Laptop GPU", None),
        ("", None),
    ],
)
def test_device_is_the_longest_name_that_matches_words(name: str, tflops: float | None) -> None:
    assert bf16(name) == tflops


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA A800-SXM4-40GB", 1555),
        ("NVIDIA A800-SXM4-80GB", 2039),
        ("NVIDIA H20-3e", 4800),
        ("NVIDIA H20", 4000),
    ],
)
def test_models_of_one_chip_differ_in_memory(name: str, memory: float) -> None:
    found = peaks.find(name)
    assert found is not None
    assert found.memory == memory


def test_ascend_peak_is_computed_from_cores_and_clock() -> None:
    assert bf16("Ascend910B4") == pytest.approx(20 * 1500e6 * 8192 / 1e12)
    assert bf16("Ascend910B3") == pytest.approx(294.9, abs=0.1)
    found = peaks.find("Ascend910_9392")
    assert found is not None
    int8, memory = found.matrix("int8"), found.memory_peak()
    assert int8 is not None
    assert int8.rate == pytest.approx(2 * 363.7e12, rel=1e-3)
    assert memory is not None
    assert memory.uncertain
    # The vendor quotes the sum of cube and vector units.
    vector = found.vector("fp16")
    assert vector is not None
    assert vector.rate / 1e12 == pytest.approx(48 * 1850e6 * 256 / 1e12)
    # The fp32 rate of the cube unit is not published.
    assert found.matrix("fp32") is None


def test_recorded_clock_has_priority_unless_it_belongs_to_another_device() -> None:
    slower = peaks.find("Ascend910B3", mhz=1650)
    assert slower is not None
    assert slower.source == "PC Ascend910B3, 1,650 MHz recorded"
    peak = slower.matrix("fp16")
    assert peak is not None
    assert peak.rate == pytest.approx(20 * 1650e6 * 8192)
    # `Ascend910B` at 900 MHz is an older device; at 1,800 MHz the name is ambiguous.
    assert peaks.find("Ascend910B", mhz=900) is not None
    assert peaks.find("Ascend910B", mhz=1800) is None


@pytest.mark.parametrize(
    ("name", "units", "gib", "eighths"),
    [("1g.5gb", 14, 4.75, 1), ("3g.20gb", 42, 19.5, 4), ("7g.40gb", 98, 39.25, 8)],
)
def test_mig_slice_has_its_part_of_a_peak(name: str, units: int, gib: float, eighths: int) -> None:
    slice_name, memory_bytes = f"NVIDIA A100-SXM4-40GB MIG {name}", int(gib * 2**30)
    found = peaks.find(slice_name, units=units, memory_bytes=memory_bytes)
    assert found is not None
    peak, memory = found.matrix("bf16"), found.memory_peak()
    assert peak is not None
    assert memory is not None
    assert peak.rate == pytest.approx(312e12 * units / 108)
    assert memory.rate == pytest.approx(1555e9 * eighths / 8)
    assert f"{units} of 108 units" in found.source
    whole = peaks.find(slice_name)
    assert whole is not None
    assert whole.matrix("bf16") is None


def test_unnamed_amd_device_is_identified_by_generation_and_memory() -> None:
    def name(capability: tuple[int, int], gib: float, **more: int) -> str | None:
        found = peaks.find(
            "AMD Radeon Graphics", capability=capability, memory_bytes=int(gib * 2**30), **more
        )
        return None if found is None else found.name

    assert name((9, 4), 191.5, warp=64) == "MI300X"
    assert name((9, 4), 255, warp=64) == "MI325X"
    assert name((9, 0), 64, warp=64, units=104) == "MI250"
    assert name((9, 0), 64, warp=64, units=110) == "MI250X"
    # 9.0 is also the capability of Hopper, with warps of 32 threads.
    assert name((9, 0), 64, warp=32, units=104) is None
    assert name((9, 4), 100, warp=64) is None


def test_each_data_type_has_the_rate_of_its_unit() -> None:
    found = peaks.find("NVIDIA A100-SXM4-80GB")
    assert found is not None

    def rate(peak: peaks.Peak | None) -> float | None:
        return None if peak is None else peak.rate / 1e12

    assert rate(found.matrix("fp64")) == 19.5
    assert rate(found.matrix("fp32")) == rate(found.vector("bf16")) == 19.5
    assert rate(found.matrix("tf32")) == 156
    assert rate(found.vector("fp64")) == 9.7
    assert found.matrix("fp8") is None
    link = found.link_peak()
    assert link is not None
    assert link.rate == 300e9


def test_device_table_contains_every_entry_of_devices_toml() -> None:
    text = (Path(peaks.__file__).parent / "devices.toml").read_text(encoding="utf-8")
    expected = {name: entry for entry in tomllib.loads(text)["device"] for name in entry["names"]}
    devices = {device.name: device for device in peaks.all_devices()}
    assert list(devices) == list(expected)
    for name, entry in expected.items():
        rates = {key: entry[key] for key in peaks.RATES if key in entry}
        assert devices[name].rates == rates
        found = (devices[name].memory, devices[name].source)
        assert found == (entry.get("memory"), entry["source"])


def test_every_device_has_rates_and_their_source() -> None:
    devices = peaks.all_devices()
    assert len(devices) > 50
    for device in devices:
        assert device.source[:2] in ("DS", "PC", "A "), device
        assert device.rates or device.cores, device


def test_every_device_is_listed_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "roofline.md").read_text()
    missing = [device.name for device in peaks.all_devices() if f"`{device.name}`" not in text]
    assert missing == []


def test_user_adds_a_device_and_corrects_one(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        "[tool.uprof.devices.'My GPU']\nbf16 = 100\nmemory = 1000\nsource = 'measured'\n"
        "[tool.uprof.devices.'Ascend910B4']\nmemory = 1200\n"
    )
    assert app.read_settings(file, click.Command("report")) == {}
    added, corrected = peaks.find("Vendor My GPU 32GB"), peaks.find("Ascend910B4")
    assert added is not None
    assert (added.rates, added.memory, added.source) == ({"bf16": 100.0}, 1000.0, "measured")
    assert corrected is not None
    memory = corrected.memory_peak()
    assert memory is not None
    assert (memory.rate, memory.uncertain) == (1.2e12, False)
    assert corrected.cores == 20
    assert corrected.source == "PC Ascend910B4, the user"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = 3", "[tool.uprof.devices] is not a table of devices"),
        (
            "devices.X = 3",
            '[tool.uprof.devices."X"]: expected a table with the figures of a device',
        ),
        ("devices.X.bf17 = 3", "[tool.uprof.devices.\"X\"] has no figure 'bf17'"),
        ("devices.X.bf16 = '3'", "[tool.uprof.devices.\"X\"] bf16: '3' is not a number above 0"),
        ("devices.X.bf16 = 0", '[tool.uprof.devices."X"] bf16: 0 is not a number above 0'),
        ("devices.X.bf16 = true", '[tool.uprof.devices."X"] bf16: True is not a number above 0'),
        ("devices.X.memory = nan", '[tool.uprof.devices."X"] memory: nan is not a number above 0'),
        ("devices.X.source = 1", '[tool.uprof.devices."X"] source: 1 is not a string'),
        ("devices.X.uncertain = ['x']", "uncertain: ['x'] is not a list of figures"),
    ],
)
def test_invalid_device_entry_has_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.uprof]\n{text}\n")
    with pytest.raises(UsageError) as failure:
        app.read_settings(file, click.Command("report"))
    assert str(failure.value).startswith(str(file))
    assert message in str(failure.value)
