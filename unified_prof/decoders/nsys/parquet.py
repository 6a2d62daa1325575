"""`nsys export --type parquetdir`: the same tables, a Parquet file each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unified_prof.columns import Cells
from unified_prof.errors import RawFormatError

_ENDING = ".parquet"
_ROWS = 1 << 14


class ParquetTables:
    """`columns.Tables` of a folder of Parquet files."""

    def __init__(self, folder: Path) -> None:
        """Look what there is.

        Raises:
            RawFormatError: the folder cannot be listed, or pyarrow is not installed.
        """
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise RawFormatError(
                f"{folder}: reading Parquet files needs pyarrow",
                hint="pip install 'unified-prof[parquet]', or export with nsys export "
                "--type sqlite",
                slug="missing-package",
            ) from None
        self._parquet: Any = parquet
        self._unreadable: Counter[str] = Counter()
        try:
            files = sorted(folder.glob(f"*{_ENDING}"))
        except OSError as err:
            raise RawFormatError(
                f"cannot list {folder}: {err.strerror}", slug="cannot-read"
            ) from err
        self._files = {file.name.removesuffix(_ENDING): file for file in files}
        self._columns: dict[str, tuple[str, ...]] = {}

    @property
    def names(self) -> Sequence[str]:
        """What tables there are."""
        return tuple(self._files)

    @property
    def unreadable(self) -> Mapping[str, int]:
        """How many values so far were not what was asked for."""
        return self._unreadable

    def columns(self, table: str) -> Collection[str]:
        """Return the names of the columns of `table`."""
        if table not in self._files:
            return ()
        if table not in self._columns:
            with self._open(table) as file:
                self._columns[table] = tuple(file.schema_arrow.names)
        return self._columns[table]

    def slices(
        self,
        table: str,
        numbers: Mapping[str, int],
        *,
        reals: Sequence[str] = (),
        texts: Sequence[str] = (),
        only: tuple[str, Collection[int] | None] | None = None,
    ) -> Iterator[Cells]:
        """Yield the rows of `table`, see `columns.Tables`."""
        there = self.columns(table)
        if not there or (only is not None and only[0] not in there):
            return
        wanted = [name for name in (*numbers, *reals, *texts) if name in there]
        read = [*dict.fromkeys([*wanted, *([] if only is None else [only[0]])])]
        with self._open(table) as file:
            batches = file.iter_batches(batch_size=_ROWS, columns=read or [*there][:1])
            while (batch := self._next(table, batches)) is not None:
                if only is not None:
                    batch = batch.filter(_mask(batch.column(only[0]), only[1]))
                if batch.num_rows:
                    yield self._cells(table, batch, wanted, numbers, reals, texts)

    def _cells(
        self,
        table: str,
        batch: Any,
        wanted: Sequence[str],
        numbers: Mapping[str, int],
        reals: Sequence[str],
        texts: Sequence[str],
    ) -> Cells:
        rows = batch.num_rows
        cells: dict[str, Any] = {}
        for name, default in numbers.items():
            cells[name] = (
                self._whole(f"{table}.{name}", batch.column(name), default)
                if name in wanted
                else np.full(rows, default, np.int64)
            )
        for name in reals:
            cells[name] = (
                self._real(f"{table}.{name}", batch.column(name))
                if name in wanted
                else np.full(rows, np.nan)
            )
        for name in texts:
            values = batch.column(name).to_pylist() if name in wanted else [None] * rows
            cells[name] = [value if value is None else _text(value) for value in values]
        return cells

    def _whole(self, place: str, column: Any, default: int) -> Any:
        import pyarrow

        try:
            if pyarrow.types.is_uint64(column.type):  # what does not fit wraps, as in SQLite
                values = column.fill_null(0).to_numpy(zero_copy_only=False).view(np.int64)
                return np.where(column.is_null().to_numpy(zero_copy_only=False), default, values)
            column = column.cast(pyarrow.int64()).fill_null(default)
            return column.to_numpy(zero_copy_only=False).astype(np.int64)
        except (pyarrow.ArrowException, ValueError, TypeError):
            self._unreadable[place] += len(column)
            return np.full(len(column), default, np.int64)

    def _real(self, place: str, column: Any) -> Any:
        import pyarrow

        try:
            values = column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
            return values.astype(np.float64)
        except (pyarrow.ArrowException, ValueError, TypeError):
            self._unreadable[place] += len(column)
            return np.full(len(column), np.nan)

    def _open(self, table: str) -> Any:
        path = self._files[table]
        try:
            return self._parquet.ParquetFile(path)
        except (OSError, ValueError) as err:  # pyarrow's own errors are ValueErrors
            raise _damaged(path, err) from err

    def _next(self, table: str, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, None)
        except (OSError, ValueError) as err:
            raise _damaged(self._files[table], err) from err


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _damaged(path: Path, err: Exception) -> RawFormatError:
    words = str(err).splitlines()[0][:200] if str(err) else type(err).__name__
    return RawFormatError(f"{path} cannot be read: {words}", slug="cannot-read")


def _mask(column: Any, values: Collection[int] | None) -> Any:
    import pyarrow
    import pyarrow.compute as compute

    if values is None:
        return compute.is_valid(column)
    return compute.is_in(column, value_set=pyarrow.array(sorted(values), column.type))
