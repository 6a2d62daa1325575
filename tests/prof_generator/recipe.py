"""Contents of a generated recording."""

from dataclasses import dataclass
from fractions import Fraction

COUNTERS = (
    "acc_pmu",
    "ddr",
    "hbm",
    "hccs",
    "llc",
    "netdev_stats",
    "nic",
    "npu_mem",
    "npu_module_mem",
    "pcie",
    "qos",
    "roce",
    "sio",
    "soc",
)
"""Sampled hardware counters of a device."""

HOST_USAGE = ("cpu", "disk", "mem", "network", "syscall", "pthreadcall")
"""Resources that are sampled on the host."""

HWTS, V6 = (1, 4), (15,)
PROCESS_ID = 31_337


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recording; every value is the test's choice, everything else follows from `seed`."""

    seed: int = 1
    platform: int = 5
    """Kind of chip: 5 and 7 (stars task logs), 1 and 4 (hwts), 15 (32-bit task ids)."""
    layout_version: str = "1.0"
    devices: tuple[int, ...] = (0,)
    operators: int = 20
    """Compute operators of each device."""
    threads: int = 2
    streams: int = 2
    """Streams of each thread."""
    described: bool = True
    """Operators have descriptions: names, shapes, types. False: the lowest trace level."""
    mix_share: float = 0.0
    """Share of operators that run on both kinds of cores (platform 5)."""
    copies: int = 0
    collectives: int = 0
    marks: int = 0
    allocations: int = 0
    tasks_before_wrap: int = 65_535
    """Task ids of a stream start again after so many tasks; tiny values test batches."""
    pmu: str = ""
    """Metric set of task-based PMU counters; none when empty."""
    sample_pmu: str = ""
    """Metric set of sample-based PMU counters; none when empty."""
    frequency_changes: int = 0
    samples: int = 0
    """Samples of each of `counters` and `host_usage`."""
    counters: tuple[str, ...] = ()
    host_usage: tuple[str, ...] = ()
    host_only: bool = False
    ended: bool = True
    """False: the recording has no end_info."""
    host_mhz: int = 100
    """Frequency of the host's counter; 0: host time stamps are nanoseconds."""
    device_mhz: int = 50
    counter_offset: int = 0
    """cntvct_diff of the start logs, in host ticks."""
    host_slice_records: int = 0
    """Host records of a slice; 0: as many as fit 2 MiB."""
    device_slice_bytes: int = 2 << 20
    """Size of device slices, which may end inside a record."""

    @property
    def offset_ns(self) -> Fraction:
        """Delay of all events relative to the start log."""
        return Fraction(self.counter_offset * 1000, self.host_mhz or 1000)
