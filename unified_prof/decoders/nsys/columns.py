"""Converts columns of an export: times, names, processes, threads, devices.

Also reads the output of `nsys export --type parquetdir`, which has one Parquet file per table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.arrays.grouping import NOWHERE, Bools, Ints, Runs, find, mapped
from unified_prof.base.columns import MISSING, NOT_AVAILABLE, Cells, Query, Tables, text_of
from unified_prof.decoders.gpu.rows import NO_TIME, Parts
from unified_prof.errors import RawFormatError, missing_package, system_errors

# Stands for NULL where -1 can be a value.
NO_ID = NO_TIME
_THREAD_BITS = 24
_LOW_BITS = (1 << _THREAD_BITS) - 1
_MAX_CORRELATION = 2**32
_TEXTS_IN_MEMORY_BYTES = 32 << 20
_INT32 = np.iinfo(np.int32)


class Texts:
    """Table StringIds: maps ids to strings; large tables are kept in a temporary file."""

    def __init__(self, tables: Tables) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_TEXTS_IN_MEMORY_BYTES)  # noqa: SIM115
        ids: list[Ints] = []
        sizes: list[Ints] = []
        try:
            for cells in tables.slices("StringIds", {"id": NO_ID}, texts=["value"]):
                encoded = [
                    (text or "").encode("utf-8", "backslashreplace") for text in cells["value"]
                ]
                self._file.write(b"".join(encoded))
                ids.append(cells["id"])
                sizes.append(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        except BaseException:
            self.close()
            raise
        all_ids = np.concatenate(ids) if ids else np.empty(0, np.int64)
        all_sizes = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
        order = np.argsort(all_ids, kind="stable")
        self._ids = all_ids[order]
        self._sizes = all_sizes[order]
        self._places = (np.cumsum(all_sizes) - all_sizes)[order]

    def __getitem__(self, number: int) -> str | None:
        """Return the string of an id, None if there is none."""
        (at,) = find(self._ids, np.array([number]))
        if at == NOWHERE:
            return None
        self._file.seek(int(self._places[at]))
        return self._file.read(int(self._sizes[at])).decode("utf-8", "replace")

    def close(self) -> None:
        """Remove the temporary file."""
        self._file.close()


class Fields:
    """Converts the columns of one export to columns of `Parts`."""

    def __init__(self, parts: Parts, tables: Tables, texts: Texts) -> None:
        self.parts, self.tables, self.texts = parts, tables, texts
        self._names: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        self._pids: dict[int, int | str] = {}
        self._contexts: dict[tuple[int, int], int] = {}
        self._devices = _device_map(tables)

    def names(self, ids: Ints) -> Ints:
        """Convert string ids of the export to ids of the string pool."""
        return _mapped(ids, self._names, self._intern)

    def _intern(self, number: int) -> int:
        text = None if number == MISSING else self.texts[number]
        if text is None and number != MISSING:
            self.parts.sink.anomaly("unknown_text", 1, f"no StringIds.id {number}")
        return self.parts.names[NOT_AVAILABLE if text is None else text]

    def process_id(self, packed: int) -> int | str:
        """Return the process id in a packed id.

        Processes of two virtual machines can have the same id; the second process gets a string as
        id.
        """
        upper = packed >> _THREAD_BITS
        if upper not in self._pids:
            pid = upper & _LOW_BITS
            taken = pid in self._pids.values()
            self._pids[upper] = f"{pid} of VM {upper >> _THREAD_BITS & 0xFF}" if taken else pid
        return self._pids[upper]

    def threads(self, packed: Ints, *, active: bool = True) -> Ints:
        """Return thread numbers; if `active`, the events count for the choice of main process."""
        numbers = _mapped(packed, self._threads, self._thread)
        if active:
            known = numbers[numbers != MISSING]
            self.parts.activity.update(dict(enumerate(np.bincount(known).tolist())))
        return numbers

    def on_threads(self, packed: Ints, valid: Bools, what: str) -> tuple[Ints, Bools]:
        """Return thread numbers and a mask of the rows that have one; the others are counted."""
        numbers = self.threads(packed)
        has_thread = numbers != MISSING
        self.parts.count_skipped("event_without_thread", valid & ~has_thread, what)
        return numbers, valid & has_thread

    def _thread(self, packed: int) -> int:
        if packed == NO_ID:
            return MISSING
        return self.parts.threads[self.process_id(packed), packed & _LOW_BITS]

    def has_thread(self, packed: int) -> bool:
        """Return True if the thread of a packed id has events."""
        return packed in self._threads

    def has_process(self, packed: int) -> bool:
        """Return True if the process of a packed id has events."""
        return packed >> _THREAD_BITS in self._pids

    def name_thread(self, packed: int, name: str) -> None:
        """Set the name of a thread."""
        key = (self.process_id(packed), packed & _LOW_BITS)
        self.parts.threads.thread_names[key] = name

    def processes(self, packed: Ints) -> Ints:
        """Return consecutive process numbers for packed ids.

        If the export does not contain process ids, the only known process is used, or MISSING if
        there are several.
        """
        upper = packed >> _THREAD_BITS
        numbers = _mapped(upper, self._processes, self._process)
        unknown = packed == NO_ID
        if unknown.any():
            numbers[unknown] = 0 if self._known_processes() <= 1 else MISSING
        return numbers

    def _process(self, upper: int) -> int:
        return MISSING if upper == NO_ID >> _THREAD_BITS else self._known_processes()

    def _known_processes(self) -> int:
        return sum(number != MISSING for number in self._processes.values())

    def process_ids(self, packed: Ints) -> Ints:
        """Return process ids as integers, MISSING if the id is a string or unknown."""
        return _mapped(packed >> _THREAD_BITS << _THREAD_BITS, {}, self._process_id)

    def _process_id(self, packed: int) -> int:
        if packed == NO_ID:
            return MISSING
        pid = self.process_id(packed)
        return pid if isinstance(pid, int) else MISSING

    def correlations(self, processes: Ints, correlations: Ints) -> Ints:
        """Combine correlation ids with process numbers, so that they are unique in the export.

        CUPTI numbers the calls of each process separately.
        """
        fits = (correlations > 0) & (correlations < _MAX_CORRELATION) & (processes != MISSING)
        return np.where(fits, processes * _MAX_CORRELATION + correlations, MISSING)

    def devices(self, packed: Ints, ordinals: Ints) -> Ints:
        """Return GPU numbers, given the device ordinals of each process."""
        ordinals = self.small(ordinals, "device")
        if not self._devices:
            return ordinals
        pids = (packed >> _THREAD_BITS) & _LOW_BITS
        devices = ordinals.copy()
        for (pid, ordinal), device in self._devices.items():
            devices[(pids == pid) & (ordinals == ordinal)] = device
        return devices

    def note_contexts(self, packed: Ints, contexts: Ints, devices: Ints) -> None:
        """Note the devices of CUDA contexts, as device tasks have them."""
        rows = Runs(contexts, packed).starts
        pids = (packed[rows] >> _THREAD_BITS) & _LOW_BITS
        keys = zip(pids.tolist(), contexts[rows].tolist(), strict=True)
        self._contexts.update(zip(keys, devices[rows].tolist(), strict=True))

    def devices_of_contexts(self, packed: Ints, contexts: Ints, ordinals: Ints) -> Ints:
        """Return GPU numbers of synchronizations, which Nsight Systems records for device 0."""
        devices = self.devices(packed, ordinals).copy()
        pids = (packed >> _THREAD_BITS) & _LOW_BITS
        for (pid, context), device in self._contexts.items():
            devices[(pids == pid) & (contexts == context)] = device
        return devices

    def small(self, values: Ints, what: str) -> Ints:
        """Return 32-bit ids; larger values are counted and become MISSING."""
        fits = (values >= _INT32.min) & (values <= _INT32.max)
        if fits.all():
            return values
        self.parts.sink.anomaly("unreadable_number", int(np.count_nonzero(~fits)), what)
        return np.where(fits, values, MISSING)


def _device_map(tables: Tables) -> dict[tuple[int, int], int]:
    """Return (process id, CUDA ordinal) -> GPU number, empty if not exported."""
    wanted = {"pid": NO_ID, "cudaId": NO_ID, "gpuId": NO_ID}
    found: dict[tuple[int, int], int] = {}
    for cells in tables.slices("TARGET_INFO_CUDA_DEVICE", wanted):
        for pid, ordinal, device in zip(*(cells[name].tolist() for name in wanted), strict=True):
            if NO_ID not in (pid, ordinal) and 0 <= device <= _INT32.max:
                found[pid, ordinal] = device
    return found


def _mapped(values: Ints, known: dict[int, int], make: Any) -> Ints:
    """Return the entry of `known` for each value; missing entries are created with `make`."""

    def entry(value: int) -> int:
        found = known.get(value)
        if found is None:
            found = known[value] = make(value)
        return found

    return mapped(entry, values)


_ENDING = ".parquet"
# Bases of the exceptions that pyarrow raises for a damaged file.
_OF_PYARROW = (OSError, ValueError, NotImplementedError, KeyError, TypeError, RuntimeError)
_ROWS = 1 << 14


class ParquetTables(Tables):
    """Implementation of `columns.Tables` for a directory of Parquet files."""

    def __init__(self, directory: Path) -> None:
        """List the tables.

        Raises RawFormatError if the directory cannot be listed, or pyarrow is not installed.
        """
        with missing_package(
            f"{directory}: reading Parquet files needs pyarrow",
            hint="pip install 'unified-prof[parquet]', or export with nsys export --type sqlite",
            kind=RawFormatError,
        ):
            import pyarrow.parquet as parquet
        self._parquet: Any = parquet
        with system_errors(RawFormatError, f"cannot list {directory}", slug="cannot-read"):
            files = sorted(directory.glob(f"*{_ENDING}"))
        self._files = {file.name.removesuffix(_ENDING): file for file in files}
        super().__init__(self._files)
        self._columns: dict[str, tuple[str, ...]] = {}

    def columns(self, table: str) -> Collection[str]:
        """Return the names of the columns of `table`."""
        if table not in self._files:
            return ()
        if table not in self._columns:
            with self._open(table) as file, _reading(self._files[table]):
                names = tuple(file.schema_arrow.names)
            if len({*names}) < len(names):
                raise RawFormatError(
                    f"{self._files[table]} has columns of the same name", slug="damaged-recording"
                )
            self._columns[table] = names
        return self._columns[table]

    def count(self, table: str) -> int:
        """Return the number of rows of `table`."""
        with self._open(table) as file:
            return int(file.metadata.num_rows)

    def read(self, query: Query) -> Iterator[Cells]:
        """Yield the rows of a table; see `columns.Tables`."""
        read = {*query.found} if query.only is None else {*query.found, query.only[0]}
        with self._open(query.table) as file:
            columns = sorted(read) or [*query.existing][:1]
            batches = file.iter_batches(batch_size=_ROWS, columns=columns)
            while (batch := self._next(query.table, batches)) is not None:
                if query.only is not None:
                    name, values = query.only
                    batch = batch.filter(_mask(batch.column(name), values))
                if batch.num_rows:
                    yield self._cells(query, batch)

    def _cells(self, query: Query, batch: Any) -> Cells:
        cells = query.missing_columns(batch.num_rows)
        for name in query.found:
            place, column = f"{query.table}.{name}", batch.column(name)
            if name in query.numbers:
                cells[name] = self._integers(place, column, query.numbers[name])
            elif name in query.reals:
                cells[name] = self._floats(place, column)
            else:
                cells[name] = list(map(text_of, column.to_pylist()))
        return cells

    def _integers(self, place: str, column: Any, default: int) -> Any:
        import pyarrow

        try:
            if pyarrow.types.is_uint64(column.type):  # large values wrap, as in SQLite
                values = column.fill_null(0).to_numpy(zero_copy_only=False).view(np.int64)
                return np.where(column.is_null().to_numpy(zero_copy_only=False), default, values)
            column = column.cast(pyarrow.int64()).fill_null(default)
            return column.to_numpy(zero_copy_only=False).astype(np.int64)
        except (pyarrow.ArrowException, ValueError, TypeError):
            self.unreadable[place] += len(column)
            return np.full(len(column), default, np.int64)

    def _floats(self, place: str, column: Any) -> Any:
        import pyarrow

        try:
            values = column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
            return values.astype(np.float64)
        except (pyarrow.ArrowException, ValueError, TypeError):
            self.unreadable[place] += len(column)
            return np.full(len(column), np.nan)

    def _open(self, table: str) -> Any:
        path = self._files[table]
        if not path.is_file():  # opening a pipe would block
            raise RawFormatError(f"{path} is not a regular file", slug="not-a-regular-file")
        with _reading(path):
            return self._parquet.ParquetFile(path)

    def _next(self, table: str, batches: Iterator[Any]) -> Any:
        with _reading(self._files[table]):
            return next(batches, None)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except _OF_PYARROW as err:
        reason = str(err).splitlines()[0][:200] if str(err) else type(err).__name__
        raise RawFormatError(f"{path} cannot be read: {reason}", slug="cannot-read") from err


def _mask(column: Any, values: Collection[int] | None) -> Any:
    import pyarrow
    import pyarrow.compute as compute

    if values is None:
        return compute.is_valid(column)
    return compute.is_in(column, value_set=pyarrow.array(sorted(values), column.type))
