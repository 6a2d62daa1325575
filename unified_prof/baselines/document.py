"""A comparable run as bytes, for keeping: zlib-compressed MessagePack with a version.

What stands in it are the fields of `Run`, by name. What is read is bounded (in bytes here, in
entries by the types of `comparable`): a store may be shared, and a few damaged or hostile
kilobytes must not take gigabytes of memory.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Any

import msgspec
import numpy as np

from unified_prof.analysis.compare.comparable import PEAK, TOTAL, Operations, Place, Run, Sized
from unified_prof.errors import StoreError, UsageError

_VERSION = 3
_SINCE = 2
"""Since then a document holds a `Run` by its fields; version 2 did not tell its runs apart."""
_MAX_BYTES = 1 << 28
"""A million operations with ten samples each have 0.2 GB."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    run: Run


def dump(run: Run) -> bytes:
    """Return `run` as bytes that `load` takes.

    Raises:
        UsageError: it is larger than what `load` believes.
    """
    raw = msgspec.msgpack.encode(_Document(_VERSION, run), enc_hook=_plain)
    if len(raw) > _MAX_BYTES:
        raise UsageError(
            f"{run.label} is too large to keep: {len(run.operations):,} operations with "
            f"{run.operations.forward_ns.shape[1]:,} samples take {len(raw) >> 20} MiB, "
            f"at most {_MAX_BYTES >> 20}",
            hint="measure fewer iterations, or save fewer files",
            slug="too-large-to-keep",
        )
    return zlib.compress(raw)


def load(data: bytes, *, where: str) -> Run:
    """Return the run that `dump` wrote.

    Args:
        data: the bytes.
        where: what to call their place in a message.

    Raises:
        StoreError: they are damaged, expand to more than any run has, or are of a version that
            this build does not know.
    """
    try:
        raw = _unpacked(data)
        version = msgspec.msgpack.decode(raw, type=_Version).version
        if version == 1:
            return _of_version_1(msgspec.msgpack.decode(raw, type=_Document1))
        if not _SINCE <= version <= _VERSION:
            raise StoreError(
                f"{where} has version {version}, this build reads {_VERSION}", slug="other-version"
            )
        run = msgspec.msgpack.decode(raw, type=_Document, dec_hook=_array).run
        run.check()
        return run
    except (zlib.error, msgspec.MsgspecError, ValueError) as err:
        raise StoreError(f"{where} is damaged: {err}", slug="damaged-file") from None


class _Version(msgspec.Struct):
    version: int


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(data, _MAX_BYTES)
    if not unpacker.eof:
        expands = len(raw) >= _MAX_BYTES
        raise ValueError(f"it expands to more than {_MAX_BYTES:,} bytes" if expands else "cut off")
    return raw


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, "<f8").tobytes()
    raise NotImplementedError(f"a run holds {type(value).__name__}")


def _array(_: type, value: Any) -> Any:
    """Return the array that `_plain` wrote; `Run` holds nothing else that MessagePack lacks."""
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], bytes)):
        raise ValueError("what should be numbers is something else")
    shape, data = value
    if not (isinstance(shape, list) and all(type(one) is int and one >= 0 for one in shape)):
        raise ValueError("the shape of numbers is something else")
    return np.frombuffer(data, "<f8").astype(np.float64, copy=False).reshape(shape)


class _Document1(msgspec.Struct, forbid_unknown_fields=True):
    """What uprof wrote before it kept the waiting beside the times."""

    version: int
    label: str
    families: Annotated[list[str], msgspec.Meta(max_length=10)]
    clock: str
    facts: Annotated[dict[str, str], msgspec.Meta(max_length=100_000)]
    places: Annotated[
        list[tuple[str, str | None, str | None, str]], msgspec.Meta(max_length=1_000_000)
    ]
    samples: int
    forward_ns: bytes
    backward_ns: bytes
    sizes: Annotated[
        list[tuple[str, str | None, str | None, str, int]], msgspec.Meta(max_length=1_000_000)
    ]
    totals: Annotated[dict[str, bytes], msgspec.Meta(max_length=100)]
    kernels: Annotated[
        dict[str, Annotated[dict[str, float], msgspec.Meta(max_length=100_000)]],
        msgspec.Meta(max_length=100_000),
    ]
    steps: int | None = None
    outside_steps_ns: float = 0.0


def _of_version_1(old: _Document1) -> Run:
    """Return what such a document says.

    On the host its total is without the waiting, its passes are with it: those have no like now.
    """
    totals = {metric: np.frombuffer(data, "<f8") for metric, data in old.totals.items()}
    waited = {}
    if old.clock == "operation" and old.facts.get("device", "").startswith("cpu"):
        totals = {metric: totals[metric] for metric in (TOTAL, PEAK) if metric in totals}
        waited = {TOTAL: np.zeros(len(totals[TOTAL]))} if TOTAL in totals else {}
    shape = (len(old.places), old.samples)
    return Run(
        label=old.label,
        families=frozenset(old.families),
        clock=old.clock,
        facts=old.facts,
        operations=Operations(
            tuple(Place(*place) for place in old.places),
            np.frombuffer(old.forward_ns, "<f8").reshape(shape),
            np.frombuffer(old.backward_ns, "<f8").reshape(shape),
        ),
        sizes=tuple(Sized(Place(*one[:4]), one[4]) for one in old.sizes),
        totals=totals,
        waited=waited,
        kernels=old.kernels,
        steps=old.steps,
        outside_steps_ns=old.outside_steps_ns,
    )
