"""Advice rules about matrix products by recorded shapes: order, unused rows, repeated sequences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unified_prof.arrays import intervals
from unified_prof.arrays.grouping import Ints
from unified_prof.explain.advice.device_context import Cause, DeviceContext, matrix_kernels
from unified_prof.explain.advice.idle_segments import KEEP_KEYS, TAIL_NS, WARN_SHARE, percent
from unified_prof.recording import names
from unified_prof.recording.calls import KERNEL
from unified_prof.recording.framework import BACKWARD

_SHAPE = re.compile(r"\[(\d+(?:,\d+)*)\]")
Shape = tuple[int, ...]
# Multiply-adds in the time in which memory moves an element: about 240 in bf16, 40 in fp32.
BALANCE = 120
HOST_BALANCE = 8  # The same of a processor, whose caches hold the weights.

MAX_TASKS = 500_000  # Number of tasks to examine, which limits time and memory.


class _Product(NamedTuple):
    """A product of `rows` by `inner` and `inner` by `columns`, `batch` times."""

    batch: int
    rows: int
    inner: int
    columns: int

    @classmethod
    def from_shapes(cls, name: str, shapes: list[Shape]) -> _Product | None:
        """Return the product of an operation with these inputs; None if it is none."""
        matrices = [shape for shape in shapes if len(shape) > 1]
        if not names.PRODUCT(name) or len(matrices) < 2:
            return None
        left, right = matrices[-2:]
        if name.endswith("linear"):
            right = (*right[:-2], right[-1], right[-2])
        if left[-1] != right[-2]:
            return None
        if len(right) == 2:
            return cls(1, prod(left[:-1]), left[-1], right[-1])
        return cls(prod(left[:-2]), left[-2], left[-1], right[-1])

    @property
    def work(self) -> float:
        """Time in elements that memory moves meanwhile, by FLOPs or by bytes."""
        return self.time(BALANCE)

    def time(self, balance: int) -> float:
        """Return `work` of a device with another balance."""
        inputs = self.inner * (self.rows + self.columns)
        elements = inputs + self.rows * self.columns
        return self.batch * max(self.rows * self.inner * self.columns / balance, elements)


def _staying(
    before: Sequence[_Product], after: Sequence[_Product], balance: int = BALANCE
) -> float:
    """Return the share of the time that other products take."""
    new, old = (sum(one.time(balance) for one in some) for some in (after, before))
    return min(new / max(old, 1), 1.0)


class _Operations:
    """Operations outside of backward passes, in call order; on a device, those with kernels."""

    def __init__(self, context: DeviceContext) -> None:
        self.context = context
        self.host_ns: NDArray[Any] = np.zeros(0)  # Time of each operation without a device.
        calls = self._of_host() if context.device is None else self._of_device()
        framework = context.recording.framework
        assert framework is not None
        texts, name = framework.names(calls)
        inputs, given = framework.inputs(calls)
        self.names = [texts[one] for one in name.tolist()]
        shapes = [
            [tuple(map(int, one.split(","))) for one in _SHAPE.findall(text)] for text in inputs
        ]
        self.shapes = [shapes[one] for one in given.tolist()]
        kinds = list(zip(name.tolist(), given.tolist(), strict=True))
        products = {
            (one, other): _Product.from_shapes(texts[one], shapes[other])
            for one, other in set(kinds)
        }
        self.products = [products[kind] for kind in kinds]

    def _of_host(self) -> Ints:
        framework, window = self.context.recording.framework, self.context.window
        assert framework is not None
        call, passes, time_ns = framework.host_time()
        rows = np.flatnonzero(intervals.holding(window, framework.start_ns[call]) >= 0)
        self.trains = bool((passes[rows] == BACKWARD).any())
        calls, number = np.unique(call[rows], return_inverse=True)
        self.host_ns = np.bincount(number, time_ns[rows])[:MAX_TASKS]
        return calls[:MAX_TASKS]

    def _of_device(self) -> Ints:
        context = self.context
        framework, work = context.recording.framework, context.recording.work
        assert framework is not None
        tasks = context.tasks
        call = framework.direct(work.connection[tasks.row])
        kernels = (tasks.kind == KERNEL) & (call >= 0)
        self.owner = work.launches.call[tasks.row]
        forward = np.flatnonzero(kernels & (work.launches.passes[tasks.row] != BACKWARD))
        forward = forward[:MAX_TASKS]
        calls, first, number = np.unique(call[forward], return_index=True, return_inverse=True)
        self.task = forward[first]  # A task of each operation.
        self.of_task = np.full(len(tasks), -1)
        self.of_task[forward] = number
        self.trains = bool((work.launches.passes[tasks.row] == BACKWARD).any())
        return calls

    def saved_ns(self, shares: dict[int, float]) -> NDArray[np.float64]:
        """Return the time that each task saves by shares of operations, also in their backward.

        Args:
            shares: Share of the time that stays, by the index of the operation.
        """
        tasks, stays = self.context.tasks, np.ones(len(self.names) + 1)
        stays[list(shares)] = list(shares.values())
        owners = dict(
            zip(self.owner[self.task[list(shares)]].tolist(), shares.values(), strict=True)
        )
        length = np.maximum(tasks.length_ns - TAIL_NS, 0)
        result: NDArray[np.float64] = (1 - stays[self.of_task]) * length
        backward = np.flatnonzero(np.isin(self.owner, list(owners)) & (self.of_task < 0))
        backward = backward[matrix_kernels(self.context)[backward]]
        left = [owners[one] for one in self.owner[backward].tolist()]
        result[backward] = length[backward] * (1 - np.array(left, np.float64))
        return result

    def causes(
        self, shares: dict[int, float], text: str, *, advice: str, kind: str
    ) -> Iterator[Cause]:
        """Yield a finding about operations of which shares of the time stay."""
        if not shares:
            return
        on_host = self.context.device is None
        if on_host:
            saved_ns = (1 - np.array([*shares.values()])) * self.host_ns[[*shares]]
        else:
            saved_ns = self.saved_ns(shares)
        rows = np.flatnonzero(saved_ns)
        share = self.context.share(float(saved_ns.sum()))
        if share < WARN_SHARE:
            return
        details: dict[str, Any] = {
            "kind": kind,
            "advice": advice,
            "sure": "likely",
            "least": WARN_SHARE,
            "figures": {"operations": len(shares), "share": round(share, 4)},
        }
        text = text.format(percent(share))
        if on_host:
            yield self.context.finding(float(saved_ns.sum()), text, **details)
        else:
            yield self.context.tasks_finding(text, rows, saved_ns[rows], **details)


def avoidable_products(context: DeviceContext) -> Iterator[Cause]:
    """Find matrix products that compute more than is needed, by the shapes of their inputs."""
    operations = _Operations(context)
    yield from operations.causes(
        _orders(operations),
        "order of products: {} of the time is avoidable: a product of small factors makes a large "
        "matrix, which is multiplied again",
        kind="product_order",
        advice="multiply the small factors last: (x @ A) @ B instead of x @ (A @ B), or use "
        "torch.linalg.multi_dot",
    )
    yield from operations.causes(
        _unused_rows(operations),
        "unused rows: {} of the time is for rows of matrix products, such as logits, of which few "
        "are used",
        kind="unused_rows",
        advice="select the rows before the product: the last position in generation "
        "(logits_to_keep=1), positions with a label in training",
    )
    yield from repeated_sequences(context, operations)


def repeated_sequences(
    context: DeviceContext, operations: _Operations | None = None
) -> Iterator[Cause]:
    """Find generation that computes earlier positions again, with or without a device."""
    operations = operations or _Operations(context)
    yield from operations.causes(
        _repeated_sequences(operations),
        "no KV cache: {} of the time is for positions that were computed before",
        kind="no_kv_cache",
        advice=KEEP_KEYS,
    )


# Minimum factor between a small inner dimension, or the rows in use, and the size of the result.
FEW = 4
MAX_BETWEEN = 2  # Maximum scalings and casts between two products.
MIN_GAIN = 0.5  # Maximum share of the time that the other order takes.


def _orders(operations: _Operations) -> dict[int, float]:
    """Return the products with a cheaper order, with the shares of their time that stay."""
    result: dict[int, float] = {}
    for at, first in enumerate(operations.products):
        if first is None or FEW * first.inner > min(first.rows, first.columns):
            continue
        for place in range(at + 1, min(at + 2 + MAX_BETWEEN, len(operations.names))):
            second = operations.products[place]
            if second is None:
                if names.SCALES(operations.names[place]):
                    continue
                break
            m, r, n, batch = first.rows, first.inner, first.columns, first.batch
            sizes = second.rows, second.inner, second.columns
            new: list[_Product] = []
            if second.batch == batch and sizes[1:] in ((m, n), (n, m)):
                new = [_Product(batch, sizes[0], r, one) for one in (m, n)]
            elif second.batch == batch and sizes[:2] == (m, n):
                new = [_Product(batch, one, r, sizes[2]) for one in (m, n)]
            if new and (stays := _staying((first, second), new)) <= MIN_GAIN:
                result |= {at: stays, place: stays}
            break
    return result


MIN_COLUMNS = 1024  # Minimum columns of a product whose rows may be unused, such as a vocabulary.
MAX_LATER = 50  # Number of later operations that may use all rows.


def _unused_rows(operations: _Operations) -> dict[int, float]:
    """Return the products of which few rows are used, with the shares of their time that stay."""
    result: dict[int, float] = {}
    for at, product in enumerate(operations.products):
        if product is None or product.columns < MIN_COLUMNS:
            continue
        rows, used, passing = product.batch * product.rows, 0, []
        for place in range(at + 1, min(at + 1 + MAX_LATER, len(operations.names))):
            sizes = [
                prod(shape[:-1])
                for shape in operations.shapes[place]
                if shape[-1] == product.columns
            ]
            other = operations.products[place]
            if other is not None and product.columns in (other.inner, other.columns):
                used = used or rows
                break
            if not sizes:
                if not used:
                    used = rows
                    break
                continue
            if max(sizes) < rows:
                used = max(used, *sizes)
            elif not used and names.SCALES(operations.names[place]):
                passing.append(place)
            elif used or not names.SELECTS_ROWS(operations.names[place]):
                used = rows
                break
        if 0 < FEW * used <= rows:
            stays = _staying((product,), (product._replace(batch=1, rows=used),))
            result |= {at: stays, **dict.fromkeys(passing, used / rows)}
    return result


MIN_POSITIONS = 8  # Minimum number of successive positions.


def _sequences(operations: _Operations, found: list[int]) -> list[list[int]]:
    """Return the products of each sequence: with the next one, the number of rows falls."""
    rows = np.array([product.rows for at in found if (product := operations.products[at])])
    return [one.tolist() for one in np.split(found, np.flatnonzero(np.diff(rows) < 0) + 1)]


def _repeated_sequences(operations: _Operations) -> dict[int, float]:
    """Return operations on sequences that grow by one position each time, if they are generated."""
    if operations.trains:
        return {}
    places: dict[tuple[str, int, int], list[int]] = {}
    for at, product in enumerate(operations.products):
        if product is not None and product.batch == 1:
            places.setdefault((operations.names[at], *product[2:]), []).append(at)
    result, rows_of = {}, np.zeros(len(operations.names), np.int64)
    for found in (one for some in places.values() for one in _sequences(operations, some)):
        products = [operations.products[at] for at in found]
        runs = [(rows, len([*some])) for rows, some in groupby(one.rows for one in products if one)]
        steps = {after[0] - before[0] for before, after in pairwise(runs)}
        # Sorted batches grow by steps of other lengths, or some lengths occur more often.
        if len(runs) < MIN_POSITIONS or len(steps) != 1 or len({n for _, n in runs[1:-1]}) != 1:
            continue
        new = steps.pop()
        if new <= 0:
            continue
        for at, product in zip(found, products, strict=True):
            if product is not None and product.rows > runs[0][0]:
                rows_of[at] = product.rows
                balance = BALANCE if operations.context.device else HOST_BALANCE
                result[at] = _staying((product,), (product._replace(rows=new),), balance)
    if result:
        first = min(result)
        last = np.maximum.accumulate(np.where(rows_of > 0, np.arange(len(rows_of)), first))
        for at in range(first, max(result)):
            rows = int(rows_of[last[at]])
            leading = [prod(shape[:-1]) for shape in operations.shapes[at] if len(shape) > 1]
            if at not in result and any(size % rows == 0 for size in leading):
                result[at] = new / rows
    return result


# A fused loss saves memory traffic of logits of so many columns and elements.
MIN_VOCABULARY, MIN_LOGITS = 8_192, 1 << 26
LOSS_SHARE = 0.03  # Minimum share of kernel time.
_TENSOR = re.compile(r"(\w+)\[(\d+(?:,\d+)*)\]")
_LOG_SOFTMAX, _LOSS = "aten::_log_softmax", "aten::nll_loss"


def unfused_cross_entropy(context: DeviceContext) -> Iterator[Cause]:
    """Find kernels between large logits and a loss: casts, log_softmax, nll_loss, and backward.

    One pass over the logits stays, as long as the forward kernel of log_softmax.
    """
    framework, tasks = context.recording.framework, context.tasks
    assert framework is not None
    call = framework.direct(context.recording.work.connection.to_array())[tasks.row]
    texts, name = framework.names(call)
    inputs, given = framework.inputs(call)
    tensors = [
        [(dtype, tuple(map(int, one.split(",")))) for dtype, one in _TENSOR.findall(text)]
        for text in [*inputs, ""]
    ]
    kernels = (tasks.kind == KERNEL) & (call >= 0) & ~context.explained

    def launched_by(wanted: str) -> NDArray[np.bool_]:
        named = np.array([text.startswith(wanted) for text in texts] or [False])
        result: NDArray[np.bool_] = kernels & named[name]
        return result

    forward = launched_by(_LOG_SOFTMAX) & ~launched_by(f"{_LOG_SOFTMAX}_backward")
    logits = {
        shape[-1]: prod(shape)
        for place in np.unique(given[forward]).tolist()
        for _, shape in tensors[place][:1]
        if shape[-1] >= MIN_VOCABULARY and prod(shape) >= MIN_LOGITS
    }
    # Rows of logits may be left out between a cast and the loss.
    of_logits = np.array(
        [
            any(2 * prod(shape) >= logits.get(shape[-1], prod(shape) * 3) for _, shape in some)
            for some in tensors
        ]
    )
    found = kernels & of_logits[given] & ~matrix_kernels(context) & ~context.in_optimizer
    if not (found & launched_by(_LOSS)).any():
        return
    rows = np.flatnonzero(found & ~forward)
    if (share := context.kernel_share(found & ~forward)) < LOSS_SHARE:
        return
    context.explained[found] = True
    full = any(
        dtype == "float"
        for place in np.unique(given[found & forward]).tolist()
        for dtype, _ in tensors[place][:1]
    )
    yield context.tasks_finding(
        f"unfused cross-entropy: {percent(share)} of kernel time, {len(rows):,} kernels read or "
        f"write logits of {max(logits):,} columns{' in fp32' * full}",
        rows,
        advice="use a loss that does not store the logits: a fused linear cross-entropy (Liger "
        "kernels, cut-cross-entropy), or compute logits and loss for chunks of positions",
        sure="likely",
        figures={"kernels": len(rows), "columns": max(logits), "share_of_compute": round(share, 4)},
    )
