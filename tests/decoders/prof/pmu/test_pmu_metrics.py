"""Formulas of every metric set, compared with results computed by hand."""

import numpy as np
import pytest

from tests.prof_generator.device_side import EVENTS, EVENTS_V6
from unified_prof.decoders.prof.pmu_tables import Family, evaluate, parse_events, select_metrics

CYCLES, TIME_NS, MHZ = 1000.0, 2000.0, 1024.0
COUNTERS = (100, 200, 300, 400, 500, 600, 700, 800, 900)
PER_BYTE = 1024e6 / 2**30 / CYCLES


def values(
    name: str, family: Family = "two kinds", events: str = "", *, sampled: bool = False
) -> dict[str, float]:
    """Evaluate a set in which the first event counted 100, the second 200, and so on."""
    listed = events or (EVENTS_V6 if family == "v6" else EVENTS)[name]
    numbers = parse_events(listed, 10)
    counters = np.array([COUNTERS[: len(numbers)]], np.uint64)
    metrics = select_metrics(name, numbers, family, sampled=sampled).metrics
    row = evaluate(metrics, numbers, counters, np.array([CYCLES]), np.array([TIME_NS]), MHZ)
    return dict(zip([metric.name for metric in metrics], row[0].tolist(), strict=True))


PIPES = ("vec", "mac", "scalar", "mte1", "mte2", "mte3")
MEMORY_BYTES = {
    "ub_read_bw": 100 * 128,
    "ub_write_bw": 200 * 128,
    "l1_read_bw": 300 * 512,
    "l1_write_bw": 400 * 128,
    "l2_read_bw": 500 * 256,
    "l2_write_bw": 600 * 256,
    "main_mem_read_bw": 700 * 8,
    "main_mem_write_bw": 800 * 8,
}
COMPLETE = {
    "PipeUtilization": {
        **{f"{pipe}_ratio": n / 10 for n, pipe in enumerate(PIPES, 1)},
        **{f"{pipe}_time": n * 200.0 for n, pipe in enumerate(PIPES, 1)},
        "icache_miss_rate": 800 / 700,
    },
    "Memory": {name: size * PER_BYTE for name, size in MEMORY_BYTES.items()},
    "MemoryAccess": {  # kilobytes, which may be negative
        "read_main_memory_datas": (700 + 800) / 8,
        "write_main_memory_datas": 600 / 8,
        "GM_to_L1_datas": (100 - 400) / 4,
        "L0C_to_L1_datas": 400 / 8,
        "L0C_to_GM_datas": (500 - 400) / 8,
        "GM_to_UB_datas": 300 / 8,
        "UB_to_GM_datas": 200 / 8,
    },
}


@pytest.mark.parametrize("name", COMPLETE)
def test_set_has_these_metrics(name: str) -> None:
    assert values(name) == pytest.approx(COMPLETE[name])


CLASSIC = "0x10,0x13,0x37,0x38,0x3d,0x3e,0x43,0x44"
NEWER = "0x37,0x38,0x1a5,0x1a6,0x17f,0x180,0x191"
EXECUTED = "0x12c,0x49,0x4a,0x9,0x302,0xc,0xd,0x303"
NARROW = "0x1b,0x1c,0x21,0x22,0x27,0x28,0x29,0x2a"
CONFLICTS = "0x540,0x556,0x502,0x528"
FOPS = 100 * 8192 + 200 * 16384
VECTOR_FOPS = 300 * 64 + 400 * 128 + 500 * 64 + 600 * 64 + 700 * 32


@pytest.mark.parametrize(
    ("name", "family", "events", "sampled", "expected"),
    [
        # mac: both kinds of multiplications, 200 and 300 of 1000 cycles in 2000 ns
        ("PipeUtilizationExct", "two kinds", "", False, {"mac_ratio": 0.3, "fixpipe_time": 1200}),
        ("ArithmeticUtilization", "two kinds", "", False,
         {"vec_fp16_ratio": 0.9, "cube_fops": FOPS, "vector_fops": VECTOR_FOPS}),
        ("Memory", "one kind", "", False, {"l1_write_bw": 2 * 400 * 128 * PER_BYTE}),
        ("MemoryL0", "two kinds", "", False,
         {"l0b_write_bw": 400 * 256 * PER_BYTE, "l0c_write_bw_cube": 800 * 1024 * PER_BYTE}),
        ("MemoryUB", "two kinds", "", False,
         {"ub_read_bw_scalar": 300 * 16 * PER_BYTE, "ub_write_bw_vector": 800 * 32 * PER_BYTE}),
        ("L2Cache", "two kinds", "", False, {"r1_read_cache_miss_allocate": 600}),
        ("PipeUtilization", "v6", "", False, {"fixpipe_ratio": 0.9, "icache_miss_rate": 800 / 700}),
        ("PipelineExecuteUtilization", "one kind", EXECUTED, False,
         {"vec_exe_ratio": 0.1, "mac_exe_time": 1000, "fixpipe_exe_ratio": 0.8}),
        ("MemoryL0", "one kind", NARROW, False,
         {"l0a_read_bw": 100 * 512 * PER_BYTE, "l0b_read_bw": 300 * 256 * PER_BYTE,
          "l0c_read_bw_cube": 600 * 256 * PER_BYTE}),
        ("MemoryL0", "one kind", NARROW, True, {"l0b_read_bw": 300 * 512 * PER_BYTE}),
        ("MemoryUB", "two kinds", CLASSIC, False, {"ub_write_bw_vector": 800 * 32 * PER_BYTE}),
        ("MemoryUB", "two kinds", CLASSIC, True,
         {"ub_read_bw_mte": 500 * 16 * PER_BYTE, "ub_write_bw_vector": 800 * 16 * PER_BYTE}),
        ("ArithmeticUtilization", "v6", "0x323,0x324", False, {"cube_fops": FOPS}),
        ("L2Cache", "v6", "0x424,0x425,0x426,0x42a,0x42b,0x42c", False,
         {"write_local_l2_victim": 600}),
        ("ResourceConflictRatio", "v6", CONFLICTS, False,
         {"vec_bank_cflt_ratio": 0.3, "vec_resc_cflt_ratio": 400 / 300}),
    ],
)  # fmt: skip
def test_metrics_of_families_events_and_samples(
    name: str, family: Family, events: str, sampled: bool, expected: dict[str, float]
) -> None:
    found = values(name, family, events, sampled=sampled)
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_sets_lack_metrics_of_other_cores_and_have_plain_counts_of_custom_events() -> None:
    assert "vec_ratio" not in values("PipeUtilizationExct")
    assert not [name for name in values("Memory", "one kind") if name.startswith("l2_")]
    assert values("Custom", events="0x8,10,0x500") == {"r8": 100, "ra": 200, "r500": 300}
    assert len(values("PipelineExecuteUtilization", "one kind", EXECUTED)) == 14
    more = {*values("MemoryUB", events=CLASSIC, sampled=True)} - {
        *values("MemoryUB", events=CLASSIC)
    }
    assert more == {"ub_read_bw_mte", "ub_write_bw_mte"}
    events = parse_events(EVENTS["PipeUtilization"], 10)
    assert select_metrics("PipeUtilization", events, "v6").metrics == ()


def test_metric_needs_all_its_events() -> None:
    found = select_metrics("PipeUtilizationExct", (0x416, 0x9), "two kinds")
    assert [metric.name for metric in found.metrics] == ["scalar_time", "scalar_ratio"]
    assert found.uncounted[:2] == ("mac_time", "mac_ratio")
    assert "icache_miss_rate" in found.uncounted
    assert select_metrics("NoSuchSet", (0x8,), "two kinds") == ((), ())


@pytest.mark.parametrize(
    ("events", "sampled", "read", "write"),
    [
        (CLASSIC, False, 700 * 32, 800 * 32),
        (CLASSIC, True, 700 * 32, 800 * 16),
        (NEWER, False, (500 + 600) * 32, 700 * 32),
        (NEWER, True, (500 + 600) * 32, 700 * 16),
    ],
)
def test_unified_buffer_of_310b(events: str, sampled: bool, read: int, write: int) -> None:
    found = values("MemoryUB", "one kind", events, sampled=sampled)
    assert len(found) == (6 if sampled else 4)
    assert found["ub_read_bw_vector"] == pytest.approx(read * PER_BYTE)
    assert found["ub_write_bw_vector"] == pytest.approx(write * PER_BYTE)
    selection = select_metrics("MemoryUB", (0x37, 0x38), "one kind", sampled=sampled)
    assert {"ub_read_bw_vector", "ub_write_bw_vector"} <= set(selection.uncounted)


def test_idle_cores_have_zeros() -> None:
    events = parse_events(EVENTS["PipeUtilization"], 8)
    metrics = select_metrics("PipeUtilization", events, "two kinds").metrics
    none = np.zeros((1, 8), np.uint64)
    row = evaluate(metrics, (8, 10, 9, 11, 12, 13, 0x54, 0x55), none, np.zeros(1), np.zeros(1), MHZ)
    assert not row.any()


@pytest.mark.parametrize("text", ["0x8;0xa", "eight", "0x8,,0xzz"])
def test_events_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_events(text, 8)
