"""Save reports as baselines and load them to compare with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unified_prof.analysis.compare import runs
from unified_prof.analysis.compare.comparable import TOTAL, Run
from unified_prof.baselines import document
from unified_prof.baselines.migrate import open_store
from unified_prof.baselines.store import BaselineStore, Entry, NewBaseline
from unified_prof.errors import UsageError

DEFAULT_STORE = ".uprof/baselines.sqlite"
"""In the folder where the command runs; CI caches it, or names a shared store."""

_VERSIONED = re.compile(r"(.+)@([0-9]{1,9})")


def save(
    name: str,
    paths: Sequence[Path],
    store: str | None,
    read: Callable[[Sequence[Path]], Run] = runs.load,
) -> Entry:
    """Save the run of `paths`, as `read` gives it, as the newest version of baseline `name`.

    Raises:
        UsageError: the name cannot be one, or the reports hold nothing to compare with.
        StoreError: a report or the store cannot be read.
        OutputError: the store cannot be written.
    """
    _refuse_version(name)
    new = to_save(name, read(paths))
    with opened(store, create=True) as baselines:
        return baselines.save(new)


def to_save(name: str, run: Run) -> NewBaseline:
    """Return `run` as what a store takes as the newest version of baseline `name`.

    Raises:
        UsageError: the name cannot be one, or the run holds nothing to compare with.
    """
    _refuse_version(name)
    if not len(run.operations) and not run.totals:
        raise UsageError(f"{run.label} is empty: it cannot be a baseline", slug="empty-report")
    samples = len(run.totals[TOTAL]) if TOTAL in run.totals else run.operations.forward_ns.shape[1]
    return NewBaseline(
        name=name,
        label=run.label,
        document=document.dump(run),
        device=run.facts.get("device"),
        commit=run.facts.get("git_commit"),
        samples=samples,
    )


def save_all(new: Sequence[NewBaseline], store: str | None) -> list[Entry]:
    """Save several runs, each as the newest version of its baseline.

    Raises:
        UsageError: a name cannot be one.
        StoreError: the store cannot be read.
        OutputError: it cannot be written.
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
            baselines.document(name)  # says what there is
        return found


def load(name: str, store: str | None) -> Run:
    """Return the run of baseline `name`; `NAME@2` is its second version.

    Raises:
        UsageError: there is none of that name or version.
        StoreError: the store cannot be read, or what it holds is damaged.
    """
    with opened(store) as baselines:
        versioned = _VERSIONED.fullmatch(name)
        if versioned is None:
            entry, data = baselines.document(name)
        else:
            entry, data = baselines.document(versioned[1], int(versioned[2]))
        where = f"baseline {entry.name}@{entry.version} of {baselines.place}"
    run = document.load(data, where=where)
    return run.named(f"baseline {entry.name}@{entry.version}")


def versions(name: str, store: str | None, last: int) -> list[tuple[Entry, Run]]:
    """Return the newest versions of baseline `name`, so many at most, the oldest first.

    Raises:
        UsageError: there is none of that name.
        StoreError: the store cannot be read, or what it holds is damaged.
    """
    found = []
    with opened(store) as baselines:
        known = baselines.entries(name)
        if not known:
            baselines.document(name)  # says what there is
        for entry in known[-last:]:
            _, data = baselines.document(name, entry.version)
            label = f"baseline {entry.name}@{entry.version}"
            run = document.load(data, where=f"{label} of {baselines.place}")
            found.append((entry, run.named(label)))
    return found


@contextmanager
def opened(store: str | None, *, create: bool = False) -> Iterator[BaselineStore]:
    """Yield the store, by default the one of this folder."""
    baselines = open_store(store or DEFAULT_STORE, create=create)
    try:
        yield baselines
    finally:
        baselines.close()
