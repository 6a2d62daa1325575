"""Comparison of tracked runs by operation."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from unified_prof.compare.comparable import OPERATIONS, Operations, Place, Run, Sized, pair, pool
from unified_prof.compare.diff import Difference, diff
from unified_prof.compare.operation_changes import By, Change, sum_loops, sum_size_loops
from unified_prof.errors import UsageError
from unified_prof.report.operation_difference import difference_document
from unified_prof.report.terminal import render_text

Spec = tuple[str, str, int, float]
"""Name, module, line, milliseconds."""

STEP: tuple[Spec, ...] = (
    ("linear", "net.fc1", 10, 2.0),
    ("relu", "net", 11, 0.5),
    ("linear", "net.fc2", 12, 3.0),
)


RUNS = 4
BY: tuple[By, ...] = ("operation", "line", "module")


def in_runs(run: Run, runs: int = RUNS) -> Run:
    """Divide the samples among `runs` runs of equal length, if possible."""

    def cut(count: int) -> tuple[int, ...]:
        return (count // runs,) * runs if count % runs == 0 else (count,)

    lengths = {metric: cut(len(values)) for metric, values in run.totals.items()}
    return structs.replace(
        run, lengths={**lengths, OPERATIONS: cut(run.operations.forward_ns.shape[1])}
    )


def run_of(
    specs: Sequence[Spec],
    *,
    samples: int = 12,
    seed: int = 0,
    label: str = "run.sqlite",
    runs: int = RUNS,
) -> Run:
    """Return a run with 1 % of noise."""
    generator = np.random.default_rng(seed)
    forward = np.array([ms * 1e6 for *_, ms in specs]).reshape(-1, 1)
    noisy = forward * (1 + generator.uniform(0, 0.01, (len(specs), samples)))
    run = Run(
        label=label,
        families=frozenset({"skyline-run-time"}),
        clock="operation",
        facts={"device": "cpu"},
        operations=Operations(
            tuple(Place(name, module, f"model.py:{line}") for name, module, line, _ in specs),
            noisy,
            np.full((len(specs), samples), np.nan),
        ),
        sizes=(),
        totals={"total": noisy.sum(axis=0)},
    )
    return in_runs(run, runs)


def statuses(found: Difference) -> list[tuple[str, str | None]]:
    return [(change.status, change.place.module) for change in found.changes]


def test_slower_operation_is_first_and_explains_the_change() -> None:
    slower = (STEP[0], ("relu", "net", 11, 1.5), STEP[2])
    found = diff(run_of(STEP), run_of(slower, seed=1))
    assert found.changes[0].status == "slower"
    assert found.changes[0].place.line == "model.py:11"
    assert found.changes[0].explained_ns == pytest.approx(1e6, rel=0.1)
    assert [status for status, _ in statuses(found)[1:]] == ["same", "same"]


def test_unchanged_run_has_no_slower_or_faster_operation() -> None:
    found = diff(run_of(STEP, seed=2), run_of(STEP, seed=3))
    assert {change.status for change in found.changes} == {"same"}


def test_shifted_lines_are_no_change() -> None:
    shifted = [(name, module, line + 7, ms) for name, module, line, ms in STEP]
    found = diff(run_of(STEP), run_of(shifted, seed=1))
    assert {change.status for change in found.changes} == {"same"}
    assert found.changes[0].base_place is not None
    assert found.changes[0].base_place.line != found.changes[0].place.line


def rows(found: Difference) -> list[tuple[str, str, int]]:
    summed = sum_loops(found.changes)
    assert sum(one.delta_ns for one in summed) == pytest.approx(found.new_ns - found.base_ns)
    assert sum(one.explained_ns for one in summed) == pytest.approx(
        sum(one.explained_ns for one in found.changes)
    )
    return [(one.status, f"{one.place.module}.{one.place.name}", one.count) for one in summed]


def test_calls_of_a_loop_that_changed_alike_are_one_row() -> None:
    loop: list[Spec] = [("lstm_cell", "cell", 20, 0.1)] * 64
    found = diff(run_of([*STEP, *loop]), run_of([*STEP, ("lstm", "rnn", 16, 2.0)], seed=1))
    assert len(found.changes) == 64 + 1 + len(STEP)
    changed, unchanged = rows(found)[:2], rows(found)[2:]
    assert changed == [("gone", "cell.lstm_cell", 64), ("new", "rnn.lstm", 1)]
    assert {status for status, *_ in unchanged} == {"same"}
    text = render_text(difference_document(found, top=20))
    assert "cell.lstm_cell x64" in text
    assert "--format json has each" in text


def test_layer_that_alone_changed_stays_visible() -> None:
    layers = [("linear", f"net.{layer}.up", 5, 1.0) for layer in range(20)]
    slower = [*layers[:7], ("linear", "net.7.up", 5, 1.4), *layers[8:]]
    assert rows(diff(run_of(layers), run_of(slower, seed=1))) == [
        ("slower", "net.7.up.linear", 1),
        ("same", "net.*.up.linear", 19),
    ]


def test_memory_of_a_loop_is_one_row_and_few_calls_stay_separate() -> None:
    def sized(name: str, count: int, size: int, layers: int = 9) -> tuple[Sized, ...]:
        modules = [f"{name}.{i % layers}" for i in range(count)]
        return tuple(Sized(Place(name, one, "m.py:1", "activation"), size) for one in modules)

    families = frozenset({"skyline-memory"})
    sizes = sized("a", 9, 8) + sized("b", 3, 10) + sized("c", 4, 1, 2) + sized("d", 4, 0, 1)
    base = structs.replace(run_of(STEP), families=families, sizes=sizes)
    new = structs.replace(run_of(STEP, seed=1), families=families, sizes=())
    summed = sum_size_loops(diff(base, new).size_changes)
    assert [(one.place.name, one.place.module, one.delta_bytes) for one in summed] == [
        ("a x9", "a.*", -72),
        *[("b", f"b.{i}", -10) for i in range(3)],
        ("c x4", "c.*", -4),
        ("d x4", "d.0", 0),
    ]


@pytest.mark.parametrize(("backward_ns", "named"), [(1e6, False), (4e6, True)])
def test_part_that_explains_little_is_not_named(backward_ns: float, named: bool) -> None:
    before, after = run_of(STEP), run_of(STEP, seed=1)
    totals = {"total": after.totals["total"] + 10e6}
    after = structs.replace(
        after, totals=totals, parts_ns={"forward": 2e6, "backward": backward_ns}
    )
    found = diff(structs.replace(before, parts_ns={"forward": 2e6}), after)
    assert ("largest change: backward" in render_text(difference_document(found, top=9))) == named


@pytest.mark.parametrize(
    ("bytes_after", "expected"),
    [((16, 32), True), ((16, 64), False), ((16, 31), False), ((24, 48), False)],
)
def test_equal_ratio_of_all_weights_is_named(bytes_after: tuple[int, int], expected: bool) -> None:
    def run(sizes: tuple[int, int], seed: int) -> Run:
        weights = (Sized(Place(f"w{i}", "net", "m.py:1", "weight"), n) for i, n in enumerate(sizes))
        families = frozenset({"skyline-run-time", "skyline-memory"})
        return structs.replace(run_of(STEP, seed=seed), families=families, sizes=tuple(weights))

    found = diff(run((32, 64), 0), run(bytes_after, 1))
    text = render_text(difference_document(found, top=20))
    assert ("all 2 weights have 0.5 x the size, as with another dtype" in text) == expected


def test_few_samples_are_inconclusive() -> None:
    halved = [(name, module, line, ms / 2) for name, module, line, ms in STEP]
    found = diff(run_of(STEP, samples=4), run_of(halved, samples=4))
    assert {change.status for change in found.changes} == {"inconclusive"}


def test_measurement_compared_with_itself_is_identical() -> None:
    one = run_of(STEP, samples=1, runs=1)
    found = diff(one, structs.replace(one, label="copy.sqlite"))
    assert found.identical
    assert {change.status for change in found.changes} == {"same"}


def test_single_different_sample_is_another_measurement() -> None:
    one = run_of(STEP, samples=1, runs=1)
    forward = one.operations.forward_ns.copy()
    forward[1, 0] += 1
    other = structs.replace(one, operations=replace(one.operations, forward_ns=forward))
    found = diff(one, other)
    assert not found.identical
    assert {change.status for change in found.changes} == {"inconclusive"}
    longer = structs.replace(one, totals={"total": one.totals["total"] + 1})
    assert not diff(one, longer).identical


def test_pooled_files_have_enough_samples() -> None:
    base = pool([run_of(STEP, samples=1, seed=seed) for seed in range(6)])
    halved = [(name, module, line, ms / 2) for name, module, line, ms in STEP]
    new = pool([run_of(halved, samples=1, seed=seed + 9) for seed in range(6)])
    assert {change.status for change in diff(base, new).changes} == {"faster"}


def test_differences_of_device_and_clock_are_warned_about() -> None:
    base, new = run_of(STEP), run_of(STEP)
    new = structs.replace(new, clock="device", facts={"device": "npu"})
    warnings = " ".join(diff(base, new).warnings)
    assert "cpu and npu" in warnings
    assert "different clocks: operation and device" in warnings


def test_changed_sizes_are_sorted_by_difference() -> None:
    def sized(*sizes: tuple[str, int]) -> Run:
        run = structs.replace(run_of(()), families=frozenset({"skyline-memory"}))
        places = tuple(Sized(Place("weight", name, None, "weight"), size) for name, size in sizes)
        return structs.replace(run, sizes=places, totals={})

    found = diff(sized(("a", 8), ("b", 16), ("d", 1)), sized(("a", 4), ("c", 100), ("d", 1)))
    assert [(c.status, c.place.module, c.delta_bytes) for c in found.size_changes] == [
        ("new", "c", 100),
        ("gone", "b", -16),
        ("smaller", "a", -4),
    ]


spec = st.tuples(
    st.sampled_from(["linear", "relu"]),
    st.sampled_from(["a", "n.0", "n.1", "n.2", "n.3", "n.4"]),
    st.integers(1, 2),
    st.integers(1, 9),
)


BASE, NEW = attrgetter("base_ns"), attrgetter("new_ns")
figures = attrgetter(
    *("status", "place.name", "place.module", "base_ns", "new_ns", "count", "moved"), "explained_ns"
)


def line_of(place: Place | None) -> str | None:
    return None if place is None else place.line


@settings(max_examples=160, deadline=None)
@given(st.lists(spec, max_size=12), st.lists(spec, max_size=12), st.sampled_from(BY))
def test_changes_are_sums_of_pairs(base: list[Spec], new: list[Spec], by: By) -> None:
    """With one sample each, times are exact and no change is certain."""
    runs = run_of(base, samples=1), run_of(new, samples=1, seed=1)
    before, after = (one.operations for one in runs)
    pairs = [*zip(*(one.tolist() for one in pair(before.places, after.places)), strict=True)]
    first, second = dict(pairs), {j: i for i, j in pairs}
    ordered: list[tuple[int | None, int | None]] = [*pairs]
    ordered += [(None, j) for j in range(len(new)) if j not in second]
    ordered += [(i, None) for i in range(len(base)) if i not in first]
    groups: dict[object, list[tuple[int | None, int | None]]] = {}
    for number, (i, j) in enumerate(ordered):
        place = after.places[j] if j is not None else before.places[i or 0]
        key = {"operation": number, "line": place.line, "module": place.module}[by]
        groups.setdefault(key, []).append((i, j))
    expected = []
    for members in groups.values():
        sides = [[at for one in members if (at := one[side]) is not None] for side in (0, 1)]
        times = [
            sum(float(run.total_ns[at, 0]) for at in rows) if rows else None
            for run, rows in zip((before, after), sides, strict=True)
        ]
        status = "inconclusive" if all(sides) else "new" if sides[1] else "gone"
        places = [after.places[j] if j is not None else before.places[i or 0] for i, j in members]
        names = [*dict.fromkeys(place.name for place in places)]
        old = before.places[sides[0][0]] if sides[0] else None
        line, old_line = (None, None) if by == "module" else (places[0].line, line_of(old))
        moved = by == "operation" and any(
            i is not None and j is not None and any(a < i and b > j for a, b in pairs)
            for i, j in members
        )
        count = max(map(len, sides))
        what = (", ".join(names), places[0].module, line, old_line)
        expected.append((status, *what, *times, moved, count))
    found = diff(*runs, by=by).changes
    rows = []
    for one in found:
        what = (one.place.name, one.place.module, one.place.line, line_of(one.base_place))
        rows.append((one.status, *what, one.base_ns, one.new_ns, one.moved, one.count))
    assert sorted(rows, key=str) == sorted(expected, key=str)
    assert found == tuple(
        sorted(found, key=lambda one: (one.status == "inconclusive", -abs(one.delta_ns)))
    )
    net = sum(one.delta_ns for one in found)
    alike = sum(one.delta_ns for one in found if one.delta_ns * net > 0)
    for one in found:
        share = net * one.delta_ns / alike if one.delta_ns * net > 0 else 0
        assert one.explained_ns == pytest.approx(share)
        assert one.forward_delta_ns == (one.delta_ns if one.status == "inconclusive" else None)
    # Changes of more than three layers or calls become one row.
    loops: dict[tuple[object, ...], list[Change]] = {}
    for one in found:
        module = one.place.module and re.sub(r"[.]\d+", ".*", one.place.module)
        where = one.place.name, module, one.place.line, line_of(one.base_place)
        loops.setdefault((one.status, *where), []).append(one)
    expected_rows = [figures(one) for ones in loops.values() for one in ones if len(ones) <= 3]
    for (state, name, pattern, *_), ones in loops.items():
        modules = {one.place.module for one in ones}
        ns = [[x for one in ones if (x := one_of(one)) is not None] for one_of in (BASE, NEW)]
        sums = [sum(known) if known else None for known in ns]
        sums += [sum(one.count for one in ones), any(one.moved for one in ones)]
        if len(ones) > 3:
            layers = pattern if len(modules) > 1 else modules.pop()
            expected_rows.append(
                (state, name, layers, *sums, sum(one.explained_ns for one in ones))
            )
    assert sorted(map(figures, sum_loops(found)), key=str) == sorted(expected_rows, key=str)


@pytest.mark.slow
def test_ten_thousand_operations_take_no_quadratic_time() -> None:
    specs = [("linear", f"net.{i // 3}", i % 50, 0.1) for i in range(10_000)]
    base, new = run_of(specs, samples=20), run_of(specs[:4000] + specs[4100:], samples=20, seed=1)
    start = time.process_time()
    found = diff(base, new)
    assert time.process_time() - start < 20
    assert sum(change.status == "gone" for change in found.changes) == 100


def test_reports_of_different_families_are_refused() -> None:
    memory = structs.replace(run_of(STEP), families=frozenset({"skyline-memory"}))
    with pytest.raises(UsageError, match="different families"):
        diff(run_of(STEP), memory)


def test_sizes_measured_on_one_side_only_are_left_out() -> None:
    sized = (Sized(Place("w", "net", None, "weight"), 4),)
    both = structs.replace(
        run_of(STEP), sizes=sized, families=frozenset({"skyline-run-time", "skyline-memory"})
    )
    found = diff(both, run_of(STEP, seed=1))
    assert found.size_changes == ()
    assert {change.status for change in found.changes} == {"same"}


def test_kernel_changes_are_grouped_by_operation_and_sorted_by_change() -> None:
    base = structs.replace(run_of(STEP), kernels={"linear": {"gemm": 5.0}, "relu": {"max": 1.0}})
    new = structs.replace(run_of(STEP), kernels={"linear": {"MatMulV2": 9.0}, "relu": {"max": 2.0}})
    assert [(k.operation, k.name, k.delta_ns) for k in diff(base, new).kernel_changes] == [
        ("linear", "MatMulV2", 9.0),
        ("linear", "gemm", -5.0),
        ("relu", "max", 1.0),
    ]
