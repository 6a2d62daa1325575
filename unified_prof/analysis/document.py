"""A comparable run as bytes, for keeping: zlib-compressed MessagePack with a version."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np

from unified_prof.analysis.comparable import Floats, Operations, Place, Run, Sized
from unified_prof.errors import StoreError

_VERSION = 1
_MAX_BYTES = 1 << 30
"""No run has a gibibyte of samples; something that unpacks to more is not one."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    label: str
    families: list[str]
    clock: str
    facts: dict[str, str]
    places: list[tuple[str, str | None, str | None, str]]
    samples: int
    forward_ns: bytes
    """float64, little-endian, one row an operation."""
    backward_ns: bytes
    sizes: list[tuple[str, str | None, str | None, str, int]]
    totals: dict[str, bytes]
    kernels: dict[str, dict[str, float]]
    steps: int | None = None
    outside_steps_ns: float = 0.0


def dump(run: Run) -> bytes:
    """Return `run` as bytes that `load` takes."""
    document = _Document(
        version=_VERSION,
        label=run.label,
        families=sorted(run.families),
        clock=run.clock,
        facts=dict(run.facts),
        places=[_place(place) for place in run.operations.places],
        samples=run.operations.forward_ns.shape[1],
        forward_ns=_bytes(run.operations.forward_ns),
        backward_ns=_bytes(run.operations.backward_ns),
        sizes=[(*_place(one.place), one.size_bytes) for one in run.sizes],
        totals={metric: _bytes(values) for metric, values in run.totals.items()},
        kernels={name: dict(kernels) for name, kernels in run.kernels.items()},
        steps=run.steps,
        outside_steps_ns=run.outside_steps_ns,
    )
    return zlib.compress(msgspec.msgpack.encode(document))


def load(data: bytes, *, where: str) -> Run:
    """Return the run that `dump` wrote.

    Args:
        data: the bytes.
        where: what to call their place in a message.

    Raises:
        StoreError: they are damaged, or of a version that this build does not know.
    """
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(data, _MAX_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off or too large")
        document = msgspec.msgpack.decode(raw, type=_Document)
        if document.version != _VERSION:
            raise StoreError(f"{where} has version {document.version}, this build reads {_VERSION}")
        shape = (len(document.places), document.samples)
        return Run(
            label=document.label,
            families=frozenset(document.families),
            clock=document.clock,
            facts=document.facts,
            operations=Operations(
                tuple(Place(*place) for place in document.places),
                _floats(document.forward_ns).reshape(shape),
                _floats(document.backward_ns).reshape(shape),
            ),
            sizes=tuple(Sized(Place(*one[:4]), one[4]) for one in document.sizes),
            totals={metric: _floats(values) for metric, values in document.totals.items()},
            kernels=document.kernels,
            steps=document.steps,
            outside_steps_ns=document.outside_steps_ns,
        )
    except (zlib.error, msgspec.MsgspecError, ValueError) as err:
        raise StoreError(f"{where} is damaged: {err}") from None


def _place(place: Place) -> tuple[str, str | None, str | None, str]:
    return place.name, place.module, place.line, place.kind


def _bytes(values: Floats) -> bytes:
    array: np.ndarray[Any, np.dtype[Any]] = np.ascontiguousarray(values, "<f8")
    return array.tobytes()


def _floats(data: bytes) -> Floats:
    return np.frombuffer(data, "<f8").astype(np.float64)
