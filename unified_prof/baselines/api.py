"""Save runs as baselines and load them.

A run is stored as zlib-compressed MessagePack with a version and the fields of `Run` by name. The
size of input is limited, because a store may be shared and damaged or hostile data must not exhaust
memory.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from unified_prof.baselines.store import BaselineStore, Entry, NewBaseline, open_store
from unified_prof.compare import runs
from unified_prof.compare.comparable import TOTAL, Run
from unified_prof.errors import StoreError, UsageError

_VERSION = 4
# First version with the fields of `Run`; version 2 has no run boundaries, version 3 no CPU times.
_SINCE = 2
# Maximum size of a decompressed document; a million operations with ten samples take 0.2 GB.
_MAX_BYTES = 1 << 28


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    run: Run


def dump(run: Run) -> bytes:
    """Encode a run as bytes for `load`.

    Raises UsageError if the run is larger than `load` accepts.
    """
    raw = msgspec.msgpack.encode(_Document(_VERSION, run), enc_hook=_plain)
    if len(raw) > _MAX_BYTES:
        raise UsageError(
            f"{run.label} is too large to save: {len(run.operations):,} operations with "
            f"{run.operations.forward_ns.shape[1]:,} samples take {len(raw) >> 20} MiB, "
            f"at most {_MAX_BYTES >> 20}",
            hint="measure fewer iterations, or save fewer files",
            slug="too-large-to-keep",
        )
    return zlib.compress(raw)


def load(data: bytes, *, where: str) -> Run:
    """Return the run that `dump` wrote.

    `where` is the origin of the data, for messages. Raises StoreError if the data are damaged, too
    large, or of an unknown version.
    """
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(data, _MAX_BYTES)
        if not unpacker.eof:
            expands = len(raw) >= _MAX_BYTES
            raise ValueError(
                f"it expands to more than {_MAX_BYTES:,} bytes" if expands else "cut off"
            )
        version = msgspec.msgpack.decode(raw, type=_Version).version
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


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, np.ascontiguousarray(value, "<f8").tobytes()
    raise NotImplementedError(f"cannot encode a value of type {type(value).__name__}")


def _array(_: type, value: Any) -> Any:
    """Return the array that `_plain` encoded; arrays are the only other type of a `Run`."""
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], bytes)):
        raise ValueError("expected an array of numbers")
    shape, data = value
    if not (isinstance(shape, list) and all(type(one) is int and one >= 0 for one in shape)):
        raise ValueError("the shape of an array is not valid")
    return np.frombuffer(data, "<f8").astype(np.float64, copy=False).reshape(shape)


# Relative to the current directory.
DEFAULT_STORE = ".uprof/baselines.sqlite"
_VERSIONED = re.compile(r"(.+)@([0-9]{1,9})")


def save(
    name: str,
    paths: Sequence[Path],
    store: str | None,
    read: Callable[[Sequence[Path]], Run] = runs.load,
) -> Entry:
    """Save the run of `paths`, loaded by `read`, as a new version of baseline `name`.

    Raises UsageError if the name is not valid, or the reports are empty, StoreError if a report or
    the store cannot be read, and OutputError if the store cannot be written.
    """
    _refuse_version(name)
    new = to_save(name, read(paths))
    with opened(store, create=True) as baselines:
        return baselines.save(new)


def to_save(name: str, run: Run) -> NewBaseline:
    """Return `run` as a new version of baseline `name`.

    Raises UsageError if the name is not valid, or the run is empty.
    """
    _refuse_version(name)
    if not len(run.operations) and not run.totals:
        raise UsageError(f"{run.label} is empty: it cannot be a baseline", slug="empty-report")
    samples = len(run.totals[TOTAL]) if TOTAL in run.totals else run.operations.forward_ns.shape[1]
    return NewBaseline(
        name=name,
        label=run.label,
        document=dump(run),
        device=run.facts.get("device"),
        commit=run.facts.get("git_commit"),
        samples=samples,
    )


def save_all(new: Sequence[NewBaseline], store: str | None) -> list[Entry]:
    """Save several runs, each as a new version of its baseline.

    Raises UsageError if a name is not valid, StoreError if the store cannot be read, and
    OutputError if the store cannot be written.
    """
    with opened(store, create=True) as baselines:
        return [baselines.save(one) for one in new]


def _refuse_version(name: str) -> None:
    if _VERSIONED.fullmatch(name):
        raise UsageError(
            f"{name!r} names a version; `save` numbers versions by itself",
            hint=f"save it as {name.rpartition('@')[0]}",
            slug="wrong-baseline-name",
        )


def entries(store: str | None, name: str | None = None) -> list[Entry]:
    """Return the versions of all baselines, or of one, oldest first."""
    with opened(store) as baselines:
        found = baselines.entries(name)
        if name is not None and not found:
            baselines.document(name)  # raises an error that lists the names
        return found


def load_baseline(name: str, store: str | None) -> Run:
    """Return the run of baseline `name`; `NAME@2` is its second version.

    Raises UsageError if there is no baseline of that name or version, and StoreError if the store
    or the baseline is unreadable.
    """
    with opened(store) as baselines:
        versioned = _VERSIONED.fullmatch(name)
        if versioned is None:
            entry, data = baselines.document(name)
        else:
            entry, data = baselines.document(versioned[1], int(versioned[2]))
        where = f"baseline {entry.name}@{entry.version} of {baselines.place}"
    run = load(data, where=where)
    return run.with_label(f"baseline {entry.name}@{entry.version}")


def versions(name: str, store: str | None, last: int) -> list[tuple[Entry, Run]]:
    """Return the newest `last` versions of baseline `name`, oldest first.

    Raises UsageError if there is no baseline of that name, and StoreError if the store or the
    baseline is unreadable.
    """
    found = []
    with opened(store) as baselines:
        known = baselines.entries(name)
        if not known:
            baselines.document(name)  # raises an error that lists the names
        for entry in known[-last:]:
            _, data = baselines.document(name, entry.version)
            label = f"baseline {entry.name}@{entry.version}"
            run = load(data, where=f"{label} of {baselines.place}")
            found.append((entry, run.with_label(label)))
    return found


@contextmanager
def opened(store: str | None, *, create: bool = False) -> Iterator[BaselineStore]:
    """Yield the open store; by default the one in the current directory."""
    baselines = open_store(store or DEFAULT_STORE, create=create)
    try:
        yield baselines
    finally:
        baselines.close()
