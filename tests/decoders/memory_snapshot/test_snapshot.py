"""Tables of memory snapshots, and refusals of hostile ones."""

import os
import pickle
import random
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from tests.decoders.memory_snapshot.builders import (
    OUTER,
    block,
    decode,
    decode_snapshot,
    entry,
    segment,
    small,
    write,
)
from unified_prof.cli.app import app
from unified_prof.errors import RawFormatError
from unified_prof.pipeline.convert import convert
from unified_prof.pipeline.sources import find_source

STEP = "/home/user/train.py(12): step"
LINEAR = "/usr/lib/python3/site-packages/torch/nn/linear.py(9): mm"


def test_json_and_pickle_give_equal_tables(tmp_path: Path) -> None:
    pickled = decode_snapshot(tmp_path, small())
    plain = decode(write(tmp_path / "snapshot.json", small()))
    assert plain.tables == pickled.tables


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "any name"
    path.write_bytes(pickle.dumps(small(), protocol))
    source = find_source(path)
    assert source is not None
    assert source.kind == "memory_snapshot"
    assert len(decode(path).tables["OP_MEMORY"]) == 3


def test_blocks_of_old_versions_have_a_history_and_no_address(tmp_path: Path) -> None:
    old = [
        {"state": "inactive"},
        {"size": 256, "state": "inactive"},
        {"size": 512, "state": "active_allocated", "history": [{"frames": [OUTER]}]},
    ]
    sink = decode_snapshot(tmp_path, {"segments": [segment(4096, *old)]})
    assert sink.rows("OP_MEMORY", "name", "size", texts=["name"]) == [(STEP, 512)]
    assert sink.rows("UPROF_MEMORY_BLOCKS", "address") == [(0x1100,)]
    assert sink.anomalies == {"no_history": 1}


def test_entries_of_old_versions_have_no_times(tmp_path: Path) -> None:
    entries = [entry("alloc", 1, 8, 0), entry("free_requested", 1, 8, 0)]
    for item in entries:
        del item["time_us"]
    sink = decode_snapshot(tmp_path, {"segments": [], "device_traces": [entries]})
    assert sink.rows("MEMORY_RECORD", "timestamp") == [(0,), (1_000,)]
    assert sink.anomalies == {"no_times": 2}


def test_inconsistent_entries_are_counted(tmp_path: Path) -> None:
    history = [
        entry("alloc", 1, 8, 1),
        entry("alloc", 1, 8, 2),
        entry("free_requested", 9, 4, 3),
        entry("free_completed", 10, 4, 4),
        entry("teleport", 1, 1, 5),
        entry("alloc", 1, -5, 6),
        entry("alloc", 1, 5, -6),
        {"action": ["alloc"]},
        "no entry",
    ]
    sink = decode_snapshot(tmp_path, {"device_traces": [history], "segments": "none"})
    assert sink.anomalies == {
        "allocation_without_release": 1,
        "release_without_allocation": 2,
        "unknown_action": 1,
        "malformed_entry": 3,
    }
    assert len(sink.tables["OP_MEMORY"]) == 3


# ---- hostile pickles


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_in_a_pickle_is_not_executed(place: Path, protocol: int) -> None:
    evil = {"segments": [], "device_traces": [Evil()]}
    path = place / "evil.pickle"
    path.write_bytes(b"\x80" + bytes([protocol]) + pickle.dumps(evil, protocol).lstrip(b"\x80"))
    with pytest.raises(RawFormatError, match=r"plain data|damaged"):
        decode(path)
    assert not (place / "pwned").exists()


@pytest.mark.parametrize("value", [OrderedDict(a=1), {1, 2}, bytearray(b"x"), 1j, Path("x")])
def test_only_plain_data_is_unpickled(tmp_path: Path, value: Any) -> None:
    with pytest.raises(RawFormatError, match="plain data"):
        decode_snapshot(tmp_path, {"segments": [value]})


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x04}\x8c\x08segments]r\xff\xff\xff\xffs.",  # Memo index 4 billion.
        b"\x80\x04}\x8c\x08segments\x8e\xff\xff\xff\xff\xff\xff\xff\x7fs.",  # 2**63 bytes.
        b"\x80\x05}\x8c\x08segments\x96\x00\x00\x00\x00\x01\x00\x00\x00s.",  # 4 GiB of bytearray.
        b"\x80\x04}\x8c\x08segments\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",  # Frame of 2**63 bytes.
        b"\x80\x04}\x8c\x08segments](" + b"h\x00" * 3 + b"e" + b"s.",  # A missing memo entry.
    ],
)
def test_lengths_in_a_pickle_allocate_no_memory(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "bomb.pickle"
    path.write_bytes(bomb)
    with suppress(RawFormatError):
        decode(path)


def test_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RawFormatError, match="share one list"):
        decode_snapshot(tmp_path, {"segments": loop, "device_traces": [loop, loop]})


SNAPSHOT = b"\x80\x04}\x94(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]"
SHARED_TUPLES = b"K\x01\x85\x94" + b"".join(b"h%c\x86\x94" % (1 + i) for i in range(40))


@pytest.mark.quick(cases=3)
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(SHARED_TUPLES + b"K\x01u.", id="key with 2**40 references"),
        pytest.param(b")" + b"\x85" * 300_000 + b"K\x01u.", id="deeply nested key"),
        pytest.param(b")" + b"\x85" * 300_000 + b"K\x01s.", id="deeply nested key, SETITEM"),
        pytest.param(b"(" + SHARED_TUPLES + b"K\x01d.", id="mapping with a shared key"),
        pytest.param(b"(" * 2_000_000 + b"u.", id="two million marks"),
        pytest.param(b"]" * 2_000_000 + b"u.", id="two million lists"),
        pytest.param(b"]" + b"\x94" * 2_000_000 + b"u.", id="two million memo entries"),
    ],
)
def test_hostile_pickle_takes_limited_time_and_memory(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "hostile.pickle"
    path.write_bytes(SNAPSHOT + rest)
    with pytest.raises(RawFormatError, match="a recording is plain data"):
        decode(path)


def test_blocks_and_actions_shared_many_times_are_refused(tmp_path: Path) -> None:
    blocks = [block(0x1000, 8)] * 2_000
    shared = {"device": 0, "total_size": 8, "blocks": blocks}
    for snapshot in (
        {"segments": [shared] * 2_000},
        {"segments": [], "device_traces": [[entry("alloc", 1, 8, 1)] * 2_000] * 2_000},
    ):
        with pytest.raises(RawFormatError, match="share one list"):
            decode_snapshot(tmp_path, snapshot)


def test_stack_shared_many_times_is_decoded_once(tmp_path: Path) -> None:
    shared_entry = entry("alloc", 1, 8, 1)
    shared_entry["frames"] = [{**OUTER, "name": "x" * 100_000}] * 1_000
    sink = decode_snapshot(tmp_path, {"segments": [], "device_traces": [[shared_entry] * 3_000]})
    assert len(sink.tables["PYTORCH_CALLCHAINS"]) == 1_000
    assert len(sink.tables["OP_MEMORY"]) == 3_000


def test_values_that_expand_exponentially_are_omitted(tmp_path: Path) -> None:
    stage: Any = "x"
    for _ in range(40):
        stage = [stage, stage]
    notes = [{"stage": stage, "name": "forward", "device": 0, "time_us": 6}]
    settings = {"a": 10**5_000, "b": -1}
    sink = decode_snapshot(
        tmp_path, {"segments": [], "external_annotations": notes, "allocator_settings": settings}
    )
    assert sink.rows("UPROF_TRACE_EVENTS", "args") == [('{"stage": null}',)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["torch::unwind::unwind()", "at::_ops::mm::call(at::Tensor const&)"], 1),
        (["torch::unwind::unwind()"], None),
        (["torch::unwind::unwind()", LINEAR, "main"], 1),
        (["torch::unwind::unwind()", LINEAR, "/home/user/train.py(3): <module>"], 2),
    ],
)
def test_block_has_its_operation(tmp_path: Path, names: list[str], expected: int | None) -> None:
    frames = []
    for name in names:
        file, _, function = name.partition("(9): ") if name == LINEAR else name.partition("(3): ")
        frames.append({"filename": file, "line": 9 if name == LINEAR else 3, "name": function})
        if not function:
            frames[-1] = {"filename": "??", "line": 0, "name": name}
    sink = decode_snapshot(tmp_path, {"device_traces": [[entry("alloc", 1, 8, 1, *frames)]]})
    name = "N/A" if expected is None else names[expected]
    assert sink.rows("OP_MEMORY", "name", texts=["name"]) == [(name,)]


def test_random_values_are_refused_or_decoded(tmp_path: Path) -> None:
    chance = random.Random(7)
    values: tuple[Any, ...] = (
        *(None, -1, 2**63, 2**70, 1.5, float("nan"), "x", [], {}, [[]], True, b"x", "a\x00;b"),
    )

    def damage(value: Any) -> Any:
        if chance.random() < 0.05:
            return chance.choice(values)
        if isinstance(value, dict):
            return {key: damage(item) for key, item in value.items()}
        return [damage(item) for item in value] if isinstance(value, list) else value

    for _ in range(200):
        with suppress(RawFormatError):
            decode_snapshot(tmp_path, damage(small()))


def test_other_pickles_and_truncated_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RawFormatError, match="is not a snapshot of PyTorch's allocator"):
        decode_snapshot(tmp_path, {"weights": [1, 2]})
    path = tmp_path / "cut.pickle"
    path.write_bytes(pickle.dumps(small())[:-20])
    with pytest.raises(RawFormatError, match="is damaged or cut off"):
        decode(path)


@pytest.mark.parametrize(
    "damaged", [segment(64, block(1, 65)), segment(64, block(1, 65, "inactive")), segment(2**60)]
)
def test_segment_of_impossible_size_is_counted(tmp_path: Path, damaged: object) -> None:
    sink = decode_snapshot(tmp_path, {"segments": [damaged, segment(64)]})
    assert sink.anomalies["impossible_segment"] == 1
    assert sink.rows("UPROF_MEMORY_SEGMENTS", "sizeBytes") == [(64,)]


def test_advice_names_the_report_of_a_snapshot(tmp_path: Path) -> None:
    conversion = convert(write(tmp_path / "snap.pickle", small()), tmp_path / "r.db")
    done = CliRunner().invoke(app, ["advise", str(conversion.database)])
    assert done.exit_code == 0, done.stderr
    assert "a memory snapshot has no times (`uprof report --by line` shows" in done.stdout


ACTIONS = "alloc free_requested free_completed segment_alloc segment_map segment_free segment_unmap"


@given(
    begin=st.lists(st.integers(1, 99), max_size=3),
    steps=st.lists(st.tuples(st.sampled_from(ACTIONS.split()), st.integers(1, 99)), min_size=1),
)
@example(begin=[5], steps=[(action, 7) for action in [*ACTIONS.split(), "segment_map"]])
@example(begin=[5], steps=[(action, 7) for action in reversed(ACTIONS.split())])
def test_totals_are_those_of_the_allocator(
    tmp_path_factory: pytest.TempPathFactory, begin: list[int], steps: list[tuple[str, int]]
) -> None:
    """Replay a simple allocator, of which the snapshot has only the actions and the end."""
    reserved, live = [1000], {0x10 * (at + 1): size for at, size in enumerate(begin)}
    awaiting: dict[int, int] = {}
    history: list[Any] = []
    expected: list[tuple[int, int, int]] = []
    for time_us, (action, size) in enumerate(steps, 1):
        address = 0x1000 * time_us
        if action == "alloc":
            live[address] = size
        elif action == "free_requested":
            if not live:
                continue
            address = min(live)
            size = awaiting[address] = live.pop(address)
        elif action == "free_completed":
            if not awaiting:
                continue
            address = min(awaiting)
            size = awaiting.pop(address)
        elif action in ("segment_alloc", "segment_map"):
            reserved.append(size)
        elif len(reserved) > 1:
            size = reserved.pop()
        else:
            continue
        history.append(entry(action, address, size, time_us))
        allocated = sum(live.values())
        expected.append((allocated, sum(reserved), allocated + sum(awaiting.values())))
    blocks = [block(address, size) for address, size in live.items()]
    blocks += [block(address, size, "active_awaiting_free") for address, size in awaiting.items()]
    segments = [segment(reserved[0], *blocks), *(segment(size) for size in reserved[1:])]
    snapshot = {"segments": segments, "device_traces": [history]}
    sink = decode_snapshot(tmp_path_factory.mktemp("snapshot"), snapshot)
    columns = ("totalAllocated", "totalReserved", "totalActive")
    assert (sink.rows("MEMORY_RECORD", *columns) if expected else []) == expected
