"""The PyTorch tables of an msprof database: which framework call launched which device work.

torch_npu appends PYTORCH_API (host ranges), CONNECTION_IDS and PYTORCH_CALLCHAINS to msprof's
tables, and `uprof import` fills the same ones from a Kineto trace. From them come the framework's
operation of a kernel, the pass it belongs to, its module and its source line.

The pass: work below an `autograd::engine::evaluate_function` range, or below a range with a
forward thread, is backward; its autograd node carries the sequence number of the forward operation
that made it. An operation peeks at the number its node is about to get, so of all the ranges
with one number the last to start is the one that made the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from unified_prof.analysis.read.frames import MODULE_PREFIX, NO_CHAIN, Frames
from unified_prof.analysis.read.source import Findings, Source
from unified_prof.analysis.read.tasks import Strings, possible
from unified_prof.arrays import nesting
from unified_prof.arrays.lookup import Lookup
from unified_prof.store.integers import MISSING
from unified_prof.vocabulary import (
    API_OPERATION,
    API_PYTHON,
    API_QUEUE,
    HOST_ONLY_CONNECTION,
    NO_CONNECTION,
    OLD_NO_CONNECTION,
)

Ints = NDArray[np.int64]

NONE = nesting.NONE
FORWARD, BACKWARD, OTHER_PASS = 0, 1, 2

UNCONNECTED = (NO_CONNECTION, OLD_NO_CONNECTION, HOST_ONLY_CONNECTION)
"""connectionIds that connect nothing, in files of any age."""

_BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
_OPTIMIZER_PREFIX = "Optimizer."
_STEP = re.compile(r"ProfilerStep#(\d+)$")
# `aten::conv2d`, `npu::_npu_dropout`, `torch.distributed.ddp.reducer::copy_bucket_to_grad`,
# `ConvolutionBackward0`, `torch::autograd::CppNode<...>`; not a user's own `forward pass`.
_OPERATION = re.compile(
    r"(?!autograd::engine)(?:[\w.]+::[\w:.]+$|.*Backward\d*$|torch::autograd::CppNode<)"
)
_CPP_NODE = "CppNode<"
_HALF = 1 << 32
_INSTANCE = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """For pieces of device work: the call they belong to and its pass; -1 is none."""

    call: Ints
    """Index of the host range that stands for the operation."""
    passes: NDArray[np.int8]
    """FORWARD, BACKWARD or OTHER_PASS; -1 where the call is not known."""


class Framework:
    """The host ranges of a report, nested: parents come before their children."""

    def __init__(self, source: Source, strings: Strings, findings: Findings) -> None:
        self._source = source
        self._strings = strings
        ranges = _host_ranges(source, strings, findings)
        order = nesting.call_order(ranges["thread"], ranges["start"], ranges["end"])
        for name in list(ranges):
            ranges[name] = ranges[name][order]
        self.thread, self.start_ns, self.end_ns = ranges["thread"], ranges["start"], ranges["end"]
        self.name_id = ranges["name"]
        self._connection, self._chain = ranges["connection"], ranges["chain"]
        self._sequence, self._forward_thread = ranges["sequence"], ranges["forward_thread"]
        self._type = ranges["type"]
        self._row = ranges["row"]
        self.parent: Ints = nesting.parents(self.thread, self.start_ns, self.end_ns)

        ids, codes = np.unique(self.name_id, return_inverse=True)
        texts: list[str] = [strings.get(int(number)) or "" for number in ids]
        self._names, self._name_code = texts, codes
        python = self._type == API_PYTHON
        self._is_module = self._named(lambda text: text.startswith(MODULE_PREFIX)) | (
            self._type == _MODULE_RANGE
        )
        annotation = (self._type == _MODULE_RANGE) | (self._type == _ANNOTATION)
        self._is_operation = self._named(_OPERATION.match) & ~python & ~annotation
        self._is_engine = self._named(lambda text: text.startswith(_BACKWARD_PREFIX))
        self._is_optimizer = self._named(lambda text: text.startswith(_OPTIMIZER_PREFIX))

    def __len__(self) -> int:
        return len(self.name_id)

    def names(self, ranges: Ints) -> tuple[list[str], Ints]:
        """Return the distinct names, and the number of each range's; -1 has the last one."""
        return self._names, self._name_code[ranges]

    def stacks(self, ranges: Ints) -> tuple[list[str | None], NDArray[np.intp]]:
        """Return the distinct stacks of source frames, and the number of each range's."""
        return self._frames.stacks(ranges)

    def modules(self, ranges: Ints) -> tuple[list[str | None], NDArray[np.intp]]:
        """Return the distinct module paths, and the number of each range's.

        A module is a range around, or a frame of the range's call chain. None is outside any
        module; NOT_ATTRIBUTED is what cannot be told: without a call chain or other frames on its
        thread, and backward work of which the forward operation is not known.
        """
        inside = ranges != NONE
        innermost = np.where(inside, self._module[ranges], NONE) if len(self) else ranges
        paths, of_chain = self._frames.modules(ranges)
        told = (of_chain != NO_CHAIN) | (inside & self._on_told_thread[ranges])
        told &= ~(inside & self._in_backward[ranges])
        outside, unknown = len(self) + len(paths), len(self) + len(paths) + 1
        key = np.where(told, outside, unknown)
        key = np.where(of_chain >= 0, len(self) + of_chain, key)
        distinct, number = np.unique(
            np.where(innermost != NONE, innermost, key), return_inverse=True
        )
        named: dict[int, str | None] = {outside: None, unknown: NOT_ATTRIBUTED}
        named |= {len(self) + index: path for index, path in enumerate(paths)}
        texts = [
            named[one] if one in named else self._module_path(one) for one in distinct.tolist()
        ]
        return texts, number

    @cached_property
    def _on_told_thread(self) -> NDArray[np.bool_]:
        """Which ranges are on a thread of which modules or Python frames were recorded."""
        marked = self._is_module | (self._type == API_PYTHON)
        return np.isin(self.thread, np.unique(self.thread[marked]))

    @cached_property
    def _module(self) -> Ints:
        """The innermost module around each range."""
        return nesting.nearest_marked(self.parent, self._is_module)

    def _module_path(self, index: int) -> str | None:
        names = []
        while index != NONE:
            text = self._names[int(self._name_code[index])]
            names.append(text.removeprefix(MODULE_PREFIX))
            above = int(self.parent[index])
            index = int(self._module[above]) if above != NONE else NONE
        return ".".join(names[::-1]) or None

    @cached_property
    def _frames(self) -> Frames:
        python = np.flatnonzero(self._type == API_PYTHON)
        texts = [self._names[code] for code in self._name_code[python].tolist()]
        return Frames(
            self._source,
            self._strings,
            chain=self._chain,
            parent=self.parent,
            python_frames=dict(zip(python.tolist(), texts, strict=True)),
        )

    def launches(self, connection: Ints) -> Launches:
        """Say for pieces of device work, by their connection id, what they belong to."""
        distinct, inverse = np.unique(connection, return_inverse=True)
        launcher = self._launcher(distinct)
        found = launcher != NONE
        call = np.full(len(distinct), NONE, np.int64)
        passes = np.full(len(distinct), -1, np.int8)
        at = launcher[found]
        passes[found] = np.where(
            self._in_backward[at],
            BACKWARD,
            np.where(self._in_optimizer[at], OTHER_PASS, FORWARD),
        )
        call[found] = self._owner(at)
        return Launches(call[inverse], passes[inverse])

    def innermost(self, connection: Ints, among: NDArray[np.bool_] | None = None) -> Ints:
        """Return the innermost operation that launched pieces of device work, -1 if none did.

        Args:
            connection: of the pieces.
            among: which ranges count instead of operations.
        """
        nearest = self._nearest_operation
        if among is not None:
            nearest = nesting.nearest_marked(self.parent, among)
        distinct, inverse = np.unique(connection, return_inverse=True)
        launcher = self._launcher(distinct)
        found = launcher != NONE
        result = np.full(len(distinct), NONE, np.int64)
        result[found] = nearest[launcher[found]]
        return result[inverse]

    def around(self, ranges: Ints, among: NDArray[np.bool_]) -> Ints:
        """Return the nearest of some ranges that each range lies in, -1 where in none."""
        above = self.parent[ranges]
        nearest = nesting.nearest_marked(self.parent, among)
        result: Ints = np.where(above != NONE, nearest[above], NONE)
        return result

    def calls_at(self, names: Sequence[str], at_ns: Ints) -> Ints:
        """Return the operation within which a range of each name was open at each time, or -1."""
        result = np.full(len(at_ns), NONE, np.int64)
        wanted = np.array(names, object)
        for code, text in enumerate(self._names):
            points = np.flatnonzero(wanted == text)
            if not len(points):
                continue
            ranges = np.flatnonzero(self._name_code == code)
            ranges = ranges[np.argsort(self.start_ns[ranges], kind="stable")]
            last = np.searchsorted(self.start_ns[ranges], at_ns[points], side="right") - 1
            found = ranges[np.maximum(last, 0)]
            inside = (last >= 0) & (at_ns[points] <= self.end_ns[found])
            result[points[inside]] = self._owner(found[inside])
        return result

    def places_at(self, thread: Ints, at_ns: Ints) -> Ints:
        """Return what was going on at points in time: an operation, else any range, or -1."""
        found = nesting.innermost_at(
            self.thread, self.start_ns, self.end_ns, self.parent, thread, at_ns
        )
        inside = found != NONE
        result = np.full(len(found), NONE, np.int64)
        result[inside] = self._call_of(found[inside])
        return result

    def direct(self, connection: Ints) -> Ints:
        """Return the innermost recorded call that launched each piece of device work, or -1."""
        distinct, inverse = np.unique(connection, return_inverse=True)
        launcher = np.append(self._launcher(distinct), NONE)
        nearest = np.append(nesting.nearest_marked(self.parent, self.recorded), NONE)
        result: Ints = nearest[launcher[inverse]]
        return result

    def outermost(self, connection: Ints) -> Ints:
        """Return the outermost operation around what launched each piece of device work, or -1.

        Work of a backward pass has an operation of its own, unlike in `launches`.
        """
        distinct, inverse = np.unique(connection, return_inverse=True)
        launcher = np.append(self._launcher(distinct), NONE)
        operation = np.append(self._nearest_operation, NONE)[launcher]
        result: Ints = np.append(self._top, NONE)[operation][inverse]
        return result

    @property
    def is_python_frame(self) -> NDArray[np.bool_]:
        """Which ranges are calls of Python functions, modules aside."""
        result: NDArray[np.bool_] = (self._type == API_PYTHON) & ~self._is_module
        return result

    @property
    def is_annotation(self) -> NDArray[np.bool_]:
        """Which ranges somebody drew around others: modules, marks, steps, frames."""
        result: NDArray[np.bool_] = ~self._is_operation & ~self._is_engine
        return result

    @cached_property
    def recorded(self) -> NDArray[np.bool_]:
        """Which ranges are calls that torch recorded: no frames of Python, modules or steps.

        Nor are calls of CANN that torch_npu's operations make, such as `Conv2D` within
        `aten::_convolution`: they have neither shapes nor a meaning of their own.
        """
        steps = self._named(_STEP.match)
        result: NDArray[np.bool_] = (self._type == API_OPERATION) & ~self._is_module & ~steps
        if "TASK" in self._source.tables and "UPROF_GPU_TASKS" not in self._source.tables:
            around = np.append(self._nearest_operation, NONE)[self.parent]
            result &= self._is_operation | np.equal(around, NONE)
        return result

    def inputs(self, ranges: Ints) -> tuple[list[str], Ints]:
        """Return the distinct inputs as `float[64,128], long int[7]`, and each range's number.

        Empty are those of which no shape was recorded. Some releases of torch_npu wrote shapes
        where types belong, and the other way round.
        """
        columns = {"shapes": "coalesce(inputShapes, -1)", "types": "coalesce(inputDtypes, -1)"}
        found = self._source.integers("PYTORCH_API", columns)
        rows = np.where(ranges == NONE, -1, self._row[ranges])
        shape, kind = (np.append(found[name], -1)[rows] for name in columns)
        # Ids of texts fit into half a number each.
        pairs, number = np.unique((shape + 1) * _HALF + kind + 1, return_inverse=True)
        texts: dict[str, int] = {}
        numbers = [
            texts.setdefault(_inputs(self._strings.get(one), self._strings.get(other)), len(texts))
            for one, other in ((pair // _HALF - 1, pair % _HALF - 1) for pair in pairs.tolist())
        ]
        return list(texts), np.array(numbers, np.int64)[number]

    def is_operation(self, ranges: Ints) -> NDArray[np.bool_]:
        """Tell which ranges are operations; -1 is none."""
        result: NDArray[np.bool_] = (ranges != NONE) & self._is_operation[ranges]
        return result

    @property
    def is_python(self) -> NDArray[np.bool_]:
        """Which ranges are frames of Python."""
        result: NDArray[np.bool_] = self._type == API_PYTHON
        return result

    @property
    def threads(self) -> Ints:
        """The threads that ran operations."""
        return np.unique(self.thread[self._is_operation])

    def matching(self, wanted: Callable[[str], bool]) -> Ints:
        """Return the ranges whose name is wanted."""
        return np.flatnonzero(self._named(wanted))

    def _owner(self, at: Ints) -> Ints:
        """Return the operation that each range's work counts for: of a backward range, forward."""
        forward = self._forward_of(self._node[at])
        backward = self._in_backward[at] & (forward != NONE)
        return np.where(backward, forward, self._call_of(at))

    @cached_property
    def calls(self) -> Ints:
        """Ranges that stand for a whole operation: the outermost ones, in call order."""
        own = self._top == np.arange(len(self))
        return np.flatnonzero(own & ~self._in_backward)

    def steps(self) -> list[tuple[str, int, int]]:
        """Return the profiler's steps as (number, start_ns, end_ns)."""
        steps = [
            (found[1], int(self.start_ns[index]), int(self.end_ns[index]))
            for code, text in enumerate(self._names)
            if (found := _STEP.match(text))
            for index in np.flatnonzero(self._name_code == code).tolist()
        ]
        return sorted(steps, key=lambda step: step[1])

    def _named(self, matches: Callable[[str], object]) -> NDArray[np.bool_]:
        flags = np.array([bool(matches(text)) for text in self._names], bool)
        return flags[self._name_code] if len(flags) else np.zeros(0, bool)

    @cached_property
    def _top(self) -> Ints:
        """The outermost operation around each range, not looking beyond other annotations."""
        return nesting.climb(self.parent, ~self._is_operation)

    def _call_of(self, at: Ints) -> Ints:
        """Return the operation of launching ranges; one within no operation stands for itself."""
        operation = self._nearest_operation[at]
        return np.where(operation != NONE, self._top[operation], at)

    @cached_property
    def _nearest_operation(self) -> Ints:
        return nesting.nearest_marked(self.parent, self._is_operation)

    @cached_property
    def _node(self) -> Ints:
        """The autograd node around each range, or -1."""
        return nesting.nearest_marked(
            self.parent, (self._sequence >= 0) & (self._forward_thread > 0)
        )

    @cached_property
    def _in_backward(self) -> NDArray[np.bool_]:
        engine: NDArray[np.bool_] = nesting.nearest_marked(self.parent, self._is_engine) != NONE
        # On a thread of the autograd engine's own, everything is: gradient hooks run there too.
        # Elsewhere operations are recorded that make nodes.
        makes_nodes = (self._sequence >= 0) & (self._forward_thread <= 0) & ~engine
        engine_threads = np.setdiff1d(self.thread[self._is_engine], self.thread[makes_nodes])
        return engine | np.not_equal(self._node, NONE) | np.isin(self.thread, engine_threads)

    @cached_property
    def _in_optimizer(self) -> NDArray[np.bool_]:
        optimizer = nesting.nearest_marked(self.parent, self._is_optimizer)
        return np.not_equal(optimizer, NONE)

    def _forward_of(self, node: Ints) -> Ints:
        """Return the forward operation that made each autograd node, -1 where it is not known."""
        makers = np.flatnonzero((self._sequence >= 0) & ~self._in_backward & self._is_operation)
        if not len(makers):
            return np.full(len(node), NONE, np.int64)
        makers = makers[np.lexsort((self.start_ns[makers], self._sequence[makers]))]
        wanted = np.where(node != NONE, self._sequence[node], NONE)
        last = np.searchsorted(self._sequence[makers], wanted, side="right") - 1
        maker = makers[np.maximum(last, 0)]
        known = (last >= 0) & (wanted >= 0) & (self._sequence[maker] == wanted)
        # A function written in C++ may run without a number of its own; whatever else peeked at
        # the node's number before it, an ATen operation does not make such nodes.
        in_cpp = self._named(lambda text: _CPP_NODE in text)[node]
        known &= ~(in_cpp & self._named(lambda text: text.startswith("aten::"))[maker])
        return np.where(known, self._top[maker], NONE)

    def _launcher(self, connection: Ints) -> Ints:
        """Return the range that launched each (distinct) connection, -1 where none is known."""
        result = np.full(len(connection), NONE, np.int64)
        if not len(self):
            return result
        # One host range has one id in CONNECTION_IDS, which may stand for several connections.
        pairs = self._source.integers("CONNECTION_IDS", {"id": "id", "connection": "connectionId"})
        with_id = np.flatnonzero((self._connection != MISSING) & (self._type != API_PYTHON))
        # The last range wins where several have one id: children come after their parents.
        holder = Lookup(self._connection[with_id][::-1]).rows(pairs["id"])
        known = holder >= 0
        ranges = with_id[::-1][holder[known]]
        direct = Lookup(pairs["connection"][known]).rows(connection)
        result = np.where(direct >= 0, ranges[direct] if len(ranges) else NONE, NONE)
        result[np.isin(connection, UNCONNECTED)] = NONE
        # Otherwise by time: the range around the runtime's launching call, on its thread.
        open_ones = np.flatnonzero((result == NONE) & ~np.isin(connection, UNCONNECTED))
        if len(open_ones):
            api = self._source.integers(
                "CANN_API",
                {"connection": "connectionId", "thread": "globalTid", "start": "startNs"},
            )
            row = Lookup(api["connection"]).rows(connection[open_ones])
            open_ones, row = open_ones[row >= 0], row[row >= 0]
            result[open_ones] = self._around(api["thread"][row], api["start"][row])
        return result

    def _around(self, thread: Ints, at_ns: Ints) -> Ints:
        """Return the innermost range, Python frames and modules aside, around points in time."""
        found = nesting.innermost_at(
            self.thread, self.start_ns, self.end_ns, self.parent, thread, at_ns
        )
        usable = nesting.nearest_marked(self.parent, self._is_operation)
        return np.where(found != NONE, usable[found], NONE)


NOT_ATTRIBUTED = "(not attributed to a module)"
"""Instead of a module path: what recorded the work does not say whether it was in a module."""

_MODULE_RANGE, _ANNOTATION = -50, -51
"""Types of our own: ranges of the mstx domain `Module`, and other mstx ranges."""


def _host_ranges(source: Source, strings: Strings, findings: Findings) -> dict[str, Ints]:
    """Fetch PYTORCH_API, without queue entries, and mstx ranges: annotations and modules."""
    columns = {
        # The times are text; of what is no number a cast would make the moment 0.
        "start": "iif(startNs GLOB '[0-9]*', CAST(startNs AS INTEGER), NULL)",
        "end": "CAST(endNs AS INTEGER)",
        "thread": "coalesce(globalTid, -1)",
        "connection": f"coalesce(connectionId, {MISSING + 1} - 1)",
        "name": "coalesce(name, -1)",
        "sequence": "coalesce(sequenceNumber, -1)",
        "forward_thread": "coalesce(fwdThreadId, 0)",
        "chain": "coalesce(callchainId, -1)",
        "type": f"coalesce(type, {API_OPERATION})",
    }
    ranges = source.integers("PYTORCH_API", columns)
    ranges["row"] = np.arange(len(ranges["start"]))
    marks = source.integers(
        "MSTX_EVENTS",
        {
            "start": "startNs",
            "end": "endNs",
            "thread": "globalTid",
            "name": "message",
            "domain": "coalesce(domainId, -1)",
        },
    )
    domains = {int(one) for one in np.unique(marks["domain"]) if strings.get(one) == "Module"}
    in_module = np.isin(marks.pop("domain"), list(domains))
    marks["type"] = np.where(in_module, _MODULE_RANGE, _ANNOTATION)
    absent = {"connection": MISSING, "sequence": -1, "forward_thread": 0, "chain": -1, "row": -1}
    is_range = marks["end"] > marks["start"]
    for name, values in ranges.items():
        added = marks[name] if name in marks else np.full(len(is_range), absent[name])
        ranges[name] = np.concatenate((values, added[is_range]))
    with np.errstate(over="ignore"):
        usable = possible(ranges["start"], ranges["end"] - ranges["start"])
    bad = int(len(usable) - usable.sum())
    findings.add("impossible_host_time", f"{bad} rows of PYTORCH_API are left out", bad)
    usable &= ranges["type"] != API_QUEUE
    return {name: values[usable] for name, values in ranges.items()}


def module_class(path: str) -> str:
    """Return the class of a module whose path ends in `Class_0`."""
    return _INSTANCE.sub("", path.rpartition(".")[2])


_TYPES = re.compile(r"[A-Za-z]")
_NO_TENSORS = frozenset({"", "None", "Scalar", "ScalarList"})


def _inputs(shapes: str | None, types: str | None) -> str:
    """Return recorded shapes and types of inputs as one text, those that are tensors."""
    shapes, types = shapes or "", types or ""
    if _TYPES.search(shapes) and not _TYPES.search(types):
        shapes, types = types, shapes
    shape = [one.strip() for one in shapes.strip('"').split(";")]
    kind = [one.strip() for one in types.strip('"').split(";")]
    kind += [""] * (len(shape) - len(kind))
    return ", ".join(
        f"{what.removeprefix('c10::')}[{size}]"
        for size, what in zip(shape, kind, strict=False)
        if size or what not in _NO_TENSORS
    )
