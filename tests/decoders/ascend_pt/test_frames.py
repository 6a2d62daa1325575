"""Python calls and modules of `*_ascend_pt` directories."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.decoders.ascend_pt.builders import Framework
from tests.decoders.ascend_pt.rows import decode

CALL, RETURN, C_CALL, C_RETURN = range(4)


def test_calls_nest_by_thread_and_open_ones_end_with_it(tmp_path: Path) -> None:
    framework = Framework()
    framework.text(1, "m.py(1): main")
    calls = ((1, 9, RETURN, 1), (2, 1, CALL, 1), (3, 2, C_CALL, 1), (3, 1, CALL, 2))
    for time, key, tag, tid in (*calls, (4, 7, C_RETURN, 1), (9, 2, CALL, 1)):
        framework.call(time, key, tag, tid)
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "name", "startNs", "endNs", "type") == [
        ("2", 3, 4, 50003),
        ("2", 9, 9, 50003),
        ("m.py(1): main", 2, 9, 50003),
        ("m.py(1): main", 3, 3, 50003),
    ]


def test_modules_are_numbered_by_thread_and_first_call(tmp_path: Path) -> None:
    framework = Framework()
    for key, text in ((1, "Linear######10"), (2, "Linear######11"), (3, "Norm######10")):
        framework.text(key, text)
    for time, (key, tid) in enumerate(((2, 1), (1, 1), (2, 1), (3, 1), (1, 2)), start=1):
        framework.call(10 * time, key, CALL, tid)
        framework.call(10 * time + 5, key, RETURN, tid)
    assert decode(framework.write(tmp_path)).table("PYTORCH_API", "startNs", "name") == [
        (10, "nn.Module: Linear_0"),
        (20, "nn.Module: Linear_1"),
        (30, "nn.Module: Linear_0"),
        (40, "nn.Module: Norm_1"),  # Instances are identified by number only.
        (50, "nn.Module: Linear_0"),
    ]


def test_calls_without_names_are_reported(tmp_path: Path) -> None:
    framework = Framework()
    framework.call(1, 1)
    sink = decode(framework.write(tmp_path))
    assert sink.table("PYTORCH_API", "name") == []
    assert "undecoded_data" in sink.anomalies


EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=25)


@given(EVENTS)
def test_stacks_equal_those_of_a_plain_loop(events: list[tuple[int, int]]) -> None:
    framework = Framework()
    framework.text(0, "")
    stacks: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    expected = []
    for time, (tag, tid) in enumerate(events):
        framework.call(time, 1, tag, tid)
        last[tid] = time
        if tag in (CALL, C_CALL):
            stacks.setdefault(tid, []).append(time)
        elif stacks.get(tid):
            expected.append((stacks[tid].pop(), time))
    expected += [(start, last[tid]) for tid, stack in stacks.items() for start in stack]
    with tempfile.TemporaryDirectory() as folder:
        found = decode(framework.write(Path(folder))).table("PYTORCH_API", "startNs", "endNs")
    assert found == sorted(expected)
