"""Source frames, modules, inputs and creating forward operations of host ranges.

Frames and modules come from call chains or enclosing Python ranges. Only frames in the user's files
count. Files of installed packages and of the standard library are recognized by their directories,
as a recording has only the paths of files. Modules are frames such as `nn.Module: Linear_0`.

PyTorch numbers the autograd nodes of each thread (sequence numbers). A backward range has the
number of its node and the id of the forward thread; if `fwdbwd` flows connect the two, `uprof
convert` replaces that id by the system's thread id. An operation records the number that the next
node will get: if several ranges of a thread have the same number, the last one to start created the
node.

The module also looks up host ranges by id, and values at optional indexes.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import MISSING, Bools, Ints, Lookup, Runs, find
from unified_prof.arrays.intervals import NONE, WINDOW, Distances, Nest, Window
from unified_prof.arrays.packed import Packed, Packing, Values
from unified_prof.base.columns import API_PYTHON, NOT_AVAILABLE
from unified_prof.recording.source import Source, Strings

MODULE_PREFIX = "nn.Module: "
# Names of built-in methods contain the address of their object, which differs between processes.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_FRAME = re.compile(r"(?P<file>[^\n]+?\.(?:py|ipynb)[^\n()]*)\((?P<line>\d+)\)(?:: |$)")
# Directories of installed packages and the standard library. Profilers shorten such paths, so
# `torch` may also be the first directory.
_FOREIGN = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]*)/|^(?:torch|torch_npu)/|^<"
)

# Indexes of module paths that mean: no modules in the chain, and no chain.
NO_MODULE, NO_CHAIN = -1, -2


class Frames:
    """Stacks of `file:line`, outermost first, of the ranges of `framework.Framework`.

    `chain` is the id of each range's call chain, or -1; `python_frames` has the text of each range
    that is a Python frame.
    """

    def __init__(
        self,
        source: Source,
        strings: Strings,
        *,
        chain: Packed,
        nest: Nest,
        python_frames: dict[int, str],
    ) -> None:
        self._chain, self._parent = chain, nest.parent
        self._chains, self._modules = _callchains(source, strings)
        texts = {text: user_frame(text) for text in set(python_frames.values())}
        own = {index: texts[text] for index, text in python_frames.items()}
        self._own = {index: frame for index, frame in own.items() if frame is not None}
        used = {frame for frames in self._chains.values() for frame in frames}
        self._root = _common_folder(
            {frame.rpartition(":")[0] for frame in used | set(self._own.values())}
        )
        self._around: Distances | None = None
        if self._own:
            own_frames = np.array(sorted(self._own), np.int64)

            def are_frames(window: Window) -> Bools:
                first, behind = np.searchsorted(own_frames, [window.low, window.high])
                result = np.zeros(window.high - window.low, bool)
                result[own_frames[first:behind] - window.low] = True
                return result

            self._around = nest.nearest(are_frames)

    def stacks(self, ranges: Values) -> tuple[list[str | None], NDArray[np.int32]]:
        """Return the distinct stacks, and the index of each range's stack.

        A stack is its frames joined by newlines; it is None for index -1 and without known frames.
        """
        known = np.array(list(self._chains), np.int64)

        def key(ranges: NDArray[np.integer]) -> Ints:
            inside = ranges != NONE
            chain = self._chain[ranges].astype(np.int64)
            chained = inside & np.isin(chain, known)
            python = np.full(len(ranges), NONE, np.int64)
            if self._around is not None:
                python = np.where(inside, self._around[ranges], NONE)
            # The lowest bit separates chains from Python frames.
            return np.where(chained, chain * 2, python * 2 + 1)

        distinct, number = numbered(ranges, key)
        stacks = [self._stack(one // 2, in_chain=one % 2 == 0) for one in distinct.tolist()]
        return stacks, number

    @cached_property
    def module_paths(self) -> list[str]:
        """The distinct module paths in call chains."""
        return [path for path in dict.fromkeys(self._modules.values()) if path]

    def modules(self, ranges: NDArray[np.integer]) -> Ints:
        """Return the index in `module_paths` of the path in each range's call chain.

        The index is NO_MODULE for chains without modules, and NO_CHAIN for ranges without a chain
        and for -1.
        """
        rows, paths = self._path_of_chain
        row = rows.rows(self._chain[ranges])
        known = (row >= 0) & (ranges != NONE)
        return np.where(known, paths[row], NO_CHAIN)

    @cached_property
    def _path_of_chain(self) -> tuple[Lookup, Ints]:
        number = {path: index for index, path in enumerate(self.module_paths)} | {"": NO_MODULE}
        of_chain = [number[path] for path in self._modules.values()]
        return Lookup(np.array(list(self._modules), np.int64)), np.array([*of_chain, NO_CHAIN])

    def _stack(self, number: int, *, in_chain: bool) -> str | None:
        frames = list(self._chains[number]) if in_chain else self._python_stack(number)
        return "\n".join(frame.removeprefix(self._root) for frame in frames) or None

    def _python_stack(self, index: int) -> list[str]:
        """Return a Python frame and the frames around it, outermost first."""
        frames = []
        while index != NONE:
            frames.append(self._own[index])
            assert self._around is not None
            above = self._parent[np.array([index])]
            index = int(self._around[above][0]) if above[0] != NONE else NONE
        return frames[::-1]


def numbered(
    ranges: Values, key: Callable[[NDArray[np.integer]], Ints]
) -> tuple[Ints, NDArray[np.int32]]:
    """Return the distinct keys of ranges in ascending order, and the index of each range's key.

    `key` is called for one window of ranges at a time.
    """
    result = np.empty(len(ranges), np.int32)
    of_window: list[Ints] = []
    for low in range(0, len(ranges), WINDOW):
        own, number = np.unique(key(ranges[low : low + WINDOW]), return_inverse=True)
        result[low : low + WINDOW] = number
        of_window.append(own)
    distinct = np.unique(np.concatenate([np.zeros(0, np.int64), *of_window]))
    for at, own in enumerate(of_window):
        some = result[at * WINDOW : (at + 1) * WINDOW]
        some[:] = np.searchsorted(distinct, own)[some]
    return distinct, result


def _callchains(
    source: Source, strings: Strings
) -> tuple[dict[int, tuple[str, ...]], dict[int, str]]:
    """Return the user's frames (outermost first) and the module paths of call chains, both by id.

    Chains without user frames are not in the first result; a chain without modules has an empty
    path.
    """
    chains: dict[int, list[str]] = {}
    modules: dict[int, list[str]] = {}
    known: dict[object, tuple[str | None, str | None]] = {}
    query = "SELECT id, stack FROM PYTORCH_CALLCHAINS ORDER BY id, stackDepth DESC"
    for number, stack in source.rows(query):
        if not isinstance(number, int):
            continue
        if stack not in known:
            text = strings.get(stack) if isinstance(stack, int) else stack
            known[stack] = _frame_and_module(None if text is None else str(text))
        frame, module = known[stack]
        if frame is not None:
            chains.setdefault(number, []).append(frame)
        path = modules.setdefault(number, [])
        if module is not None:
            path.append(module)
    return (
        {number: tuple(frames) for number, frames in chains.items()},
        {number: ".".join(names) for number, names in modules.items()},
    )


def user_stacks(source: Source, strings: Strings) -> dict[int, tuple[str, ...]]:
    """Return the user's frames of call chains by id, outermost first, for chains that have any."""
    chains, _ = _callchains(source, strings)
    files = {frame.rpartition(":")[0] for frames in chains.values() for frame in frames}
    root = _common_folder(files)
    return {
        number: tuple(frame.removeprefix(root) for frame in frames)
        for number, frames in chains.items()
    }


def chains_through(source: Source, frame: str) -> Ints:
    """Return the ids of the call chains with a frame that matches an SQL LIKE pattern."""
    if "PYTORCH_CALLCHAINS" not in source.tables:
        return np.zeros(0, np.int64)
    result = source.rows(
        "SELECT DISTINCT id FROM PYTORCH_CALLCHAINS"
        " WHERE stack IN (SELECT id FROM STRING_IDS WHERE value LIKE ?)",
        (frame,),
    )
    return np.array([number for (number,) in result if isinstance(number, int)], np.int64)


def _frame_and_module(text: str | None) -> tuple[str | None, str | None]:
    """Return the user's source line and the module in a call chain entry; None if absent."""
    if text is None:
        return None, None
    if text.startswith(MODULE_PREFIX):
        return None, text.removeprefix(MODULE_PREFIX)
    return user_frame(text), None


class PythonCalls(NamedTuple):
    """Calls of Python functions with their times (UPROF_PYTHON_FRAMES)."""

    start_ns: Ints  # Unix time.
    end_ns: Ints
    thread: Ints
    name: Ints  # Index in `texts`.
    texts: list[str]


def python_calls(source: Source, strings: Strings) -> PythonCalls:
    """Return the calls of Python functions; none if the table does not exist."""
    rows = source.integers(
        "UPROF_PYTHON_FRAMES",
        {"start": "startNs", "end": "endNs", "thread": "globalTid", "name": "name"},
    )
    ids, name = np.unique(rows["name"], return_inverse=True)
    texts = [text or "" for text in strings.texts(ids.tolist())]
    return PythonCalls(rows["start"], rows["end"], rows["thread"], name, texts)


def without_common_folder(frames: list[str]) -> list[str]:
    """Return the frames without the longest folder that contains all their files."""
    root = _common_folder({frame.partition("(")[0] for frame in frames})
    return [frame.removeprefix(root) for frame in frames]


def user_frame(text: str) -> str | None:
    """Return `file:line` for `/home/me/train.py(12): step`, None if not a user's file."""
    match = _FRAME.match(text)
    if match is None:
        return None
    file = match["file"].replace("\\", "/")
    top = posixpath.splitext(file.partition("/")[0])[0]
    if _FOREIGN.search(file) or (
        not file.startswith(("/", ".")) and top in sys.stdlib_module_names
    ):
        return None
    return f"{file}:{match['line']}"


def _common_folder(files: set[str]) -> str:
    absolute = [file for file in files if file.startswith("/")]
    if not absolute:
        return ""
    folder = posixpath.commonpath([posixpath.dirname(file) for file in absolute])
    return folder if folder.endswith("/") else f"{folder}/"


# Ids up to this multiple of the number of ranges are looked up by index, others by binary search.
SPARSE = 4


class RangesById:
    """Lookup of ranges by their id in CONNECTION_IDS; if several have an id, the innermost is used.

    The innermost range is the last one, as children follow their parents.
    """

    def __init__(self, ids: Packed, kinds: Packed) -> None:
        self._dense: NDArray[np.int32] | None = None
        self._sorted = self._ranges = np.zeros(0, np.int64)
        dense = ids.least >= 0 and ids.most < SPARSE * len(ids) + 1024
        if dense:
            self._dense = np.full(ids.most + 3, NONE, np.int32)
        parts = []
        for low in range(0, len(ids), WINDOW):
            own = ids[low : low + WINDOW]
            selected = np.flatnonzero((own != MISSING) & (kinds[low : low + WINDOW] != API_PYTHON))
            if self._dense is not None:
                self._dense[own[selected] + 1] = selected + low
            else:
                parts.append(np.array([own[selected], selected + low]))
        if self._dense is None:
            found = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
            self._sorted, self._ranges = last_of_each(found)

    def find(self, ids: Ints) -> Ints:
        """Return the range of each id, or NONE."""
        if self._dense is not None:
            return self._dense.take(np.maximum(ids, -1) + 1, mode="clip").astype(np.int64)
        return values_at(self._ranges, find(self._sorted, ids))


def last_of_each(columns: Ints) -> Ints:
    """For each distinct number in the first row of `columns`, return its greatest column."""
    order = np.lexsort(columns[::-1])
    ordered: Ints = columns[:, order]
    return ordered[:, Runs(ordered[0]).last]


def values_at(values: Distances | Packed | Ints, at: NDArray[np.integer]) -> Ints:
    """Return the values at indexes, NONE where the index is NONE."""
    if not len(values):
        return np.full(len(at), NONE, np.int64)
    return np.where(at == NONE, NONE, values[np.maximum(at, 0)])


_TYPES = re.compile(r"[A-Za-z]")
# Types of arguments without a shape; capitalized in old releases of torch.
_NO_TENSORS = frozenset(
    {"", NOT_AVAILABLE, *"None Scalar ScalarList Int Bool Double String GenericList".split()}
)


def _input_text(shapes: str | None, types: str | None) -> str:
    """Return recorded shapes and types of tensors as one text, `float[64,128], long int[7]`."""
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


_HALF = 1 << 32


class RecordedInputs:
    """Inputs of host ranges as text; `row` is the row in PYTORCH_API of each range, or -1."""

    def __init__(self, source: Source, strings: Strings, row: Packed) -> None:
        self._source, self._strings, self._row = source, strings, row

    def __call__(self, ranges: NDArray[np.integer]) -> tuple[list[str], NDArray[np.int32]]:
        """Return the distinct inputs, as `float[64,128], long int[7]`, and each range's index.

        The text is empty if no shape was recorded. Some releases of torch_npu swapped shapes and
        types; the text has them in the right order.
        """

        def key(ranges: NDArray[np.integer]) -> Ints:
            rows = values_at(self._row, ranges)
            shape, kind = (values_at(column, rows) for column in self._ids)
            # Each id fits into half of a 64-bit number.
            return (shape.astype(np.int64) + 1) * _HALF + kind + 1

        pairs, number = numbered(ranges, key)
        texts: dict[str, int] = {}
        numbers = []
        for pair in pairs.tolist():
            shape, kind = self._strings.texts((pair // _HALF - 1, pair % _HALF - 1))
            numbers.append(texts.setdefault(_input_text(shape, kind), len(texts)))
        return list(texts), np.array(numbers, np.int32)[number]

    @cached_property
    def _ids(self) -> tuple[Packed, Packed]:
        """String ids of the shapes and types of each row."""
        shapes, types = Packing(hole=NONE), Packing(hole=NONE)
        columns = {"shapes": "coalesce(inputShapes, -1)", "types": "coalesce(inputDtypes, -1)"}
        for batch in self._source.batches("PYTORCH_API", columns):
            shapes.add(batch["shapes"])
            types.add(batch["types"])
        return shapes.done(), types.done()


ENGINE_PREFIX = "autograd::engine::evaluate_function: "

# Thread ids above this are `process << 32 | thread`, those below are PyTorch's own thread ids.
_MAX_TORCH_THREAD = 0xFFFFFFFF
_FITS = 1 << 40  # Greater than any number of votes, so that a matching name outweighs all votes.
_NODE_SUFFIX = re.compile(r"Backwards?\d*$")
_CPP_NODE = re.compile(r"CppNode<(?:.*::)?(\w+)>")
_CUSTOM_NODE = re.compile(r"CppNode<|Backward$")


class AutogradColumns(NamedTuple):
    """Columns over all host ranges."""

    thread: Packed
    start_ns: Packed
    # Sequence number of the node that the range runs or may have created; negative: none.
    sequence: Packed
    forward_thread: Packed
    name_code: Packed  # Index of the range's name in the distinct names.


class ForwardOperations:
    """The operation that created each autograd node.

    `threads` are those with operations that may have created nodes, in ascending order; `nodes` are
    the ranges that run a node.
    """

    def __init__(
        self, columns: AutogradColumns, names: Sequence[str], threads: Ints, nodes: Ints
    ) -> None:
        self._columns, self._names, self._threads, self._nodes = columns, names, threads, nodes
        self._sequences = max(columns.sequence.most, 0) + 1
        self._dense: NDArray[np.int32] | None = None
        self._parts = [np.zeros((3, 0), np.int64)]
        size = len(threads) * self._sequences
        if size < SPARSE * len(columns.sequence) + 1024:
            self._dense = np.full(size, NONE, np.int32)

    def add(self, ranges: Ints) -> None:
        """Add operations that have a sequence number; they must follow those added before."""
        columns = self._columns
        number = np.searchsorted(self._threads, columns.thread[ranges])
        key = number * self._sequences + columns.sequence[ranges]
        found = last_of_each(np.array([key, columns.start_ns[ranges], ranges], np.int64))
        if self._dense is None:
            self._parts = [last_of_each(np.concatenate((*self._parts, found), axis=1))]
            return
        key, start_ns, ranges = found
        before = self._dense[key]
        later = (before == NONE) | (start_ns >= columns.start_ns[np.maximum(before, 0)])
        self._dense[key[later]] = ranges[later]

    def find(self, nodes: Ints) -> Ints:
        """Return the operation that created the node of each range, NONE if unknown."""
        result = np.full(len(nodes), NONE, np.int64)
        known = np.flatnonzero(nodes != NONE)
        if not len(known) or not len(self._threads):
            return result
        ranges = nodes[known]
        found = self._likeliest_operation(ranges)
        # An ATen operation does not create the nodes of a user's autograd function. Such a
        # function may have no range, and any operation before it has its number.
        node = self._columns.name_code[ranges]
        operation = self._columns.name_code[np.maximum(found, 0)]
        wrong = self._is_custom_node[node] & self._is_aten[operation]
        found[wrong & ~self._match_names(node, operation)] = NONE
        result[known] = found
        return result

    def _likeliest_operation(self, nodes: Ints) -> Ints:
        """Return the operation on the recorded forward thread, else the most likely one."""
        columns = self._columns
        forward = columns.forward_thread[nodes]
        stated = find(self._threads, forward)
        sequence, node = columns.sequence[nodes].astype(np.int64), columns.name_code[nodes]
        process = columns.thread[nodes] >> 32
        inferred = forward <= _MAX_TORCH_THREAD
        result = np.full(len(nodes), NONE, np.int64)
        best = np.full(len(nodes), -1, np.int64)
        tied = np.zeros(len(nodes), bool)
        for number, thread in enumerate(self._threads.tolist()):
            chosen = np.where(inferred, process == thread >> 32, stated == number)
            found = self._created(number, np.where(chosen, sequence, NONE))
            fits = self._match_names(node, columns.name_code[np.maximum(found, 0)])
            score = np.where(found == NONE, -1, fits * _FITS + self._votes_for(nodes, number))
            tied = np.where(score > best, False, tied | ((score == best) & (score >= 0)))
            result = np.where(score > best, found, result)
            best = np.maximum(best, score)
        return np.where(tied, NONE, result)

    def _votes_for(self, nodes: Ints, number: int) -> Ints:
        """For each node, count the nodes of its forward thread that match a thread's operations."""
        if not self._votes:
            return np.zeros(len(nodes), np.int64)
        columns = self._columns
        pairs = np.stack((columns.thread[nodes] >> 32, columns.forward_thread[nodes]))
        distinct, which = np.unique(pairs, axis=1, return_inverse=True)
        votes = [self._votes.get((*pair, number), 0) for pair in distinct.T.tolist()]
        return np.array(votes, np.int64)[which.reshape(-1)]

    @cached_property
    def _votes(self) -> dict[tuple[int, int, int], int]:
        """Number of nodes with a matching operation, by (process, forward thread, thread index).

        Empty if no process has several forward threads.
        """
        columns = self._columns
        processes = self._threads >> 32
        if len(np.unique(processes)) == len(processes):
            return {}
        process = columns.thread[self._nodes] >> 32
        forward = columns.forward_thread[self._nodes]
        sequence = columns.sequence[self._nodes].astype(np.int64)
        node = columns.name_code[self._nodes]
        votes: dict[tuple[int, int, int], int] = {}
        for number, own in enumerate(processes.tolist()):
            found = self._created(number, np.where(process == own, sequence, NONE))
            fits = (found != NONE) & self._match_names(
                node, columns.name_code[np.maximum(found, 0)]
            )
            threads, count = np.unique(forward[fits], return_counts=True)
            for thread, many in zip(threads.tolist(), count.tolist(), strict=True):
                votes[own, thread, number] = many
        return votes

    def _created(self, number: int, sequence: Ints) -> Ints:
        """Return the operation of a thread with each sequence number, NONE if there is none."""
        key = number * self._sequences + sequence
        if self._dense is not None:
            result: Ints = self._dense.take(np.maximum(key, 0)).astype(np.int64)
        else:
            result = values_at(self._parts[0][2], find(self._parts[0][0], key))
        return np.where(sequence < 0, NONE, result)

    def _match_names(self, node: NDArray[np.integer], operation: NDArray[np.integer]) -> Bools:
        """Return a mask of the nodes whose names match their operations."""
        result: Bools = self._node_name[node] == self._operation_name[operation]
        return result

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {}

    @cached_property
    def _node_name(self) -> Ints:
        """Number of the operation name in each node's name, -1 for other names."""
        return np.array([self._number(_name_of_node(name), -1) for name in self._names], np.int64)

    @cached_property
    def _operation_name(self) -> Ints:
        """Number of each operation's name as it appears in node names, -2 if it does not."""
        texts = [_bare(name.rpartition("::")[2].partition(".")[0]) for name in self._names]
        return np.array([self._number(text, -2) for text in texts], np.int64)

    def _number(self, text: str, absent: int) -> int:
        return self._numbers.setdefault(text, len(self._numbers)) if text else absent

    @cached_property
    def _is_custom_node(self) -> Bools:
        return np.array([bool(_CUSTOM_NODE.search(name)) for name in self._names], bool)

    @cached_property
    def _is_aten(self) -> Bools:
        return np.array([name.startswith("aten::") for name in self._names], bool)


def _name_of_node(name: str) -> str:
    """Return `nllloss` for `NllLossBackward0`; empty if `name` is not the name of a node."""
    name = name.removeprefix(ENGINE_PREFIX)
    if (match := _CPP_NODE.search(name)) is not None:
        return _bare(match[1].removesuffix("Function"))
    bare, count = _NODE_SUFFIX.subn("", name)
    return _bare(bare.rpartition("::")[2]) if count else ""


def _bare(name: str) -> str:
    return name.replace("_", "").lower().removesuffix("forward")
