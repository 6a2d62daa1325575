"""Formulas of every metric set, compared with results computed by hand."""

import numpy as np
import pytest

from tests.prof_generator.device_side import EVENTS, EVENTS_V6
from unified_prof.decoders.prof.pmu_metrics import Family, evaluate, parse_events, select_metrics

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


def test_pipe_ratios_and_times_are_shares_of_cycles_and_time() -> None:
    pipes = ("vec", "mac", "scalar", "mte1", "mte2", "mte3")
    expected = {f"{pipe}_ratio": n / 10 for n, pipe in enumerate(pipes, 1)}
    expected |= {f"{pipe}_time": n * 200.0 for n, pipe in enumerate(pipes, 1)}
    assert values("PipeUtilization") == pytest.approx({**expected, "icache_miss_rate": 800 / 700})


def test_extended_pipe_utilization_adds_both_kinds_of_multiplications() -> None:
    found = values("PipeUtilizationExct")
    assert found["mac_ratio"] == pytest.approx(0.3)
    assert found["fixpipe_time"] == pytest.approx(1200.0)
    assert "vec_ratio" not in found


def test_arithmetic_utilization_counts_operations() -> None:
    found = values("ArithmeticUtilization")
    assert found["vec_fp16_ratio"] == pytest.approx(0.9)
    assert found["cube_fops"] == 100 * 8192 + 200 * 16384
    assert found["vector_fops"] == 300 * 64 + 400 * 128 + 500 * 64 + 600 * 64 + 700 * 32


def test_memory_bandwidths_are_bytes_per_cycle_at_the_core_frequency() -> None:
    assert values("Memory") == pytest.approx(
        {
            "ub_read_bw": 100 * 128 * PER_BYTE,
            "ub_write_bw": 200 * 128 * PER_BYTE,
            "l1_read_bw": 300 * 512 * PER_BYTE,
            "l1_write_bw": 400 * 128 * PER_BYTE,
            "l2_read_bw": 500 * 256 * PER_BYTE,
            "l2_write_bw": 600 * 256 * PER_BYTE,
            "main_mem_read_bw": 700 * 8 * PER_BYTE,
            "main_mem_write_bw": 800 * 8 * PER_BYTE,
        }
    )


def test_memory_of_chips_with_one_kind_of_cores_has_no_l2() -> None:
    found = values("Memory", "one kind")
    assert not [name for name in found if name.startswith("l2_")]
    assert found["l1_write_bw"] == pytest.approx(2 * values("Memory")["l1_write_bw"])


def test_memory_l0_and_ub_counts_have_their_number_of_bytes() -> None:
    l0, ub = values("MemoryL0"), values("MemoryUB")
    assert l0["l0b_write_bw"] == pytest.approx(400 * 256 * PER_BYTE)
    assert l0["l0c_write_bw_cube"] == pytest.approx(800 * 1024 * PER_BYTE)
    assert ub["ub_read_bw_scalar"] == pytest.approx(300 * 16 * PER_BYTE)
    assert ub["ub_write_bw_vector"] == pytest.approx(800 * 32 * PER_BYTE)


def test_memory_access_is_in_kilobytes_and_may_be_negative() -> None:
    assert values("MemoryAccess") == pytest.approx(
        {
            "read_main_memory_datas": (700 + 800) / 8,
            "write_main_memory_datas": 600 / 8,
            "GM_to_L1_datas": (100 - 400) / 4,
            "L0C_to_L1_datas": 400 / 8,
            "L0C_to_GM_datas": (500 - 400) / 8,
            "GM_to_UB_datas": 300 / 8,
            "UB_to_GM_datas": 200 / 8,
        }
    )


def test_cache_and_custom_events_are_plain_counts() -> None:
    assert values("L2Cache")["r1_read_cache_miss_allocate"] == 600
    assert values("Custom", events="0x8,10,0x500") == {"r8": 100, "ra": 200, "r500": 300}


def test_platform_15_has_different_events() -> None:
    found = values("PipeUtilization", "v6")
    assert found["fixpipe_ratio"] == pytest.approx(0.9)
    assert found["icache_miss_rate"] == pytest.approx(800 / 700)
    events = parse_events(EVENTS["PipeUtilization"], 10)
    assert select_metrics("PipeUtilization", events, "v6").metrics == ()


def test_metric_needs_all_its_events() -> None:
    found = select_metrics("PipeUtilizationExct", (0x416, 0x9), "two kinds")
    assert [metric.name for metric in found.metrics] == ["scalar_time", "scalar_ratio"]
    assert found.uncounted[:2] == ("mac_time", "mac_ratio")
    assert "icache_miss_rate" in found.uncounted
    assert select_metrics("NoSuchSet", (0x8,), "two kinds") == ((), ())


CLASSIC = "0x10,0x13,0x37,0x38,0x3d,0x3e,0x43,0x44"
NEWER = "0x37,0x38,0x1a5,0x1a6,0x17f,0x180,0x191"


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


def test_executed_pipes_of_chips_with_one_kind_of_cores() -> None:
    events = "0x12c,0x49,0x4a,0x9,0x302,0xc,0xd,0x303"
    found = values("PipelineExecuteUtilization", "one kind", events)
    assert len(found) == 14
    assert found["vec_exe_ratio"] == pytest.approx(0.1)
    assert found["mac_exe_time"] == pytest.approx(1000.0), "200 and 300 of 1000 cycles in 2000 ns"
    assert found["fixpipe_exe_ratio"] == pytest.approx(0.8)


def test_memory_l0_of_chips_with_one_kind_of_cores_has_narrower_counts() -> None:
    events = "0x1b,0x1c,0x21,0x22,0x27,0x28,0x29,0x2a"
    found = values("MemoryL0", "one kind", events)
    assert found["l0a_read_bw"] == pytest.approx(100 * 512 * PER_BYTE)
    assert found["l0b_read_bw"] == pytest.approx(300 * 256 * PER_BYTE)
    assert found["l0c_read_bw_cube"] == pytest.approx(600 * 256 * PER_BYTE)
    sampled = values("MemoryL0", "one kind", events, sampled=True)
    assert sampled["l0b_read_bw"] == pytest.approx(300 * 512 * PER_BYTE)


def test_samples_count_the_transfers_of_the_memory_engine() -> None:
    events = "0x10,0x13,0x37,0x38,0x3d,0x3e,0x43,0x44"
    of_tasks, of_cores = (values("MemoryUB", events=events, sampled=kind) for kind in (False, True))
    assert set(of_cores) - set(of_tasks) == {"ub_read_bw_mte", "ub_write_bw_mte"}
    assert of_cores["ub_read_bw_mte"] == pytest.approx(500 * 16 * PER_BYTE)
    assert of_cores["ub_write_bw_vector"] == pytest.approx(800 * 16 * PER_BYTE)
    assert of_tasks["ub_write_bw_vector"] == pytest.approx(800 * 32 * PER_BYTE)


@pytest.mark.parametrize(
    ("name", "events", "metric", "value"),
    [
        ("ArithmeticUtilization", "0x323,0x324", "cube_fops", 100 * 8192 + 200 * 16384),
        ("L2Cache", "0x424,0x425,0x426,0x42a,0x42b,0x42c", "write_local_l2_victim", 600),
        ("ResourceConflictRatio", "0x540,0x556,0x502,0x528", "vec_bank_cflt_ratio", 0.3),
        ("ResourceConflictRatio", "0x540,0x556,0x502,0x528", "vec_resc_cflt_ratio", 400 / 300),
    ],
)
def test_metric_sets_of_platform_15(name: str, events: str, metric: str, value: float) -> None:
    assert values(name, "v6", events)[metric] == pytest.approx(value)
