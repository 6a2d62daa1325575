"""Writes COMMUNICATION_OP and COMMUNICATION_TASK_INFO: collective operators and their tasks.

Durations and JSON numbers are equal to those of the vendor's exporter up to the last digit:

Durations: the exporter divides ticks by the frequency, keeps six decimals of the microseconds, and
sums the digits multiplied by their powers of ten, from the last to the first. The sum may differ
from the nearest double by one unit in the last place.

JSON: the exporter prints doubles with the Grisu2 algorithm (Loitsch, PLDI 2010), whose digits are
not always the closest ones and may differ from Python's. Here, integers of arbitrary size replace
its tables of powers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from unified_prof.arrays.grouping import Bools, Floats, Ints, Runs, positions
from unified_prof.base.columns import NO_RANK, NOT_AVAILABLE, TYPE_INVALID, TYPE_NOT_AVAILABLE, Sink
from unified_prof.decoders.prof.clocks import LinearClock
from unified_prof.decoders.prof.directory import HostDirectory
from unified_prof.decoders.spool import Rows

_SCHEDULE_SUFFIX = "AicpuKernel"
FINE_ORIGIN_NS = 10**15
# The exporter writes 1 also for recordings of several iterations.
_ITERATION = 1
_RDMA, _PAYLOAD = 1, 1
# The exporter evaluates this platform with another program, which closes transfers differently.
_NATIVE_PLATFORM = 5


class CommunicationTimes(Struct, frozen=True):
    """Intervals of collective operators on one device, in ns."""

    start_ns: Ints
    end_ns: Ints
    # opId of each written operator in the argument `flags` of `CommunicationWriter.write`.
    id_by_name: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls) -> CommunicationTimes:
        """Return no intervals."""
        none = np.zeros(0, np.int64)
        return cls(none, none)


class Steps(Struct, frozen=True):
    """Executed tasks of collectives on one device, sorted by start; columns of equal length."""

    records: Rows  # Rows of `host_side.STEP`.
    start_ns: Ints
    end_ns: Ints
    global_task_id: Ints
    start: NDArray[np.uint64]  # Device counter.
    end: NDArray[np.uint64]


class CommunicationWriter:
    """Writes the collectives of a recording for one device after the other."""

    def __init__(self, host: HostDirectory, sink: Sink) -> None:
        self._host, self._sink = host, sink
        self._next_operator_id = 0

    def write(
        self,
        device_id: int,
        steps: Steps,
        clock: LinearClock,
        flags: Mapping[str, tuple[int, int]] | None = None,
    ) -> CommunicationTimes:
        """Write the operators and tasks of one device; return the intervals of the operators.

        `flags` are full name -> (relay, retry) for operators that the device recorded.
        """
        if not len(steps.records):
            return CommunicationTimes.none()
        operators = self._operators(steps.records)
        self._write_tasks(steps, operators, clock)
        return self._write_operators(device_id, steps, operators, flags or {})

    def take_ids(self, count: int) -> Ints:
        """Return new opIds."""
        ids = np.arange(self._next_operator_id, self._next_operator_id + count)
        self._next_operator_id += count
        return ids

    def _operators(self, records: Rows) -> _Operators:
        """Group tasks into operators, one for each pair of NODE call and communication group."""
        group = np.zeros(len(records), np.uint64)
        for kind in ("operator", "task"):
            has = records[f"has_{kind}"]
            group[has] = records[kind]["group_name"][has]
        grouped = records["has_task"] | records["has_operator"]
        order = np.lexsort((group, grouped, records["node"]))
        runs = Runs(records["node"][order], group[order], grouped[order])
        of_task = np.empty(len(order), np.int64)
        of_task[order] = runs.number()
        first = order[runs.starts]
        operators = _Operators(of_task, records[first], group[first], grouped[first])
        texts = [self._host.dictionaries.text(item) for item in operators.records["item"].tolist()]
        suffixes = [
            str(group)[-3:] if grouped else NOT_AVAILABLE[-3:]
            for group, grouped in zip(
                operators.group.tolist(), operators.grouped.tolist(), strict=True
            )
        ]
        scheduled = np.array([text.endswith(_SCHEDULE_SUFFIX) for text in texts], bool)
        begin = operators.records["begin"]
        early = self._host.clocks.host.to_ns(begin) < self._host.session.start_ns
        order = np.lexsort((begin, operators.group, operators.grouped, scheduled))
        counters = Runs(scheduled[order], operators.group[order], operators.grouped[order])
        counted: Ints = np.cumsum(~early[order]) - ~early[order]
        number = np.empty(len(order), np.int64)
        number[order] = counted - counters.spread(counted[counters.starts])
        operators.names = [
            f"{text}_{suffix}_{index}_{_ITERATION}"
            for text, suffix, index in zip(texts, suffixes, number.tolist(), strict=True)
        ]
        operators.name_id = self._sink.strings.intern_all(operators.names)
        operators.id = self.take_ids(len(order))
        return operators

    def _write_tasks(self, tasks: Steps, operators: _Operators, clock: LinearClock) -> None:
        sink, dictionaries = self._sink, self._host.dictionaries
        has_info = tasks.records["has_task"]
        info = tasks.records["task"][has_info]
        none = sink.strings.intern(NOT_AVAILABLE)
        count = len(tasks.records)

        def column(field: str, missing: int, *, enum: bool = False) -> Ints:
            values = np.full(count, missing, np.int64)
            found = info[field].astype(np.int64)
            values[has_info] = np.minimum(found, TYPE_INVALID) if enum else found
            return values

        task_type = np.full(count, none, np.int64)
        task_type[has_info] = dictionaries.string_ids(sink.strings, info["item_id"])
        groups = np.full(len(operators.records), none, np.int64)
        groups[operators.grouped] = dictionaries.string_ids(
            sink.strings, operators.group[operators.grouped]
        )
        size = column("size_bytes", -1)
        plane = column("plane_id", NO_RANK)
        columns: dict[str, Any] = {
            "name": operators.name_id[operators.of_task],
            "globalTaskId": tasks.global_task_id,
            "taskType": task_type,
            "planeId": plane,
            "groupName": groups[operators.of_task],
            "notifyId": column("notify_id", -1),
            "rdmaType": column("rdma_type", TYPE_NOT_AVAILABLE, enum=True),
            "srcRank": column("local_rank", NO_RANK),
            "dstRank": column("remote_rank", NO_RANK),
            "transportType": column("transport_type", TYPE_NOT_AVAILABLE, enum=True),
            "size": size,
            "dataType": column("data_type", TYPE_NOT_AVAILABLE, enum=True),
            "linkType": column("link_type", TYPE_NOT_AVAILABLE, enum=True),
            "opId": operators.id[operators.of_task],
            "isMaster": tasks.records["master"].astype(np.int64),
        }
        payload = (columns["transportType"] == _RDMA) & (columns["rdmaType"] == _PAYLOAD)
        fine = clock.finer(FINE_PARTS, self._host.session.start_ns - FINE_ORIGIN_NS)
        columns["bandwidth"] = bandwidth(
            (operators.of_task, plane),
            fine.to_ns(tasks.start),
            fine.to_ns(tasks.end),
            size,
            payload,
            closing_tasks(operators.names)[operators.of_task],
            one_by_one=self._host.platform != _NATIVE_PLATFORM,
        )
        sink.write("COMMUNICATION_TASK_INFO", columns)

    def _write_operators(
        self,
        device_id: int,
        tasks: Steps,
        operators: _Operators,
        flags: Mapping[str, tuple[int, int]],
    ) -> CommunicationTimes:
        """Write the operators with master tasks, from their first to their last master task."""
        sink, dictionaries = self._sink, self._host.dictionaries
        count = len(operators.records)
        master = tasks.records["master"]
        start, end, has_master = extents(
            operators.of_task[master], tasks.start_ns[master], tasks.end_ns[master], count
        )
        has_record = operators.records["has_operator"]
        found = operators.records["operator"][has_record]
        none = sink.strings.intern(NOT_AVAILABLE)

        def column(values: NDArray[Any], missing: int) -> Ints:
            result = np.full(count, missing, np.int64)
            result[has_record] = values
            return result

        def names(field: str) -> Ints:
            return column(dictionaries.string_ids(sink.strings, found[field]), none)

        algorithm = names("alg_type")
        unnamed = np.flatnonzero(has_record)[found["alg_type"] == 0]
        algorithm[unnamed] = sink.strings.intern("NA")
        described = operators.records["described"]
        op_type = np.full(count, none, np.int64)
        op_type[described] = dictionaries.string_ids(
            sink.strings, operators.records["op_type"][described]
        )
        columns: dict[str, NDArray[Any]] = {
            "opName": operators.name_id,
            "startNs": start,
            "endNs": end,
            "connectionId": operators.records["node"].copy(),
            "groupName": names("group_name"),
            "opId": operators.id,
            "relay": column(found["flags"] & 1, -1),
            "retry": column(found["flags"] >> 1 & 1, -1),
            "dataType": column(found["data_type"], TYPE_NOT_AVAILABLE),
            "algType": algorithm,
            "count": column(found["count"].astype(np.int64), -1),
            "opType": op_type,
            "deviceId": np.full(count, device_id),
            "rankSize": _rank_sizes(tasks.records, operators),
        }
        kept = np.flatnonzero(has_master)
        ids: dict[str, int] = {}
        for index in kept.tolist() if flags else ():
            name = operators.names[index]
            if name in flags:
                ids[name] = int(operators.id[index])
                columns["relay"][index], columns["retry"][index] = flags[name]
        if len(kept):
            sink.write("COMMUNICATION_OP", {name: values[kept] for name, values in columns.items()})
        return CommunicationTimes(start[kept], end[kept], ids)


def extents(operator: Ints, start_ns: Ints, end_ns: Ints, count: int) -> tuple[Ints, Ints, Bools]:
    """Return first start and last end of each operator's tasks, and a mask of those with tasks.

    `operator` is the index of each task's operator, below `count`.
    """
    start = np.full(count, np.iinfo(np.int64).max)
    end = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(start, operator, start_ns)
    np.maximum.at(end, operator, end_ns)
    return start, end, np.bincount(operator, minlength=count) > 0


def _rank_sizes(records: Rows, operators: _Operators) -> Ints:
    """Return the rank size recorded for the last launched task of each call, 0 if missing."""
    sizes = np.where(records["has_task"], records["task"]["rank_size"], 0).astype(np.int64)
    order = np.lexsort((records["launched"], records["node"]))
    last = order[Runs(records["node"][order]).last]
    return sizes[last][np.searchsorted(records["node"][last], operators.records["node"])]


class _Operators(Struct):
    """Collective operators of one device; all columns but the first have equal length."""

    of_task: Ints  # Operator of each task.
    records: Rows  # `STEP` row of the first task of each operator.
    group: NDArray[np.uint64]
    grouped: Bools  # False if neither the operator nor its tasks contain a group name.
    names: list[str] = field(default_factory=list)
    name_id: Any = None
    id: Any = None


_PLACES = 6
_US_TO_NS_POWER = 3


def duration_ns(ticks: int, rate: Fraction) -> float:
    """Convert ticks of `rate` ns to ns, with the same rounding as the exporter."""
    if ticks <= 0:
        return 0.0
    return sum_of_digits(f"{ticks / float(1000 / rate):.{_PLACES}f}", _US_TO_NS_POWER)


def sum_of_digits(text: str, power: int = 0) -> float:
    """Return a decimal such as `1.020833` times 10**power, summed from the last digit on."""
    integer, _, decimals = text.partition(".")
    digits = (integer + decimals).lstrip("0")
    last = power - len(decimals)
    total = 0.0
    for index, digit in enumerate(reversed(digits)):
        # 10.0 ** -3 is the double nearest to 0.001 only where the C library's pow is exact.
        total += int(digit) * float(f"1e{last + index}")
    return total


_FRACTION_BITS = 52
_HIDDEN = 1 << _FRACTION_BITS
_LEAST_EXPONENT, _EXPONENT_BIAS = -1074, 1075
_POWERS_FROM, _POWER_STEP = -348, 8
_LOG10_2 = 0.30102999566398114
# Decimals up to which the exporter's writer rounds.
_ROUNDED_PLACES = 9
_PLAIN_DIGITS, _LEADING_ZEROS = 21, 6

_Float = tuple[int, int]  # A fraction and its power of two.


def array_text(items: Sequence[object]) -> str:
    """Return a list of strings, integers and doubles as JSON."""
    texts = []
    for item in items:
        if not isinstance(item, float):
            texts.append(json.dumps(item, ensure_ascii=False))
        else:
            texts.append(double_text(item) if isfinite(item) else "null")
    return "[" + ",".join(texts) + "]"


def double_text(value: float) -> str:
    """Format a finite double, such as `0.0`, `2687186122000000.0` or `1e30`."""
    if value == 0:
        return "0.0"
    digits, exponent = _shortest(abs(value))
    return ("-" if value < 0 else "") + _with_point(digits, exponent)


def _with_point(digits: str, exponent: int) -> str:
    """Insert the decimal point into `digits`; the last digit has the weight 10**exponent."""
    point = len(digits) + exponent
    if exponent >= 0 and point <= _PLAIN_DIGITS:
        return digits + "0" * exponent + ".0"
    if 0 < point <= _PLAIN_DIGITS:
        return f"{digits[:point]}.{digits[point:]}"
    if -_LEADING_ZEROS < point <= 0:
        return "0." + "0" * -point + digits
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1}"


def _shortest(value: float) -> tuple[str, int]:
    """Return the digits of a positive double, and the power of ten of the last digit."""
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    fraction, biased = bits & (_HIDDEN - 1), bits >> _FRACTION_BITS
    exponent = biased - _EXPONENT_BIAS if biased else _LEAST_EXPONENT
    fraction |= _HIDDEN if biased else 0
    above = _normalized((2 * fraction + 1, exponent - 1))
    closer = fraction == _HIDDEN  # the next double below is half as far away
    below = (4 * fraction - 1, exponent - 2) if closer else (2 * fraction - 1, exponent - 1)
    below = (below[0] << (below[1] - above[1]), above[1])
    index = _power_index(above[1])
    power = _power_of_ten(_POWERS_FROM + _POWER_STEP * index)
    scaled = _product(_normalized((fraction, exponent)), power)
    top = _product(above, power)
    width = top[0] - 1 - (_product(below, power)[0] + 1)
    digits, places = _digits(top[0] - 1, -top[1], width, top[0] - 1 - scaled[0])
    return "".join(map(str, digits)), -(_POWERS_FROM + _POWER_STEP * index) + places


def _digits(top: int, shift: int, width: int, distance: int) -> tuple[list[int], int]:
    """Return the fewest leading digits of `top` that stay within `width` below it.

    All numbers are in units of 2**-shift; `distance` is that of the double from `top`.
    """
    integer, rest = top >> shift, top & ((1 << shift) - 1)
    digits: list[int] = []
    for place in range(len(str(integer)) - 1, -1, -1):
        digit, integer = divmod(integer, 10**place)
        if digit or digits:
            digits.append(digit)
        left = (integer << shift) + rest
        if left <= width:
            _round(digits, left, 10**place << shift, width, distance)
            return digits, place
    for place in range(1, 64):
        rest, width = rest * 10, width * 10
        digit, rest = rest >> shift, rest & ((1 << shift) - 1)
        if digit or digits:
            digits.append(digit)
        if rest < width:
            reach = distance * 10**place if place < _ROUNDED_PLACES else 0
            _round(digits, rest, 1 << shift, width, reach)
            return digits, -place
    raise AssertionError("a double has fewer than 64 decimals")


def _round(digits: list[int], left: int, unit: int, width: int, distance: int) -> None:
    """Decrement the last digit while the result gets closer to the double."""
    while (
        left < distance
        and width - left >= unit
        and (left + unit < distance or distance - left > left + unit - distance)
    ):
        digits[-1] -= 1
        left += unit


def _power_index(exponent: int) -> int:
    """Return the index of the power of ten (in steps of 8) for scaling a fraction."""
    estimate = (-61 - exponent) * _LOG10_2 + 347
    return (int(estimate) + (estimate > int(estimate)) >> 3) + 1


@cache
def _power_of_ten(power: int) -> _Float:
    """Return 10**power with a 64-bit fraction, rounded to nearest."""
    numerator, denominator = (10**power, 1) if power >= 0 else (1, 10**-power)
    exponent = numerator.bit_length() - denominator.bit_length() - 64
    # The quotient has 64 or 65 bits.
    exponent += (numerator << max(-exponent, 0)) // (denominator << max(exponent, 0)) >> 64
    divisor = denominator << max(exponent, 0)
    quotient, remainder = divmod(numerator << max(-exponent, 0), divisor)
    quotient += 2 * remainder >= divisor
    return (quotient, exponent) if quotient < 1 << 64 else (quotient >> 1, exponent + 1)


def _normalized(number: _Float) -> _Float:
    shift = 64 - number[0].bit_length()
    return number[0] << shift, number[1] - shift


def _product(first: _Float, second: _Float) -> _Float:
    product = first[0] * second[0]
    return (product >> 64) + (product >> 63 & 1), first[1] + second[1] + 64


# Parts of a nanosecond: resolution of the times that bandwidths are computed from.
FINE_PARTS = 1024

_CLOSING_TASKS, _CLOSING_TASKS_ONE_WAY = 4, 2  # See `closing_tasks`.
_ONE_WAY = ("send", "receive")
_SKIPPED = -1e9  # The exporter's bandwidth, -1 GB/s, of payloads that it skips.


def closing_tasks(operator_names: list[str]) -> Ints:
    """Return the number of tasks that end an RDMA transfer, for each operator.

    These tasks are a notify and its acknowledgment, in both directions unless the operator is
    one-way.
    """
    closing = (
        _CLOSING_TASKS_ONE_WAY if any(word in name for word in _ONE_WAY) else _CLOSING_TASKS
        for name in operator_names
    )
    return np.fromiter(closing, np.int64)


def bandwidth(
    lane: tuple[NDArray[Any], ...],
    start: Ints,
    end: Ints,
    size: Ints,
    payload: Bools,
    closing: Ints,
    *,
    one_by_one: bool = False,
    sort_by_time: bool = True,
) -> Floats:
    """Return the bytes per second of each task; payloads get the bandwidth of their transfer.

    An RDMA transfer consists of consecutive payloads on one lane (rows with equal values in all
    columns of `lane`: operator and plane) and the tasks that end it, in time order. If the ending
    tasks are missing, each payload is a separate transfer. Times are in 1 / FINE_PARTS ns, sizes in
    bytes (-1: unknown); `payload` marks RDMA payloads, `closing` has the `closing_tasks` of each
    task's operator. The exporter uses two rules. If `one_by_one`, transfers do not overlap, and
    payloads among the ending tasks of a transfer have no bandwidth (`_SKIPPED`). Otherwise, each
    sequence of payloads is ended by the next tasks, even if they also end another transfer. The
    exporter does not sort the records of AI CPUs (not `sort_by_time`), so bandwidths of rows that
    are not in time order are negative, and skipped payloads have bandwidth 0.
    """

    def per_second(amount: Ints, parts: Ints) -> Floats:
        time_ns = parts / FINE_PARTS
        usable = time_ns > 0 if sort_by_time else time_ns != 0
        return np.asarray(amount / np.where(usable, time_ns, np.inf) * 1e9, np.float64)

    moved = per_second(size, end - start)
    order = np.lexsort((start, *lane[::-1]) if sort_by_time else lane[::-1])
    lanes = Runs(*(column[order] for column in lane))
    lane_end = lanes.spread(lanes.last)
    runs = Runs(lanes.number(), payload[order])
    first, last = runs.starts, runs.last
    chosen = payload[order][first]
    first, last = first[chosen], last[chosen]
    if one_by_one:
        first, last, skipped = _one_by_one(first, last, closing[order], lane_end)
        moved[order[skipped]] = _SKIPPED if sort_by_time else 0.0
    end_of_transfer = last + closing[order][first]
    complete = end_of_transfer <= lane_end[first]
    first, last, end_of_transfer = first[complete], last[complete], end_of_transfer[complete]
    sent = np.cumsum(size[order])
    sent_in_run = sent[last] - sent[first] + size[order][first]
    shared = per_second(sent_in_run, end[order[end_of_transfer]] - start[order[first]])
    length = last - first + 1
    members = order[np.repeat(first, length) + positions(length)]
    moved[members] = np.repeat(shared, length)
    return moved


def _one_by_one(first: Ints, last: Ints, closing: Ints, lane_end: Ints) -> tuple[Ints, Ints, Ints]:
    """Shorten sequences of payloads so that each starts after the tasks that end the previous one.

    Returns:
        First and last task of the remaining sequences, and the skipped payloads.
    """
    runs: list[tuple[int, int]] = []
    skipped: list[int] = []
    covered = -1
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        skipped += range(begin, min(covered, end) + 1)
        begin = max(begin, covered + 1)
        if begin > end:
            continue
        runs.append((begin, end))
        closed = end + int(closing[begin])
        if closed <= lane_end[begin]:
            covered = closed
    left = np.array(runs, np.int64).reshape(-1, 2)
    return left[:, 0], left[:, 1], np.array(skipped, np.int64)
