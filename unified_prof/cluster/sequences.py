"""Communication of a rank by sequence: the operations of one group and kind, or peer and direction.

Sequences are what ranks have in common. They are numbered without gaps, so the number of an
operation is its index: neither matching nor sums need to sort the operations of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Ints, Runs
from unified_prof.arrays.packed import Narrow, narrowest
from unified_prof.recording.collectives import POINT_TO_POINT

_SUMMED = ("covered", "step", "bytes", "move")  # Columns of sums, beside `length`.


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Operations sorted by sequence and number; `kind`, `other`, `number` are by sequence."""

    kind: Ints  # Index in the kinds of the partial.
    other: Ints  # Group, or peer rank of sends and receives.
    number: Ints  # Number of the first operation.
    edges: Ints  # First operation of each sequence, and the number of operations.
    # By operation, in narrow types: length, covered, step, bytes and move; seq if numbers are not
    # consecutive; of `RankSequences.first` also op (row of the partial), start and group.
    columns: dict[str, Any]

    @property
    def sizes(self) -> Ints:
        """Number of operations of each sequence."""
        return np.diff(self.edges)

    def only(self, places: Sequence[int]) -> Sequences:
        """Return the sequences with the operations of `places` only."""
        kept = np.isin(np.arange(len(self.kind)), places)
        rows = np.repeat(kept, self.sizes)
        edges = np.append(0, np.cumsum(self.sizes * kept))
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Sequences(self.kind, self.other, self.number, edges, columns)

    def span(self, place: int, shift: int) -> range | None:
        """Return the numbers of the operations of a sequence; None if they are not consecutive."""
        if "seq" in self.columns:
            return None
        begin, end = self.edges[place : place + 2].tolist()
        first = int(self.number[place]) + shift
        return range(first, first + end - begin)

    def numbers(self, place: int) -> Ints:
        """Return the numbers of the operations of a sequence."""
        if (span := self.span(place, 0)) is not None:
            return np.arange(span.start, span.stop)
        return np.asarray(self.columns["seq"][slice(*self.edges[place : place + 2])], np.int64)


class RankSequences(NamedTuple):
    """The same sequences with the operations in memory, and with all operations."""

    first: Sequences
    whole: Sequences  # Without columns if they are not in memory.


class SharedColumns:
    """Memory of the columns of many ranks.

    Equal columns are stored once: most are equal on ranks that run the same program. All columns
    are parts of large blocks, which, unlike small arrays, the system gets back once they are freed.
    """

    _BLOCK_BYTES = 16 << 20

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], NDArray[Any]] = {}
        self._blocks: dict[bool, NDArray[np.uint8]] = {}

    def __call__(self, values: NDArray[Any], *, whole: bool = False) -> NDArray[Any]:
        """Return an equal column in this memory; columns of whole runs have their own blocks."""
        key = (whole, values.dtype, len(values), int(values.sum()))
        known = self._known.get(key)
        if known is not None and np.array_equal(known, values):
            return known
        size = -(-values.nbytes // 8) * 8
        block = self._blocks.get(whole, values[:0])
        if size > len(block):
            block = np.empty(max(size, self._BLOCK_BYTES), np.uint8)
        result = block[: values.nbytes].view(values.dtype)
        self._blocks[whole] = block[size:]
        result[:] = values
        self._known[key] = result
        return result


def sequences_of(
    table: Mapping[str, Ints],
    kinds: Sequence[str],
    limit: int | None = None,
    shared: SharedColumns | None = None,
) -> RankSequences:
    """Return the sequences of a rank's communication.

    `kinds` are the texts of the column `kind`. Only the first `limit` rows stay in memory with
    their times (None: all).
    """

    def keep(values: NDArray[Any], *, whole: bool = False) -> NDArray[Any]:
        return values if shared is None else shared(values, whole=whole)

    other, seq = table["group"], table["seq"]
    transfers = [at for at, kind in enumerate(kinds) if kind in POINT_TO_POINT]
    if transfers:
        other = np.where(np.isin(table["kind"], transfers), table["peer"], other)
    code = (other + 1) * (len(kinds) + 1) + table["kind"] + 1
    order = np.argsort(narrowest(code), kind="stable")
    runs = Runs(code[order])
    if (_steps(seq[order], runs) < 0).any():
        order = np.lexsort((seq, code))
    heads = order[runs.starts]
    keys = (table["kind"][heads], other[heads])
    whole: dict[str, Any] = {name: narrowest(table[name])[order] for name in _SUMMED}
    whole["length"] = narrowest(table["end"] - table["start"])[order]
    op, first = order, dict(whole)
    if limit is not None and limit < len(order):
        chosen = order < limit
        op, first = order[chosen], {name: keep(one[chosen]) for name, one in whole.items()}
        whole = {name: keep(values, whole=True) for name, values in whole.items()}
    edges = np.append(runs.starts, len(order))
    held = np.r_[0, np.cumsum(order < len(op))][edges]
    base = int(table["start"][:1].sum())
    first["start"] = Narrow(keep(narrowest(table["start"][op] - base)), base)
    first |= {"op": keep(narrowest(op)), "group": keep(narrowest(table["group"])[op])}
    in_memory = _sequences(keys, held, first, seq[op])
    if len(op) == len(order):
        return RankSequences(in_memory, in_memory)
    return RankSequences(in_memory, _sequences(keys, edges, whole, seq[order]))


def _sequences(
    keys: tuple[Ints, Ints], edges: Ints, columns: dict[str, NDArray[Any]], seq: Ints
) -> Sequences:
    inner = np.diff(seq) == 1
    inner[edges[(edges > 0) & (edges < len(seq))] - 1] = True
    if not inner.all():
        columns["seq"] = narrowest(seq)
    return Sequences(*keys, np.append(seq, 0)[edges[:-1]], edges, columns)


def _steps(seq: Ints, runs: Runs) -> Ints:
    """Return the differences of consecutive numbers within sequences."""
    steps = np.diff(seq)
    steps[runs.starts[1:] - 1] = 1
    return steps
