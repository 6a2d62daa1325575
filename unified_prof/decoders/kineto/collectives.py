"""What a trace says of collectives: the parameters of each call."""

from __future__ import annotations

from typing import Any

from unified_prof.decoders.gpu.collectives import Collective, Collectives
from unified_prof.decoders.gpu.numbers import MISSING
from unified_prof.decoders.gpu.pools import ANNOTATION_PREFIX, parse_json
from unified_prof.decoders.kineto.events import CollectiveArgs
from unified_prof.decoders.kineto.groups import strided_ranks
from unified_prof.decoders.kineto.numbers import to_int64
from unified_prof.vocabulary import NOT_AVAILABLE


class TraceCollectives(Collectives):
    """The same, by the JSON text of the arguments that describe them."""

    def __missing__(self, key: bytes) -> int:
        """Return the number of the collective that `args`, as JSON text, describe."""
        args = parse_collective(key)
        return MISSING if args is None else self.number(args)


def parse_collective(text: bytes) -> Collective | None:
    """Read a collective's parameters from an event's arguments; None if there are none."""
    import msgspec

    try:
        args = msgspec.json.decode(text, type=CollectiveArgs)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if args.collective is None:
        return None
    numbers, _ = to_int64(
        [
            args.group_size,
            args.in_elements,
            args.out_elements,
            args.source_rank,
            args.target_rank,
            args.sequence,
            args.rank,
            args.rank_start,
            args.rank_stride,
        ]
    )
    group_size, in_elements, out_elements, source, target, sequence = numbers.tolist()[:6]
    peer, start, stride = numbers.tolist()[6:]
    return Collective(
        name=_text(args.collective),
        group=_text(args.group_name),
        group_description=_text(args.group_description),
        group_size=group_size,
        group_ranks=_text(args.group_ranks),
        dtype=_text(args.dtype),
        in_elements=in_elements,
        out_elements=out_elements,
        in_split=_text(args.in_split),
        out_split=_text(args.out_split),
        source_rank=source,
        target_rank=target,
        sequence=sequence,
        peer=peer if _text(args.collective).lower() in ("send", "recv") else MISSING,
        strided_ranks=strided_ranks(start, stride, group_size) or (),
    )


def from_annotation(name: str, elements: int, dtype: str) -> Collective:
    """Return what an `nccl:all_reduce` annotation and its first input say of a collective."""
    return Collective(
        name=name.removeprefix(ANNOTATION_PREFIX),
        dtype=dtype or NOT_AVAILABLE,
        in_elements=elements,
    )


def _text(value: Any) -> str:
    if value is None or value == "":
        return NOT_AVAILABLE
    return (
        value
        if isinstance(value, str)
        else str(parse_json(value) if isinstance(value, bytes) else value)
    )
