"""Writes records and texts as slices and companion files of a PROF_* directory."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unified_prof.decoders.prof.layouts import HOST_MAGIC, record_type

SLICE_BYTES = 2 << 20

Records = NDArray[Any]


def records(layout: str, count: int, /, **fields: ArrayLike) -> Records:
    """Return `count` records of a layout; unnamed fields are 0."""
    raw = np.zeros(count, f"V{record_type(layout).itemsize}")
    result = raw.view(record_type(layout))
    for name, values in fields.items():
        result[name] = values
    return result


def host_records(layout: str, count: int, level: int, type_id: int, /, **fields: Any) -> Records:
    """Return host records with their envelope filled."""
    fields.setdefault("data_len", record_type(layout).itemsize - 24)
    return records(layout, count, magic=HOST_MAGIC, level=level, type=type_id, **fields)


def concatenated(parts: Iterable[Records]) -> NDArray[np.void]:
    """Return records of the same size as opaque records in one array."""
    raw = [np.ascontiguousarray(part).view(f"V{part.dtype.itemsize}") for part in parts]
    return np.concatenate(raw) if raw else np.zeros(0, "V1")


def write_file(path: Path, content: bytes) -> None:
    """Write a file and the companion file that marks it as complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    done = f"filesize:{len(content)}\nstarttime:0\nendtime  :0\n"
    path.with_name(path.name + ".done").write_text(done)


def write_slices(path: Path, content: bytes, slice_bytes: int) -> None:
    """Write content cut into slices at any byte."""
    for index, begin in enumerate(range(0, max(len(content), 1), slice_bytes)):
        slice_path = path.with_name(f"{path.name}.slice_{index}")
        write_file(slice_path, content[begin : begin + slice_bytes])


class HostFiles:
    """Collects the records of the host's files and writes each file in the order of time."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[str, list[Records]]] = {}

    def add(self, file_name: str, part: Records, time_field: str = "timestamp") -> None:
        """Add records to a file such as `unaging.compact.task_track`."""
        self._parts.setdefault(file_name, (time_field, []))[1].append(part)

    def write(self, folder: Path, slice_records: int) -> None:
        """Write all files; slices hold whole records, like those of the collector."""
        for name, (time_field, parts) in sorted(self._parts.items()):
            order = np.argsort(np.concatenate([part[time_field] for part in parts]), kind="stable")
            ordered = concatenated(parts)[order]
            size = ordered.dtype.itemsize
            per_slice = slice_records or SLICE_BYTES // size
            write_slices(folder / name, ordered.tobytes(), per_slice * size)


class Names:
    """Hash ids of texts and type numbers of names, for the dictionary files."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}
        self._types: dict[tuple[int, str], int] = {}

    def hash_id(self, text: str) -> int:
        """Return the 64-bit id of a text: FNV-1a over its bytes."""
        if text not in self._hashes:
            value = 14695981039346656037
            for byte in text.encode():
                value = (value ^ byte) * 1099511628211 % (1 << 64)
            self._hashes[text] = value
        return self._hashes[text]

    def hash_ids(self, texts: Iterable[str]) -> NDArray[np.uint64]:
        """Return the ids of texts."""
        return np.array([self.hash_id(text) for text in texts], np.uint64)

    def type_id(self, level: int, name: str) -> int:
        """Return the number of a name at a level of the software."""
        return self._types.setdefault((level, name), 1000 + len(self._types))

    def write(self, folder: Path) -> None:
        """Write both dictionaries."""
        hashes = "".join(f"{value}:{text}\n" for text, value in self._hashes.items())
        types = "".join(f"{lvl}_{value}:{name}\n" for (lvl, name), value in self._types.items())
        for kind, content in (("hash_dic", hashes), ("type_info_dic", types)):
            path = folder / f"unaging.additional.{kind}"
            write_slices(path, content.encode(), SLICE_BYTES)
