"""PyTorch tables of an msprof database, which relate framework calls to device tasks.

torch_npu appends PYTORCH_API (host ranges), CONNECTION_IDS and PYTORCH_CALLCHAINS to msprof's
tables, and `uprof convert` fills the same tables from a Kineto trace. They give the operation,
pass, module and source line of each kernel.

Work below an `autograd::engine::evaluate_function` range, or below a range with a forward thread,
is backward; `python_frames.ForwardOperations` finds its forward operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import MISSING, Bools, Ints, Runs
from unified_prof.arrays.intervals import WINDOW, Below, Distances, NearestMarked, Nest
from unified_prof.arrays.packed import Packed, PackedLookup, Packing, Values, recoded
from unified_prof.base.columns import API_OPERATION, API_PYTHON
from unified_prof.recording import host_calls as host_ranges
from unified_prof.recording.host_calls import UNCONNECTED, HostCalls
from unified_prof.recording.python_frames import (
    ENGINE_PREFIX,
    MODULE_PREFIX,
    NO_CHAIN,
    AutogradColumns,
    ForwardOperations,
    Frames,
    RangesById,
    RecordedInputs,
    chains_through,
    numbered,
    user_frame,
    values_at,
)
from unified_prof.recording.source import Findings, Source, Strings

Whole = NDArray[np.integer]
NONE = intervals.NONE
FORWARD, BACKWARD, OTHER_PASS = 0, 1, 2
_STEP = re.compile(r"ProfilerStep#\d+$")
# `aten::conv2d`, `npu::_npu_dropout`, `torch.distributed.ddp.reducer::copy_bucket_to_grad`,
# `ConvolutionBackward0`, `torch::autograd::CppNode<...>`; not a range named by the user, such as
# `forward pass`.
_OPERATION = re.compile(
    r"(?!autograd::engine)(?:[\w.]+::[\w:.]+$|.*Backward\d*$|torch::autograd::CppNode<)"
)


class Launches(Struct, frozen=True, eq=False):
    """The operation and the pass of device tasks."""

    call: Ints  # Index of the host range of the operation; -1: none.
    passes: NDArray[np.int8]  # FORWARD, BACKWARD or OTHER_PASS; -1: the operation is unknown.


class HostTime(NamedTuple):
    """Host time of ranges."""

    # The operation that each range's time counts for; for backward ranges, the forward operation.
    call: Ints
    passes: NDArray[np.int8]  # FORWARD, BACKWARD or OTHER_PASS.
    time_ns: Ints


class Framework:
    """Host ranges of a report in call order (parents before their children).

    Columns are packed. Derived columns are computed in windows and packed too.
    """

    def __init__(
        self, source: Source, strings: Strings, findings: Findings, calls: HostCalls | None = None
    ) -> None:
        self._source, self._strings, self._host_calls = source, strings, calls
        ranges = host_ranges.read(source, strings, findings)
        self.thread, self.start_ns = ranges["thread"], ranges["start"]
        self._duration_ns = ranges["duration"]
        self._connection, self._chain = ranges["connection"], ranges["chain"]
        self._sequence, self._forward_thread = ranges["sequence"], ranges["forward_thread"]
        self._type = ranges["type"]
        self.inputs = RecordedInputs(source, strings, ranges["row"])
        self._nest = Nest(self.thread, self.start_ns, self._duration_ns)
        self._ids = ranges["name"].distinct()
        self._name_code = recoded(ranges.pop("name"), self._ids)
        self._names: list[str] = [strings.get(int(number)) or "" for number in self._ids]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> host_ranges.Ends:
        """End of each range."""
        return host_ranges.Ends(self.start_ns, self._duration_ns)

    @property
    def parent(self) -> Distances:
        """Index of the range around each range, or NONE."""
        return self._nest.parent

    def name_ids(self, ranges: Whole) -> Ints:
        """Return the string ids of the names of ranges."""
        return np.asarray(self._ids[self._name_code[ranges]])

    def names(self, ranges: Whole) -> tuple[list[str], NDArray[np.int32]]:
        """Return the distinct names, and the index of each range's name (-1 is the last range)."""
        return self._names, self._name_code[ranges].astype(np.int32)

    def operation_names(self, ranges: Whole) -> tuple[list[str], NDArray[np.int32]]:
        """Return `names`, with ranges of the autograd engine named like their node."""
        names, number = self.names(ranges)
        return [name.removeprefix(ENGINE_PREFIX) for name in names], number

    def stacks(self, ranges: Values) -> tuple[list[str | None], NDArray[np.int32]]:
        """Return the distinct stacks of source frames, and the index of each range's stack."""
        return self._frames.stacks(ranges)

    def modules(self, ranges: Values) -> tuple[list[str | None], NDArray[np.int32]]:
        """Return the distinct module paths, and the index of each range's path.

        A module is a range that encloses the range, or a frame of its call chain. None means
        outside any module. NOT_ATTRIBUTED means unknown: there is no call chain and no module or
        Python range on the thread, or the forward operation of a backward range is unknown.
        """
        paths = self._frames.module_paths
        outside, unknown = len(self) + len(paths), len(self) + len(paths) + 1

        def key(ranges: Whole) -> Ints:
            inside = ranges != NONE
            innermost = np.where(inside, self._nested.module[ranges], NONE) if len(self) else ranges
            of_chain = self._frames.modules(ranges)
            mask_of = of_chain != NO_CHAIN
            if len(self):
                mask_of |= inside & np.isin(self.thread[ranges], self._nested.threads_with_modules)
                mask_of &= ~(inside & self._in_backward(ranges))
            result = np.where(mask_of, outside, unknown)
            result = np.where(of_chain >= 0, len(self) + of_chain, result)
            return np.where(innermost != NONE, innermost, result)

        distinct, number = numbered(ranges, key)
        named: dict[int, str | None] = {outside: None, unknown: NOT_ATTRIBUTED}
        named |= {len(self) + index: path for index, path in enumerate(paths)}
        texts = [
            named[one] if one in named else self._module_path(one) for one in distinct.tolist()
        ]
        return texts, number

    def _module_path(self, index: int) -> str | None:
        names = []
        while index != NONE:
            at = np.array([index])
            text = self._names[int(self._name_code[at][0])]
            names.append(text.removeprefix(MODULE_PREFIX))
            above = self.parent[at]
            index = int(self._nested.module[above][0]) if above[0] != NONE else NONE
        return ".".join(names[::-1]) or None

    @cached_property
    def _frames(self) -> Frames:
        python = np.flatnonzero(self.is_python)
        texts = [self._names[code] for code in self._name_code[python].tolist()]
        return Frames(
            self._source,
            self._strings,
            chain=self._chain,
            nest=self._nest,
            python_frames=dict(zip(python.tolist(), texts, strict=True)),
        )

    def launches(self, connection: Whole) -> Launches:
        """Return the operation and pass of device tasks, from their connection ids."""
        distinct, inverse = np.unique(connection, return_inverse=True)
        launcher = self._launcher(distinct)
        found = launcher != NONE
        call = np.full(len(distinct), NONE, np.int64)
        passes = np.full(len(distinct), -1, np.int8)
        at = launcher[found]
        passes[found] = self._passes(at)
        call[found] = self._owner(at)
        return Launches(call[inverse], passes[inverse])

    def innermost(self, connection: Whole, among: Bools | None = None) -> Ints:
        """Return the innermost operation around the launch of each device task, or -1.

        `connection` are connection ids of the tasks, `among` masks the ranges to consider, by
        default operations.
        """
        return self._of_launches(
            connection, self._nested.operation if among is None else self._nearest(among)
        )

    def _of_launches(self, connection: Whole, values: Distances) -> Ints:
        """Return the value of the range that launched each device task, or -1."""
        distinct, inverse = np.unique(connection, return_inverse=True)
        return values_at(values, self._launcher(distinct))[inverse]

    def around(self, ranges: Ints, among: Bools) -> Ints:
        """Return the innermost of the masked ranges that enclose each range, or -1."""
        return values_at(self._nearest(among), self.parent[ranges])

    def calls_at(self, names: Sequence[str], at_ns: Ints) -> Ints:
        """Return the operation in which a range with a given name is open at each time, or -1."""
        result = np.full(len(at_ns), NONE, np.int64)
        wanted: dict[str, int] = {}
        number = np.array([wanted.setdefault(name, len(wanted)) for name in names], np.int64)
        by_name = np.argsort(number, kind="stable")
        number = number[by_name]
        named = self.matching(lambda text: text in wanted).astype(np.int32)
        codes = self._name_code[named]
        by_code = np.argsort(codes, kind="stable")
        named, codes = named[by_code], codes[by_code]
        for code, text in enumerate(self._names):
            if text not in wanted:
                continue
            points = by_name[slice(*np.searchsorted(number, [wanted[text], wanted[text] + 1]))]
            first, behind = np.searchsorted(codes, [code, code + 1])
            ranges = named[first:behind].astype(np.int64)
            start = self.start_ns[ranges]
            in_time = np.argsort(start, kind="stable")
            ranges, start = ranges[in_time], start[in_time]
            last = np.searchsorted(start, at_ns[points], side="right") - 1
            found = ranges[np.maximum(last, 0)]
            inside = (last >= 0) & (at_ns[points] <= self.end_ns[found])
            result[points[inside]] = self._owner(found[inside])
        return result

    def places_at(self, thread: Ints, at_ns: Ints) -> Ints:
        """Return the operation, else any range, that is open on each thread at each time, or -1."""
        result = self._innermost_at(thread, at_ns)
        inside = result != NONE
        result[inside] = self._call_of(result[inside])
        return result

    def direct(self, connection: Whole) -> Ints:
        """Return the innermost recorded call that launched each device task, or -1."""
        return self._of_launches(connection, self._nearest(self.recorded))

    def outermost(self, connection: Whole) -> Ints:
        """Return the outermost operation around the launch of each device task, or -1.

        Unlike in `launches`, backward tasks do not count for forward operations.
        """
        return values_at(self._nested.top, self.innermost(connection))

    @property
    def is_python_frame(self) -> Bools:
        """Mask of the calls of Python functions, without modules."""
        return self.is_python & ~self._mask(self._is_module)

    @property
    def is_user_frame(self) -> Bools:
        """Mask of the calls of Python functions in the user's files."""
        own = self._name_mask(user_frame)
        return self.is_python & self._mask(lambda rows: own[self._name_code[rows]])

    @property
    def is_annotation(self) -> Bools:
        """Mask of the ranges that are not operations: modules, marks, steps, Python frames."""
        engine = self._name_kinds["engine"]
        return self._mask(lambda rows: ~(self._is_operation(rows) | engine[self._name_code[rows]]))

    @cached_property
    def recorded(self) -> Bools:
        """Mask of the calls recorded by PyTorch, without Python frames, modules and steps.

        CANN calls inside torch_npu operations, such as `Conv2D` in `aten::_convolution`, are
        excluded too: they have no shapes and are part of the operation.
        """
        steps = self._name_mask(_STEP.match)
        checked = "TASK" in self._source.tables and "UPROF_GPU_TASKS" not in self._source.tables
        result = np.zeros(len(self), bool)
        for window in self._nest.windows():
            rows = window.rows
            code = self._name_code[rows]
            found = (self._type[rows] == API_OPERATION) & ~self._is_module(rows) & ~steps[code]
            if checked:
                around = values_at(self._nested.operation, self.parent[rows])
                found &= self._is_operation(rows) | np.equal(around, NONE)
            result[rows] = found
        return result

    def is_operation(self, ranges: Whole) -> Bools:
        """Return a mask of the ranges that are operations; False for -1."""
        return np.not_equal(ranges, NONE) & self._is_operation(ranges)

    @property
    def is_python(self) -> Bools:
        """Mask of the Python frames."""
        return self._mask(lambda rows: np.equal(self._type[rows], API_PYTHON))

    @property
    def threads(self) -> Ints:
        """The threads that ran operations."""
        return self._nested.threads

    def matching(self, wanted: Callable[[str], bool]) -> Ints:
        """Return the ranges whose name matches a predicate."""
        named = self._name_mask(wanted)
        if not named.any():
            return np.zeros(0, np.int64)
        return self._ranges_where(lambda rows: named[self._name_code[rows]])

    def called_through(self, frame: str) -> Ints:
        """Return the ranges whose call chain has a frame that matches an SQL LIKE pattern."""
        chains = chains_through(self._source, frame)
        if not len(chains):
            return np.zeros(0, np.int64)
        return self._ranges_where(lambda rows: np.isin(self._chain[rows], chains))

    def _owner(self, at: Ints) -> Ints:
        """Return the operation that the tasks of each range count for.

        For a backward range, this is the forward operation or, if unknown, the autograd node.
        """
        node = self._nested.node[at]
        node = np.where(self._in_backward(at), node, NONE)
        forward = values_at(self._nested.top, self._forward_operations.find(node))
        own = self._call_of(np.where(node != NONE, node, at))
        return np.where(forward != NONE, forward, own)

    def host_time(self) -> HostTime:
        """Return the host time of outermost operations, and of other recorded ranges outside them.

        Each time excludes nested ranges of the result, so the times add up to the time of the
        outermost ranges that PyTorch recorded.
        """
        chosen = self._mask(
            lambda rows: (
                self._is_outermost(rows)
                | (self.recorded[rows] & np.equal(self._nested.operation[rows], NONE))
            )
        )
        ranges = np.flatnonzero(chosen)
        start, end = self.start_ns[ranges], self.end_ns[ranges]
        around = values_at(self._nearest(chosen), self.parent[ranges])
        inner = np.flatnonzero(around != NONE)
        outer = np.searchsorted(ranges, around[inner])
        # Clocks round: a range may end a little after the one around it.
        inside = np.bincount(outer, np.minimum(end[inner], end[outer]) - start[inner], len(ranges))
        # A range of the autograd engine belongs to the node that it runs.
        node = np.full(len(ranges), NONE, np.int64)
        node[outer[::-1]] = ranges[inner[::-1]]
        node[~self._name_kinds["engine"][self._name_code[ranges]]] = NONE
        call = self._owner(ranges)
        node = node[np.searchsorted(ranges, call)]
        call = np.where(node != NONE, node, call)
        own_ns = np.maximum(end - start - inside.astype(np.int64), 0)
        return HostTime(call, self._passes(ranges), own_ns)

    @cached_property
    def calls(self) -> Ints:
        """Outermost operations outside backward passes, in call order."""
        return self._ranges_where(lambda rows: self._is_outermost(rows) & ~self._in_backward(rows))

    def _is_outermost(self, rows: slice) -> Bools:
        result: Bools = np.equal(self._nested.top[rows], np.arange(*rows.indices(len(self))))
        return result

    def steps(self) -> list[tuple[str, int, int]]:
        """Return the profiler's steps as (number, start_ns, end_ns)."""
        found = self.matching(lambda text: _STEP.match(text) is not None)
        texts, code = self.names(found)
        columns = (self.start_ns[found], code, self.end_ns[found])
        # Steps with equal starts are sorted by name.
        steps = sorted(
            zip(*(one.tolist() for one in columns), strict=True), key=lambda step: step[:2]
        )
        return [(texts[name].partition("#")[2], start, end) for start, name, end in steps]

    def _name_mask(self, matches: Callable[[str], object]) -> Bools:
        return np.array([bool(matches(text)) for text in self._names], bool)

    def _mask(self, mask_of: Callable[[slice], Bools]) -> Bools:
        """Concatenate the masks that a function returns for each window of ranges."""
        result = np.zeros(len(self), bool)
        for low in range(0, len(self), WINDOW):
            rows = slice(low, min(low + WINDOW, len(self)))
            result[rows] = mask_of(rows)
        return result

    def _ranges_where(self, chosen: Callable[[slice], Bools]) -> Ints:
        """Return the ranges selected by a function that returns a mask for each window."""
        return np.flatnonzero(self._mask(chosen))

    def _nearest(self, among: Bools) -> Distances:
        """Return the range itself if it is in the mask, else the innermost such range around it."""
        return self._nest.nearest(lambda window: among[window.rows])

    @cached_property
    def _name_kinds(self) -> dict[str, Bools]:
        """Masks of the distinct names by kind."""
        prefixes: dict[str, str | tuple[str, ...]] = {
            "module": MODULE_PREFIX,
            "engine": (ENGINE_PREFIX, _ACCUMULATES),
            "optimizer": "Optimizer.",
        }
        kinds = {
            kind: [text.startswith(prefix) for text in self._names]
            for kind, prefix in prefixes.items()
        }
        kinds["operation"] = [_OPERATION.match(text) is not None for text in self._names]
        return {kind: np.array(mask, bool) for kind, mask in kinds.items()}

    def _is_module(self, rows: slice) -> Bools:
        of_module = np.equal(self._type[rows], host_ranges.MODULE_RANGE)
        result: Bools = of_module | self._name_kinds["module"][self._name_code[rows]]
        return result

    def _is_operation(self, rows: slice | Whole) -> Bools:
        result: Bools = self._name_kinds["operation"][self._name_code[rows]]
        kind = self._type[rows]
        for other in (API_PYTHON, host_ranges.MODULE_RANGE, host_ranges.ANNOTATION):
            result &= kind != other
        return result

    @cached_property
    def _nested(self) -> _Nested:
        """Innermost operation, node and module of each range."""
        operation, top, node, module = Distances(), Distances(), Distances(), Distances()
        marks = Packing(np.int8)
        nearest = [NearestMarked() for _ in range(5)]
        below = Below()
        threads = dict.fromkeys(("all", "modules", "engine", "forward"), np.zeros(0, np.int64))
        for window in self._nest.windows():
            rows = window.rows
            code, kind, thread = self._name_code[rows], self._type[rows], self.thread[rows]
            is_operation, is_module = self._is_operation(rows), self._is_module(rows)
            is_engine = self._name_kinds["engine"][code]
            of_node = self._sequence[rows] >= 0
            is_node = of_node & (self._forward_thread[rows] > 0)
            operation.add(nearest[0].next_window(window, is_operation))
            top.add(below.next_window(window, ~is_operation))
            nodes = nearest[1].next_window(window, is_node)
            node.add(nodes)
            module.add(nearest[2].next_window(window, is_module))
            in_engine = nearest[3].next_window(window, is_engine) != NONE
            in_optimizer = (
                nearest[4].next_window(window, self._name_kinds["optimizer"][code]) != NONE
            )
            marks.add((in_engine | (nodes != NONE)) * _IN_BACKWARD + in_optimizer * _IN_OPTIMIZER)
            makes_nodes = of_node & ~is_node & ~in_engine
            for name, chosen in (
                ("all", is_operation),
                ("modules", is_module | (kind == API_PYTHON)),
                ("engine", is_engine),
                ("forward", makes_nodes),
            ):
                threads[name] = np.union1d(threads[name], thread[chosen])
        return _Nested(
            operation.done(),
            top.done(),
            node.done(),
            module.done(),
            marks.done(),
            threads["all"],
            threads["modules"],
            # On autograd engine threads, everything is backward, including gradient hooks.
            # Operations on other threads create nodes.
            np.setdiff1d(threads["engine"], threads["forward"]),
        )

    def _in_backward(self, ranges: slice | Whole) -> Bools:
        result: Bools = (self._nested.marks[ranges] & _IN_BACKWARD) != 0
        if len(self._nested.engine_threads):
            result |= np.isin(self.thread[ranges], self._nested.engine_threads)
        return result

    def _passes(self, ranges: Ints) -> NDArray[np.int8]:
        in_optimizer = self._nested.marks[ranges] & _IN_OPTIMIZER
        others = np.where(in_optimizer, OTHER_PASS, FORWARD)
        return np.where(self._in_backward(ranges), BACKWARD, others).astype(np.int8)

    def _call_of(self, at: Ints) -> Ints:
        """Return the outermost operation around each range, else the range itself."""
        operation = self._nested.operation[at]
        return np.where(operation != NONE, self._nested.top[operation], at)

    @cached_property
    def _forward_operations(self) -> ForwardOperations:
        columns = AutogradColumns(
            self.thread, self.start_ns, self._sequence, self._forward_thread, self._name_code
        )

        def may_create(rows: slice) -> Bools:
            recorded = np.equal(self._type[rows], API_OPERATION) & ~self._is_module(rows)
            result: Bools = recorded & (self._sequence[rows] >= 0) & ~self._in_backward(rows)
            return result

        ranges = self._ranges_where(may_create)
        nodes = self._ranges_where(
            lambda rows: (
                np.greater_equal(self._sequence[rows], 0) & (self._forward_thread[rows] > 0)
            )
        )
        threads = np.zeros(0, np.int64)
        for low in range(0, len(ranges), WINDOW):
            threads = np.union1d(threads, self.thread[ranges[low : low + WINDOW]])
        result = ForwardOperations(columns, self._names, threads, nodes)
        for low in range(0, len(ranges), WINDOW):
            result.add(ranges[low : low + WINDOW])
        return result

    @cached_property
    def _connected(self) -> tuple[PackedLookup, Packed]:
        """The connection ids in CONNECTION_IDS, and the range of each."""
        holders = RangesById(self._connection, self._type)
        del self._connection  # not needed any more
        keys, ranges = Packing(hole=MISSING), Packing(np.int32)
        # A range has one id in CONNECTION_IDS, with one or several connection ids.
        pairs = {"id": "id", "connection": "connectionId"}
        for batch in self._source.batches("CONNECTION_IDS", pairs):
            holder = holders.find(batch["id"])
            known = holder != NONE
            keys.add(batch["connection"][known])
            ranges.add(holder[known])
        return PackedLookup(keys.done()), ranges.done()

    def _launcher(self, connection: Whole) -> Ints:
        """Return the range that made the launch with each connection id, or -1."""
        result = np.full(len(connection), NONE, np.int64)
        if not len(self):
            return result
        known, ranges = self._connected
        result = values_at(ranges, known.rows(connection))
        connects = ~np.isin(connection, UNCONNECTED)
        result[~connects] = NONE
        # Otherwise by time: the range around the runtime call, on its thread.
        open_ones = np.flatnonzero((result == NONE) & connects)
        if len(open_ones):
            calls = self._host_calls = self._host_calls or HostCalls(self._source)
            row = calls.row_of_connection(connection[open_ones])
            open_ones, row = open_ones[row >= 0], row[row >= 0]
            around = self._innermost_at(calls.thread[row], calls.start_ns[row])
            result[open_ones] = values_at(self._nested.operation, around)
        return result

    def _innermost_at(self, thread: Ints, at_ns: Ints) -> Ints:
        """Return the innermost range that is open on each thread at each time, or -1."""
        result = np.full(len(at_ns), NONE, np.int64)
        if not len(self):
            return result
        for one, low, high in self._threads:
            points = np.flatnonzero(thread == one)
            points = points[np.argsort(at_ns[points], kind="stable")]
            if len(points):
                last = self.start_ns.last_not_after(at_ns[points], low, high)
                result[points] = np.where(last < low, NONE, last)
        # If the last range to start has already ended, the result is one of its enclosing ranges.
        looking = np.flatnonzero(result != NONE)
        while len(looking):
            looking = looking[self.end_ns[result[looking]] < at_ns[looking]]
            result[looking] = self.parent[result[looking]]
            looking = looking[result[looking] != NONE]
        return result

    @cached_property
    def _threads(self) -> list[tuple[int, int, int]]:
        """(thread, its first range, the range after its last) for all threads."""
        result: list[tuple[int, int]] = []
        for low in range(0, len(self), WINDOW):
            threads = self.thread[low : low + WINDOW]
            for at in Runs(threads).starts.tolist():
                if not result or result[-1][0] != int(threads[at]):
                    result.append((int(threads[at]), low + at))
        behind = [*(first for _, first in result[1:]), len(self)]
        return [(*one, end) for one, end in zip(result, behind, strict=True)]


_IN_BACKWARD, _IN_OPTIMIZER = 1, 2
# A node of the autograd engine, which torch 1 records without a range of the engine around it.
_ACCUMULATES = "torch::autograd::AccumulateGrad"


class _Nested(Struct, frozen=True, eq=False):
    """Columns derived from the nesting of ranges, and threads by kind."""

    operation: Distances  # The innermost operation.
    top: Distances  # The outermost operation around each operation, up to the next annotation.
    node: Distances  # The autograd node.
    module: Distances  # The innermost module.
    marks: Packed  # Bits _IN_BACKWARD and _IN_OPTIMIZER.
    threads: Ints  # Threads with operations.
    threads_with_modules: Ints  # Threads with recorded modules or Python frames.
    engine_threads: Ints  # Threads of the autograd engine.


# Module path of calls whose module was not recorded.
NOT_ATTRIBUTED = "(not attributed to a module)"
