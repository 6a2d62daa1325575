"""Finds why the collectives of a run hang, from the Flight Recorder dumps of its ranks.

torch.distributed keeps the last collectives of each process and writes them to a file, whose name
ends in the rank, when a collective times out. Ranks agree on the order of the collectives of a
group, so the nth collective must be the same call on each rank. The first one that is not explains
the hang; what follows it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field

from unified_prof.base.text import some_of
from unified_prof.errors import RawFormatError, UprofError
from unified_prof.recording.model import Finding, Sureness
from unified_prof.report.document import Document, text_columns

_P2P = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)\Z")
_AT_ROOT = ("gather", "broadcast", "reduce")  # Their output differs at the root.
_HEADINGS = ("rank", "group", "last call", "state", "line")
_DONE = ("completed", "retired")
# Frames of torch and of other installed packages are skipped to find the line of the program.
_INSTALLED = re.compile(r"(?:site|dist)-packages[/\\]|^<|[/\\]lib[/\\]python3")
_Group: TypeAlias = tuple[str, tuple[int, ...]]  # Name and ranks of a process group.


class _Call(Struct, frozen=True):
    """One call of a collective, send or receive on one rank."""

    group: _Group
    sequence: int
    name: str
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    types: tuple[tuple[str, ...], tuple[str, ...]]
    state: str
    created_ns: int
    line: str

    @property
    def place(self) -> str:
        return f" ({self.line})" if self.line else ""

    def compared(self) -> tuple[Any, ...]:
        """Return what must be equal on all ranks of the group: name, sizes and types."""
        if "all_to_all" in self.name or "alltoall" in self.name:
            return (self.name,)
        inputs = () if self.name == "scatter" else (self.inputs, self.types[0])
        outputs = () if self.name in _AT_ROOT else (self.outputs, self.types[1])
        return (self.name, *inputs, *outputs)


class Hang(Struct):
    """Comparison of the dumps of a run."""

    path: Path
    ranks: tuple[int, ...]
    absent: tuple[int, ...]  # Ranks of the process groups without a dump.
    errors: tuple[str, ...]  # Dumps that cannot be read.
    findings: list[Finding] = field(default_factory=list)
    last: dict[int, _Call] = field(default_factory=dict)  # Last call of each rank.
    labels: dict[_Group, str] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """Sentence about ranks that are not compared; empty if there are none."""
        absent = [f"no dump of {_ranks(self.absent)}"] if self.absent else []
        return "; ".join([*absent, *self.errors])

    def fields(self) -> dict[str, Any]:
        """Return the comparison as plain data for JSON."""
        return {
            "version": 1,
            "ranks": list(self.ranks),
            "absent": list(self.absent),
            "unread": list(self.errors),
            "findings": [finding.document() for finding in self.findings],
            "last_calls": [dict(zip(_HEADINGS, row, strict=True)) for row in self._rows()],
        }

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the last call of each rank; ranks that findings name come first."""
        named = {rank for finding in self.findings for rank in finding.ranks}
        order = sorted(self.last, key=lambda rank: (rank not in named, rank))
        return [
            (str(rank), self.labels[one.group], f"{one.name} #{one.sequence}", one.state, one.line)
            for rank, one in ((rank, self.last[rank]) for rank in order)
        ]

    def document(self, top: int | None) -> Document:
        """Return the comparison as a document with `top` ranks, 20 by default."""
        document = Document()
        document.title(f"{self.path}: Flight Recorder dumps of {len(self.ranks):,} ranks")
        if self.missing:
            document.warning("warning", self.missing)
        if not self.findings:
            document.fact("findings", "none: all ranks entered the same collectives")
        for finding in self.findings:
            document.finding(finding.sure, finding.text)
        rows, top = self._rows(), top or 20
        columns = text_columns([_HEADINGS, *rows[:top]])
        document.table(columns, left_out=len(rows[top:]))
        return document


def compare_dumps(path: Path, files: Mapping[int, Path]) -> Hang:
    """Compare the dumps of all ranks; raises RawFormatError if none can be read."""
    dumps: dict[int, list[_Call]] = {}
    labels: dict[_Group, str] = {}
    errors: list[UprofError] = []
    for rank, file in sorted(files.items()):
        try:
            dumps[rank] = _read(file, labels)
        except RawFormatError as err:
            errors.append(err)
    if not dumps:
        raise errors[0]
    expected = {rank for _, ranks in labels for rank in ranks}
    absent = tuple(sorted(expected - set(dumps) - set(files)))
    result = Hang(path, tuple(dumps), absent, tuple(map(str, errors)), labels=labels)
    newest = attrgetter("created_ns")
    result.last = {rank: max(calls, key=newest) for rank, calls in dumps.items() if calls}
    found = [
        finding
        for group in labels
        for finding in (*_collectives(result, group, dumps), *_transfers(group, dumps))
    ]
    # A rank that waits in one group is absent from others: the cause is a rank that does not wait.
    waiting = {rank for finding in found for rank in finding.figures["waiting"]}
    result.findings = sorted(
        found, key=lambda one: (waiting.issuperset(one.ranks), one.figures["created_ns"])
    )
    return result


def _read(file: Path, labels: dict[_Group, str]) -> list[_Call]:
    from unified_prof.decoders.memory_snapshot import pickle_reader  # imports NumPy

    content = pickle_reader.load(file)
    if not isinstance(content, dict) or type(content.get("entries")) is not list:
        raise RawFormatError(f"{file} is not a Flight Recorder dump", slug="not-a-recording")
    config = next(iter(_mappings([content.get("pg_config")])), {})
    calls = []
    for entry in _mappings(content["entries"]):
        name, label = (*map(str, _items(entry.get("process_group"))), "", "")[:2]
        group = name, _group_ranks(config, name)
        suffix = "" if label in ("", "undefined", name) else f" ({label})"
        labels.setdefault(group, name + suffix)
        calls.append(_call(entry, group))
    return calls


def _group_ranks(config: dict[Any, Any], name: str) -> tuple[int, ...]:
    """Return the ranks of a group; gloo's only group has no name in the table of groups."""
    found = config.get(name, config.get("") if len(config) == 1 else None)
    ranks = found.get("ranks") if isinstance(found, dict) else None
    texts = re.findall(r"\d{1,7}", ranks) if isinstance(ranks, str) else _items(ranks)
    return tuple(sorted({int(one) for one in texts if type(one) in (int, str)}))


def _call(entry: dict[Any, Any], group: _Group) -> _Call:
    number = entry.get("p2p_seq_id" if entry.get("is_p2p") is True else "collective_seq_id")
    state, time = str(entry.get("state", "unknown")), entry.get("time_created_ns")
    if entry.get("retired") is True and state != "completed":
        state = "retired"  # gloo records no end; failed calls are retired, too
    types = [tuple(map(str, _items(entry.get(f"{one}_dtypes")))) for one in ("input", "output")]
    return _Call(
        group,
        number if type(number) is int else -1,
        str(entry.get("profiling_name", "")).partition(":")[2],
        _sizes(entry.get("input_sizes")),
        _sizes(entry.get("output_sizes")),
        (types[0], types[1]),
        state,
        time if type(time) is int else 0,
        _line(entry.get("frames")),
    )


def _items(value: Any) -> Sequence[Any]:
    """Return the scalars of a list or tuple; a single text is a list of one."""
    if isinstance(value, str):
        return (value,)
    values = value if type(value) in (list, tuple) else ()
    return [one for one in values if isinstance(one, (str, int))]


def _mappings(value: Any) -> list[dict[Any, Any]]:
    return [one for one in value if isinstance(one, dict)] if type(value) is list else []


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    values = value if type(value) in (list, tuple) else ()
    return tuple(tuple(int(n) for n in _items(one) if type(n) is int) for one in values)


def _line(frames: Any) -> str:
    """Return `file.py:12` of the innermost frame outside installed packages."""
    for frame in _mappings(frames):
        file = str(frame.get("filename", ""))
        if file and not _INSTALLED.search(file):
            return f"{Path(file).name}:{frame.get('line')}"
    return ""


def _collectives(hang: Hang, group: _Group, dumps: Mapping[int, list[_Call]]) -> Iterator[Finding]:
    """Yield the first collective of a group that its ranks did not enter or complete alike."""
    by_rank: dict[int, dict[int, list[_Call]]] = {}
    for rank, every in dumps.items():
        own = [call for call in every if call.group == group and not _P2P.match(call.name)]
        if own or rank in group[1]:
            by_rank[rank] = {}
        for call in own:
            by_rank[rank].setdefault(call.sequence, []).append(call)
    numbers = sorted({number for calls in by_rank.values() for number in calls})
    # Older collectives were overwritten on some ranks.
    first = max((min(calls) for calls in by_rank.values() if calls), default=0)
    for number in (number for number in numbers if number >= first):
        entered = {rank: calls[number] for rank, calls in by_rank.items() if number in calls}
        absent = [rank for rank in by_rank if rank not in entered]
        states = {call.state for calls in entered.values() for call in calls}
        is_over = states <= set(_DONE)
        if states == {"completed"} or (is_over and not absent):
            continue
        done = _DONE[:1] if is_over else _DONE
        waiting = [r for r, calls in entered.items() if any(one.state not in done for one in calls)]
        sample = next(iter(entered.values()))[0]
        label, last = hang.labels[group], hang.last
        title = f"{sample.name} #{number} of group {label}"
        figures = {"group": label, "collective": sample.name, "number": number}
        figures |= {"waiting": waiting, "created_ns": sample.created_ns}
        sides: dict[Any, list[int]] = {}
        for rank, calls in entered.items():
            sides.setdefault(tuple(call.compared() for call in calls), []).append(rank)
        by_size = sorted(sides.values(), key=len)
        ranks = by_size[0]
        sure: Sureness = "certain"
        if len(sides) > 1:
            is_same = len({tuple(call.name for call in calls) for calls in entered.values()}) == 1
            kind = "different_sizes" if is_same else "different_collectives"
            text = f"{'sizes or types' if is_same else 'collectives'} of ranks differ in number "
            text += f"{number} of group {label}"
            for side in by_size:
                call = entered[side[0]][0]
                text += f"; {_ranks(side)}: {call.name} {_tensors(call.inputs, call.types[0])} -> "
                text += f"{_tensors(call.outputs, call.types[1])}{call.place}"
        elif absent:
            kind, ranks, sure = "collective_not_entered", absent, "likely" if is_over else "certain"
            text = f"{_ranks(absent)} did not enter {title}; {_ranks(waiting)} "
            text += f"wait{'s' if len(waiting) == 1 else ''} in it{sample.place}"
            for rank, call in ((rank, last[rank]) for rank in absent[:3] if rank in last):
                text += f"; last call of rank {rank}: {call.name} #{call.sequence}{call.place}, "
                text += call.state
        else:
            text = f"{title}{sample.place} is not complete on {_ranks(waiting)}; "
            kind, ranks, sure = "collective_not_complete", waiting, "possible"
            if gone := sorted(set(group[1]) - set(by_rank)):
                kind, ranks, sure = "rank_without_dump", gone, "likely"
            text += f"no dump of {_ranks(gone)}: did it end?" if gone else "all ranks entered it"
        yield Finding(kind, tuple(ranks), (), (), (), 0.0, text, figures, sure=sure)
        return


def _transfers(group: _Group, dumps: Mapping[int, list[_Call]]) -> Iterator[Finding]:
    """Yield sends without a receive, and receives without a send, that are not complete."""
    open_calls: dict[tuple[str, int, int], list[_Call]] = {}
    for rank, calls in dumps.items():
        for call in calls:
            match = _P2P.match(call.name)
            if match is None or call.group != group or call.state in _DONE:
                continue
            # Numbers are ranks within the group.
            peer = dict(enumerate(group[1])).get(int(match[4]), int(match[4]))
            open_calls.setdefault((match[1], rank, peer), []).append(call)
    for (kind, rank, peer), calls in open_calls.items():
        other = "recv" if kind == "send" else "send"
        matched = len(open_calls.get((other, peer, rank), ()))
        for call in calls[matched:][:1] if peer in dumps else ():
            text = f"rank {rank} waits in {kind} {'to' if kind == 'send' else 'from'} rank {peer}"
            text += f"{call.place}; rank {peer} did not call the matching {other}"
            figures = {"group": group[0], "waiting": [rank], "created_ns": call.created_ns}
            ends = ((rank, peer),)
            yield Finding("transfer_not_matched", (peer,), (), ends, (), 0.0, text, figures)


def _tensors(sizes: tuple[tuple[int, ...], ...], types: tuple[str, ...]) -> str:
    """Return `Float[4,3]`, with at most three tensors."""
    pairs = zip_longest(types, sizes, fillvalue="")
    every = [f"{name}[{','.join(map(str, one))}]" for name, one in pairs]
    return some_of(every, 3)


def _ranks(ranks: Iterable[int]) -> str:
    """Return `rank 1` or `ranks 0, 2`, with at most eight numbers."""
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {some_of(map(str, numbers), 8)}"
