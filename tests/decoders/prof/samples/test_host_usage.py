"""Host usage from text files of other programs, also damaged ones."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.decoders.prof.memory_sink import MemorySink
from tests.prof_generator import Recipe, generate
from tests.prof_generator.recipe import PROCESS_ID
from unified_prof.decoders.prof import host_samples
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.errors import RawFormatError

# A session of seed 0: host monotonic clock and time since 1970 at its start.
T0, BEGIN_NS = 5_000_000_000_000, 1_735_700_000_000_000_000
STAT = "{} (a b) c) S 1 1 1 0 -1 0 0 0 0 0 {} 0" + " 0" * 23 + " {} 0 0"


def host_with(tmp_path: Path, name: str, text: str | bytes) -> HostDirectory:
    folder = generate(tmp_path, Recipe(seed=0, operators=0, host_only=True)).path / "host"
    raw = text if isinstance(text, bytes) else text.encode()
    (folder / "data" / f"{name}.data.slice_0").write_bytes(raw)
    return HostDirectory(folder)


def decode_table(decode: Any, host: HostDirectory, table: str) -> tuple[Any, MemorySink]:
    sink = MemorySink()
    decode(host, sink)
    return sink.tables().get(table), sink


def rows(table: dict[str, NDArray[Any]], *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].tolist() for name in columns), strict=True))


def test_host_memory_is_the_later_sample_at_the_earlier_time(tmp_path: Path) -> None:
    text = f"{T0} 1 100 1 1 0 1 0\n{T0 + 5} 1 25000000 1 1 0 1 0\nbroken line\n"
    table, sink = decode_table(
        host_samples.decode_host_mem, host_with(tmp_path, "host_mem", text), "HOST_MEM_USAGE"
    )
    assert rows(table, "timestampNs", "usage") == [(BEGIN_NS, 5.0)]
    assert sink.anomalies == {"damaged_line": 1}


def test_host_memory_rounds_half_to_even(tmp_path: Path) -> None:
    """With 2 * 10**9 kB of memory, n pages are n * 2e-7 percent."""
    lines = "".join(f"{T0 + n} 1 {pages} 1 1 0 1 0\n" for n, pages in enumerate((0, 5, 15, 25)))
    host = host_with(tmp_path, "host_mem", lines)
    path = host.path / "info.json"
    path.write_text(path.read_text().replace("2000000000", "4000000000"))
    table, _ = decode_table(
        host_samples.decode_host_mem, HostDirectory(host.path), "HOST_MEM_USAGE"
    )
    assert table["usage"].tolist() == [0.0, 2e-06, 2e-06]


def test_cpu_threads_count_for_the_cpu_they_ran_on_last(tmp_path: Path) -> None:
    """In two jiffies, a thread that used three counts as two; CPUs over 100 % are dropped."""
    moments = [
        f"time {T0 + step}\n{10 + step / 50:.2f} 1.00\n"
        + "".join(STAT.format(thread, used, cpu) + "\n" for thread, used, cpu in threads)
        for step, threads in enumerate(
            [
                [(1, 10, 0), (2, 10, 0)],
                [(1, 13, 4), (2, 11, 5), (3, 99, 6)],
                [(1, 15, 4), (2, 13, 4)],
            ]
        )
    ]
    table, sink = decode_table(
        host_samples.decode_host_cpu, host_with(tmp_path, "host_cpu", "".join(moments)), "CPU_USAGE"
    )
    assert rows(table, "timestampNs", "cpuId", "usage") == [
        (BEGIN_NS, 4, 100.0),
        (BEGIN_NS, 5, 50.0),
    ]
    assert sink.anomalies == {"cpu_usage_over_100": 1}


def test_network_drops_cards_whose_counters_decreased(tmp_path: Path) -> None:
    zeros = " 0" * 7
    text = "".join(
        f"time {T0 + 10**9 * step}\nInter-| Receive\neth3: {received}{zeros} 0{zeros}\n"
        for step, received in enumerate((1000, 26000, 500))
    )
    host = host_with(tmp_path, "host_network", text)
    table, _ = decode_table(host_samples.decode_host_network, host, "HOST_NETWORK_USAGE")
    assert table["speed"].tolist() == pytest.approx([25000.0, 0.0])
    assert table["usage"].tolist() == pytest.approx([0.001 * 0.8, 0.0])


def test_usage_is_that_of_the_mean_card_with_traffic() -> None:
    earlier = host_samples._Sample(10**9, {"a": 0, "b": 100, "idle": 7, "reset": 5})
    counters = {"a": 25_000, "b": 50_100, "idle": 7, "reset": 1, "new": 9}
    later = host_samples._Sample(3 * 10**9, counters)
    speeds = dict.fromkeys(counters, 1) | {"b": 10}
    usage, traffic = host_samples._traffic(earlier, later, speeds)
    assert (usage, traffic) == pytest.approx((37_500 / 2 / 1_250_000 * 100, 37_500))
    assert host_samples._traffic(later, later, speeds) == (0, 0)
    assert host_samples._traffic(later, earlier, speeds) == (0, 0)


def test_cpu_usage_is_at_most_the_interval_of_each_thread() -> None:
    earlier = host_samples._Sample(0, {1: (10, 0), 2: (5, 3), 3: (9, 3)}, Fraction(1))
    later = host_samples._Sample(0, {1: (11, 4), 2: (9, 3), 3: (8, 3), 4: (7, 0)}, Fraction(3))
    assert host_samples._usage(earlier, later, 1) == {4: 50, 3: 100}
    assert host_samples._usage(later, later, 1) == host_samples._usage(later, earlier, 1) == {}
    unknown = host_samples._Sample(0)
    assert host_samples._usage(unknown, later, 1) == host_samples._usage(earlier, unknown, 1) == {}


def test_disk_rates_have_units(tmp_path: Path) -> None:
    text = (
        f"start_time {T0}\nTotal DISK READ: 0 B/s\n"
        "12:00:00 7 be/4 me 1.50 B/s 2.00 K/s 0.00 % 3.25 % a command % with things\n"
        "12:00:01 7 be/4 me 1.00 M/s 1.00 G/s 0.00 % 0.00 % x\nnonsense\n"
    )
    host = host_with(tmp_path, "host_disk", text)
    table, sink = decode_table(host_samples.decode_host_disk, host, "HOST_DISK_USAGE")
    assert rows(table, "timestampNs", "readRate", "writeRate", "usage") == [
        (BEGIN_NS, 1.5, 2048.0, 3.25),
        (BEGIN_NS + 20_000_000, float(1 << 20), float(1 << 30), 0.0),
    ]
    assert sink.anomalies == {"damaged_line": 1}


def test_disk_file_without_a_start_is_refused(tmp_path: Path) -> None:
    host = host_with(
        tmp_path, "host_disk", "12:00:00 7 be/4 me 1.50 B/s 2.00 K/s 0.00 % 3.25 % x\n"
    )
    with pytest.raises(RawFormatError, match="start_time"):
        decode_table(host_samples.decode_host_disk, host, "HOST_DISK_USAGE")


def test_os_calls_start_with_the_session(tmp_path: Path) -> None:
    text = (
        "  100.500 ( 0.250 ms): py thon/31337 read(fd: 3) = 0\n"
        "  101.500 ( 1.000 ms): python/31338 futex(uaddr: 1) = 0\n"
        "          ( 1.000 ms): python/31338 futex(uaddr: 1) ...\n"
        "  102.000 ( 1.000 ms): python/31338 invented(1) = 0\n"
        "half a li"
    )
    host = host_with(tmp_path, "host_syscall", text)
    table, sink = decode_table(host_samples.decode_os_calls, host, "OSRT_API")
    tid = PROCESS_ID << 32
    assert rows(table, "name", "globalTid", "startNs", "endNs") == [
        ("read", tid | 31337, BEGIN_NS, BEGIN_NS + 250_000),
        ("futex", tid | 31338, BEGIN_NS + 1_000_000, BEGIN_NS + 2_000_000),
    ]
    assert sink.anomalies == {"os_call_not_listed": 1, "os_call_unfinished": 1, "damaged_line": 1}


def test_non_utf8_process_names_are_accepted(tmp_path: Path) -> None:
    text = b"  100.500 ( 0.250 ms): \xff\xfe/31337 read(fd: 3) = 0\n"
    host = host_with(tmp_path, "host_syscall", text)
    table, _ = decode_table(host_samples.decode_os_calls, host, "OSRT_API")
    assert table["name"].tolist() == ["read"]


@pytest.mark.parametrize(
    ("decode", "name"),
    [
        (host_samples.decode_host_cpu, "host_cpu"),
        (host_samples.decode_host_disk, "host_disk"),
        (host_samples.decode_host_mem, "host_mem"),
        (host_samples.decode_host_network, "host_network"),
        (host_samples.decode_os_calls, "host_syscall"),
    ],
)
def test_binary_data_gives_no_rows(decode: Any, name: str, tmp_path: Path) -> None:
    random_bytes = np.random.default_rng(0).bytes(20_000)
    sink = MemorySink()
    decode(host_with(tmp_path, name, random_bytes), sink)
    assert not sink.tables()
    assert sink.anomalies
