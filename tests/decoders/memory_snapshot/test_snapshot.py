"""Tables of memory snapshots, and refusals of hostile ones."""

import json
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
    INNER,
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
from unified_prof.explain.api import open_analyses
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


def test_devices_are_replayed_separately(tmp_path: Path) -> None:
    sink = decode_snapshot(
        tmp_path,
        {
            "segments": [segment(64, device=2)],
            "device_traces": [[entry("alloc", 1, 8, 5)], [], [entry("alloc", 1, 16, 6)]],
        },
    )
    assert sink.rows("MEMORY_RECORD", "deviceId", "totalAllocated") == [(0, 8), (2, 16)]
    assert sink.rows("NPU_INFO", "id", "name") == [(0, "UNKNOWN"), (2, "UNKNOWN")]


def test_out_of_memory_is_an_anomaly_and_an_event(tmp_path: Path) -> None:
    oom = entry("oom", 0, 10**9, 7, device_free=5)
    del oom["addr"]
    notes = [{"stage": "START", "name": "forward", "device": 0, "time_us": 6}]
    sink = decode_snapshot(tmp_path, {"device_traces": [[oom]], "external_annotations": notes})
    assert sink.anomalies == {"out_of_memory": 1}
    assert sink.details["out_of_memory"] == "device 0: 1,000,000,000 bytes requested, 5 free"
    assert sink.rows("UPROF_TRACE_EVENTS", "category", "name", texts=["category", "name"]) == [
        ("oom", "out of memory"),
        ("annotation", "forward"),
    ]


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
def test_hostile_pickle_takes_time_and_memory_in_proportion_to_its_size(
    tmp_path: Path, rest: bytes
) -> None:
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
def test_block_is_named_after_the_operation_not_the_stack_recorder(
    tmp_path: Path, names: list[str], expected: int | None
) -> None:
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


def test_line_and_stack_breakdowns_add_up_to_the_peak(tmp_path: Path) -> None:
    other = {"filename": "/home/user/net.py", "line": 7, "name": "forward"}
    snapshot = small()
    snapshot["segments"][0]["blocks"].append(block(0x1800, 128, "active_allocated", OUTER))
    trace = snapshot["device_traces"][0]
    trace[2:2] = [entry("alloc", 0x1900, 64, 1_001, other, OUTER)]
    trace[4:4] = [
        entry("free_requested", 0x1900, 64, 1_003),
        entry("free_completed", 0x1900, 64, 1_003),
        entry("alloc", 0x1A00, 32, 1_004, INNER),
        entry("free_requested", 0x1A00, 32, 1_004),
        entry("free_completed", 0x1A00, 32, 1_004),
    ]
    conversion = convert(write(tmp_path / "snap.pickle", snapshot), tmp_path / "r.db")
    with open_analyses(conversion.database) as (analysis,):
        lines, stacks = analysis.breakdown("line"), analysis.breakdown("stack")
        peak = analysis.summary.totals.peak_bytes
    assert [(row.name, row.count, row.allocated_bytes) for row in lines.rows] == [
        ("train.py:12", 4, 512 + 128 + 256 + 1024),
        ("net.py:7", 1, 64),
    ]
    assert {row.name: row.count for row in stacks.rows} == {
        "train.py:12": 4,
        "train.py:12 → net.py:7": 1,
    }
    assert lines.size_bytes == peak


NET = {"filename": "/home/user/net.py", "line": 7, "name": "forward"}


def fragmented() -> dict[str, object]:
    """Return a snapshot with a small segment, and a large one whose free memory is in two parts."""
    small_pool = segment(4096, block(0x1000, 3840, "active_allocated", OUTER))
    large_pool = segment(
        8192,
        block(0x9000, 1024, "active_allocated", NET),
        block(0x9400, 3072, "inactive"),
        block(0xA000, 512, "active_awaiting_free"),
        block(0xA200, 2560, "inactive"),
        block(0xAC00, 1024, "active_allocated", NET, OUTER),
        address=0x9000,
    )
    small_pool |= {"segment_type": "small"}
    large_pool |= {"segment_type": "large", "is_expandable": True}
    return {"segments": [small_pool, large_pool], "device_traces": [[entry("oom", 0, 9_999, 7)]]}


def test_segments_have_their_largest_free_block(tmp_path: Path) -> None:
    sink = decode_snapshot(tmp_path, fragmented())
    assert sink.rows(
        "UPROF_MEMORY_SEGMENTS",
        *("address", "sizeBytes", "allocatedBytes", "freeBytes", "largestFreeBytes", "blocks"),
        *("kind", "streamPtr"),
        texts=["kind"],
    ) == [
        (0x1000, 4096, 3840, 256, 0, 1, "small", 3),
        (0x9000, 8192, 2048, 5632, 3072, 2, "large, expandable", 3),
    ]


@pytest.mark.parametrize(
    "damaged", [segment(64, block(1, 65)), segment(64, block(1, 65, "inactive")), segment(2**60)]
)
def test_segment_of_impossible_size_is_counted(tmp_path: Path, damaged: object) -> None:
    sink = decode_snapshot(tmp_path, {"segments": [damaged, segment(64)]})
    assert sink.anomalies["impossible_segment"] == 1
    assert sink.rows("UPROF_MEMORY_SEGMENTS", "sizeBytes") == [(64,)]


def test_report_by_segment_shows_fragmentation(tmp_path: Path) -> None:
    conversion = convert(write(tmp_path / "snap.pickle", fragmented()), tmp_path / "r.db")
    done = CliRunner().invoke(app, ["report", str(conversion.database), "--by", "segment"])
    assert done.exit_code == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines() if "0x" in line or "unused" in line]
    assert table == [
        "segment blocks share allocated reserved awaiting free unused largest unused pool".split(),
        "0x9000 2 34.8 % 2.00 KiB 8.00 KiB 512 B 5.50 KiB 3.00 KiB large, expandable".split(),
        "0x1000 1 65.2 % 3.75 KiB 4.00 KiB 0 B 256 B 0 B small".split(),
    ]
    with open_analyses(conversion.database) as (analysis,):
        rows = analysis.breakdown("segment").rows
    for row in rows:
        parts = (row.allocated_bytes, row.extra["awaiting_free_bytes"], row.extra["unused_bytes"])
        assert row.extra["reserved_bytes"] == sum(part or 0 for part in parts)


def test_segments_of_several_devices_are_named_with_their_device(tmp_path: Path) -> None:
    snapshot = {"segments": [segment(64), segment(32, device=1)]}
    conversion = convert(write(tmp_path / "snap.pickle", snapshot), tmp_path / "r.db")
    with open_analyses(conversion.database) as (analysis,):
        rows = analysis.breakdown("segment").rows
    assert [row.name for row in rows] == ["device 0 0x1000", "device 1 0x1000"]


def test_diff_by_line_of_two_snapshots_shows_the_memory_at_their_peaks(tmp_path: Path) -> None:
    before, after = small(), small()
    before["segments"][0]["blocks"].append(block(0x1800, 64, "active_allocated", NET))
    new = {**NET, "line": 30}
    after["segments"][0]["blocks"] += [
        block(0x1800, 96, "active_allocated", NET),
        block(0x1900, 128, "active_allocated", new),
        block(0x1A00, 32, "active_allocated"),
    ]
    paths = [
        str(convert(write(tmp_path / f"{name}.pickle", one), tmp_path / f"{name}.db").database)
        for name, one in (("before", before), ("after", after))
    ]
    done = CliRunner().invoke(app, ["diff", *paths, "--by", "line", "--format", "json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["warnings"] == []
    changes = [
        (one["status"], one["place"]["line"], one["base_bytes"], one["new_bytes"])
        for one in found["size_changes"]
    ]
    assert changes == [
        ("new", "net.py:30", None, 128),
        ("bigger", "net.py:7", 64, 96),
        ("new", "(no source line)", None, 32),
    ]
    peaks = found["totals"]["peak-memory"]
    assert peaks["new_median"] - peaks["base_median"] == 128 + 32 + 32
    shown = CliRunner().invoke(app, ["diff", *paths, "--by", "line"]).stdout
    assert "net.py:30" in shown
    assert "train.py:12" not in shown, "unchanged"


def test_commands_accept_a_converted_snapshot(tmp_path: Path) -> None:
    conversion = convert(write(tmp_path / "snap.pickle", small()), tmp_path / "r.db")
    assert conversion.kind == "memory_snapshot"
    run = CliRunner().invoke
    result = run(app, ["report", str(conversion.database), "--format", "json"])
    assert result.exit_code == 0, result.stderr
    assert "1792" in result.stdout, "the peak"
    assert json.loads(result.stdout)
    for command in (
        ["report", str(conversion.database)],
        ["trace", str(conversion.database), "-o", str(tmp_path / "t.json")],
        ["diff", str(conversion.database), str(conversion.database)],
    ):
        result = run(app, command)
        assert result.exit_code == 0, result.stderr
    assert "allocated (torch's allocator)" in (tmp_path / "t.json").read_text()


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
