"""The text dictionaries of a recording: hash ids to texts, record types to names.

hash_dic has lines `<64-bit decimal>:<text>`, type_info_dic `<level>_<type>:<name>`; a line is
split at its first colon and a later line wins. A hash that is missing shows as its number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unified_prof.columns import Sink, Strings
from unified_prof.decoders.prof.raw.slices import DataFolder

# Names that the collector does not always write.
_KNOWN_TYPES = {27: "DYNAMIC_ENABLE", 28: "DYNAMIC_DISABLE"}
_UINT64_LIMIT = 1 << 64


@dataclass(slots=True)
class Dictionaries:
    """Texts of hash ids and names of record types."""

    hashes: Mapping[int, str] = field(default_factory=dict)
    types: Mapping[tuple[int, int], str] = field(default_factory=dict)
    malformed: int = 0
    """Lines that are no entry."""
    missing: set[int] = field(default_factory=set)
    """Hash ids that were asked for and are not in the dictionary."""

    def text(self, hash_id: int) -> str:
        """Return the text of a hash id, or its decimal number."""
        found = self.hashes.get(hash_id)
        if found is None:
            if hash_id:
                self.missing.add(hash_id)
            return str(hash_id)
        return found

    def knows(self, hash_id: int) -> bool:
        """Tell whether a hash id has a text."""
        return hash_id in self.hashes

    def type_name(self, level: int, type_id: int) -> str:
        """Return the name of a record type, or its decimal number."""
        name = self.types.get((level, type_id))
        return _KNOWN_TYPES.get(type_id, str(type_id)) if name is None else name

    def string_ids(self, strings: Strings, hash_ids: NDArray[Any]) -> NDArray[np.int64]:
        """Intern the texts of a column of hash ids; each distinct id is looked up once."""
        distinct, inverse = np.unique(np.asarray(hash_ids, np.uint64), return_inverse=True)
        ids = strings.intern_all(self.text(int(value)) for value in distinct.tolist())
        return np.asarray(ids, np.int64)[inverse]


def report_gaps(dictionaries: Dictionaries, sink: Sink) -> None:
    """Count what the dictionaries did not have, after everything was looked up."""
    if dictionaries.malformed:
        sink.anomaly("malformed_dictionary_line", dictionaries.malformed, "no number and text")
    if dictionaries.missing:
        sink.anomaly(
            "hash_without_text",
            len(dictionaries.missing),
            f"shown as a number, such as {min(dictionaries.missing)}",
        )


def read_dictionaries(data: DataFolder) -> Dictionaries:
    """Read the dictionaries of a host data folder; missing files give empty ones.

    Raises:
        RawFormatError: a file cannot be read.
    """
    result = Dictionaries()
    hashes: dict[int, str] = {}
    for key, text in _entries(data, "additional.hash_dic", result):
        number = _unsigned(key)
        if number is None:
            result.malformed += 1
        else:
            hashes[number] = text
    types: dict[tuple[int, int], str] = {}
    for key, text in _entries(data, "additional.type_info_dic", result):
        level, separator, type_id = key.partition("_")
        pair = (_unsigned(level), _unsigned(type_id))
        if not separator or pair[0] is None or pair[1] is None:
            result.malformed += 1
        else:
            types[pair[0], pair[1]] = text
    result.hashes, result.types = hashes, types
    return result


def _entries(data: DataFolder, kind: str, result: Dictionaries) -> list[tuple[str, str]]:
    file = data.host_file(kind)
    if file is None:
        return []
    entries = []
    for line in file.lines():
        key, separator, text = line.partition(":")
        if separator:
            entries.append((key, text))
        elif line:
            result.malformed += 1
    return entries


def _unsigned(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    number = int(text)
    return number if number < _UINT64_LIMIT else None
