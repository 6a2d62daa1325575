"""Files of sampled counters: figures calculated by hand from small PROF_* directories.

Samples are 1.25 s apart, in which whole MB/s are whole numbers of what is counted.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.prof_generator import Recipe, generate
from tests.prof_generator.encode import records, write_file
from tests.prof_generator.timing import Timing
from unified_prof.export.mindstudio.writer import Exported
from unified_prof.pipeline.export import export

_STEP_US = 1_250_000
_UNITS = 40_960  # of 32 bytes: 1 MB/s for a step

Files = Callable[..., dict[str, str]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return a function that exports raw files of device 0, or of several devices, by kind."""

    def make(raw: dict[str, bytes], platform: int = 1, devices: tuple[int, ...] = (0,)) -> object:
        recipe = Recipe(platform=platform, operators=1, devices=devices)
        path = generate(tmp_path, recipe).path
        for device in devices:
            for kind, content in raw.items():
                write_file(path / f"device_{device}/data/{kind}.data.{device}.slice_0", content)
        done: Exported = export(path, tmp_path / "files")
        assert not {one.deliverable for one in done.left_out} & set(raw)
        kinds = {file.name.rpartition("_")[0]: file.name for file in done.files}
        return {kind: (tmp_path / "files" / name).read_text() for kind, name in kinds.items()}

    return make  # type: ignore[return-value]


def test_hbm_has_the_mean_of_each_memory_and_of_all(files: Files) -> None:
    # By sample (the first has no interval), memory and direction (read, write).
    megabytes = np.array([[[9, 9], [9, 9]], [[3, 2], [1, 0]], [[6, 4], [1, 0]]])
    part = records(
        "hbm_v1",
        megabytes.size,
        timestamp_us=np.repeat((np.arange(3) + 1) * _STEP_US, 4),
        count=megabytes.ravel() * _UNITS,
        hbm_id=np.tile([0, 0, 1, 1], 3),
        event_type=np.tile([0, 1], 6),
    )
    # The mean of all is that of 3 and 0.667: msprof rounds their sum, 3.667, first.
    expected = "Average,1.834,1.000\n{0},0,3.0,2.0\n{0},1,0.667,0.0\n"
    found = files({"hbm": part.tobytes()}, devices=(0, 3))["hbm"]
    lines = "".join(f"{device},{expected.format(device)}" for device in (0, 3))
    assert found == f"Device_id,Metric,Read(MB/s),Write(MB/s)\n{lines}"


def test_ddr_has_the_mean_of_both_directions(files: Files) -> None:
    part = records(
        "ddr",
        4,
        timestamp_us=np.repeat([_STEP_US, 2 * _STEP_US], 2),
        count=np.array([3, 1, 6, 1]) * _UNITS,
        rw=[0, 1, 0, 1],
        master=0xFFFFFFFF,
    )
    found = files({"ddr": part.tobytes()})["ddr"]
    assert found == "Device_id,Metric,Read(MB/s),Write(MB/s)\n0,Average,4.5,1.0\n"


def test_llc_has_hit_rate_and_throughput_of_each_cache(files: Files) -> None:
    # Transfers of 4,096 bytes (two events), then hits (2, 3, 5, 7) and accesses (4, 6).
    samples = [
        [9, 9, 1, 1, 2, 1, 2, 0],  # cache 0: 3 of 4
        [9, 9, 1, 0, 1, 0, 1, 0],  # cache 1: 1 of 2
        [960, 320, 2, 2, 4, 2, 4, 0],  # cache 0: 1,280 transfers in 1.25 s: 4 MB/s; 3 of 4
        [320, 0, 1, 0, 2, 0, 1, 0],  # cache 1: 1 MB/s; 1 of 3, of which the raw table has 0.333
    ]
    part = records(
        "llc_v1",
        32,
        timestamp_us=np.repeat([_STEP_US, 2 * _STEP_US], 16),
        count=np.ravel(samples),
        event_id=np.tile([0x00, 0x01, 0x02, 0x13, 0x20, 0x22, 0x34, 0x36], 4),
        l3t_id=np.tile(np.repeat([0, 1], 8), 2),
    )
    assert files({"llc": part.tobytes()})["llc_read_write"] == (
        "Device_id,Mode,Task,Hit Rate(%),Throughput(MB/s)\n"
        "0,read,Average,58.325,1.25\n0,read,0,75.0,2.0\n0,read,1,41.65,0.5\n"
    )


@pytest.mark.parametrize(
    ("platform", "post", "latency"),
    [
        (1, "1.907,5.722,3.815", "1.5,4.0,3.0"),  # Means: 2, 6 and 4 bytes per microsecond.
        (5, "2.861,6.676,4.768", "2.0,5.0,4.0"),  # The last sample: 3, 7 and 5.
    ],
)
def test_pcie_has_means_and_a_last(platform: int, post: str, latency: str, files: Files) -> None:
    recipe = Recipe(platform=platform)
    values = np.zeros((3, 7, 3), np.int64)
    values[:2, 0] = [[1, 5, 3], [3, 7, 5]]
    values[2, 0] = [8, 0, 0]  # Nothing measured: the sample has no row.
    values[:, 1] = [0xFFFFF, 0, 0]  # The minimum of a counter that saw nothing is 0.
    values[:2, 3] = [[1000, 3000, 2000], [2000, 5000, 4000]]
    part = records(
        "pcie",
        3,
        timestamp=Timing(recipe).device_monotonic_ns + np.arange(1, 4) * 10**7,
        values=values.reshape(3, 21),
    )
    zeros = "0.0,0.0,0.0\n"
    assert files({"pcie": part.tobytes()}, platform)["pcie"] == (
        f"Device_id,Mode,Min,Max,Avg\n0,Tx_p_avg(MB/s),{post}\n0,Tx_np_avg(MB/s),{zeros}"
        f"0,Tx_cpl_avg(MB/s),{zeros}0,Tx_latency_avg(us),{latency}\n0,Rx_p_avg(MB/s),{zeros}"
        f"0,Rx_np_avg(MB/s),{zeros}0,Rx_cpl_avg(MB/s),{zeros}"
    )


def test_ports_have_rates_over_the_recording(files: Files) -> None:
    timing = Timing(Recipe(platform=1))
    # Moment in ms, bandwidth; received: packets/s, bytes/s, packets, bytes, errors, dropped; sent;
    # port. Totals count from the start of the driver.
    samples = [
        (10, 1000, 100, 13_107_200, 1000, 0, 5, 0, 7, 0, 50, 0, 0, 0, 0),
        (10, 1000, 9, 0, 400, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1),
        (20, 1000, 300, 39_321_600, 2000, 0, 15, 25, 7, 0, 50, 0, 0, 0, 0),
    ]
    lines = [
        f"{timing.device_monotonic_ns + ms * 10**6}: {' '.join(map(str, row))}\n"
        for ms, *row in samples
    ]
    content = "".join(["timestamp rxPacket/s\n", *lines]).encode()
    begin_us = timing.begin_us
    expected = (
        "Device_id,Timestamp(us),Bandwidth(MB/s),Rx Bandwidth efficiency(%),rxPacket/s,"
        "rxError rate(%),rxDropped rate(%),Tx Bandwidth efficiency(%),txPacket/s,txError rate(%),"
        "txDropped rate(%),funcId\n"
        # 25 MB/s are 20 % of 1,000 Mbit/s; 10 and 25 of 1,000 packets.
        f"0,{begin_us + 20_000}.000\t,1000.0,20.0,200.0,1.0,2.5,0.0,7.0,0.0,0.0,0\n"
        # One sample: its totals.
        f"0,{begin_us + 10_000}.000\t,1000.0,0.0,9.0,0.25,0.5,0.0,0.0,0.0,0.0,1\n"
    )
    found = files({"nic": content, "roce": content})
    assert (found["nic"], found["roce"]) == (expected, expected)
