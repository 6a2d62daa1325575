"""Binary payloads of NVTX events: what programs attach beside the text, by a schema of theirs.

A payload is a header of 32 bytes (domain, schema, length, length with the header) and a C struct,
whose fields NVTX_PAYLOAD_SCHEMA_ENTRIES lists. `nsys export --include-blobs=true` has them.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

from unified_prof.columns import Tables
from unified_prof.decoders.gpu.numbers import MISSING
from unified_prof.decoders.nsys.fields import NO_ID

SCHEMAS = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
ENUMS = "NVTX_PAYLOAD_ENUM_ENTRIES"

_HEADER = struct.Struct("<IIIIQQ")
_LONGEST_HEX = 1 << 16
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){32,}")
_MOST_FIELDS = 100_000

# nvtxPayloadEntryType: C's types on a 64-bit machine, then those of known width.
_FORMATS = {
    1: "c",
    3: "<h",
    4: "<H",
    5: "<i",
    6: "<I",
    7: "<q",
    8: "<Q",
    9: "<q",
    10: "<Q",
    11: "<b",
    12: "<B",
    13: "<h",
    14: "<H",
    15: "<i",
    16: "<I",
    17: "<q",
    18: "<Q",
    2: "<B",
    19: "<f",
    20: "<d",
    22: "<Q",
    23: "<Q",
}
_FIRST_OF_PROGRAM = 1 << 24
"""Types from here on are schemas and enumerations of the program."""
_ENUM_FORMAT = "<i"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: int
    offset: int


class Payloads:
    """Decodes the payloads of one export."""

    def __init__(self, tables: Tables) -> None:
        self._schemas: dict[tuple[int, int], dict[int, _Field]] = {}
        self._enums: dict[tuple[int, int], dict[int, str]] = {}
        wanted = {"domainId": NO_ID, "schemaId": NO_ID, "idx": MISSING, "type": MISSING}
        count = 0
        for cells in tables.slices(SCHEMAS, {**wanted, "offset": 0}, texts=["name"]):
            for domain, schema, place, kind, offset, name in zip(
                *(cells[one].tolist() for one in (*wanted, "offset")), cells["name"], strict=True
            ):
                count += 1
                if count <= _MOST_FIELDS:
                    fields = self._schemas.setdefault((domain, schema), {})
                    fields[place] = _Field(name or f"field {place}", kind, offset)
        for cells in tables.slices(
            ENUMS, {"domainId": NO_ID, "schemaId": NO_ID, "value": NO_ID}, texts=["name"]
        ):
            for domain, schema, value, name in zip(
                *(cells[one].tolist() for one in ("domainId", "schemaId", "value")),
                cells["name"],
                strict=True,
            ):
                if name is not None and len(self._enums) <= _MOST_FIELDS:
                    self._enums.setdefault((domain, schema), {})[value] = name

    def domains_with(self, field: str) -> set[int]:
        """Return the domains of which a schema has a field of this name."""
        return {
            domain
            for (domain, _), fields in self._schemas.items()
            if any(one.name == field for one in fields.values())
        }

    def decoded(self, text: str | None) -> dict[str, Any] | None:
        """Return the fields of a payload; None where it does not fit any schema.

        Args:
            text: The payload as `columns.Tables` gives blobs, invalid UTF-8 escaped, or as hex.
        """
        data = _bytes(text)
        if data is None or len(data) < _HEADER.size:
            return None
        domain, _, schema, _, length, whole = _HEADER.unpack_from(data)
        fields = self._schemas.get((domain, schema))
        if fields is None or whole != len(data) or _HEADER.size + length != whole:
            return None
        found: dict[str, Any] = {}
        for place in sorted(fields):
            value = self._value(domain, fields[place], data[_HEADER.size :])
            if value is not None:
                found[fields[place].name] = value
        return found

    def _value(self, domain: int, field: _Field, data: bytes) -> Any:
        enum = self._enums.get((domain, field.kind))
        is_enum = enum is not None or field.kind >= _FIRST_OF_PROGRAM
        form = _ENUM_FORMAT if is_enum else _FORMATS.get(field.kind)
        if form is None or not 0 <= field.offset <= len(data) - struct.calcsize(form):
            return None
        (value,) = struct.unpack_from(form, data, field.offset)
        if isinstance(value, bytes):
            return value.decode("latin-1")
        return value if enum is None else enum.get(value, value)


def _bytes(text: str | None) -> bytes | None:
    r"""Return the bytes that `text` stands for.

    What is no UTF-8 stands there as `\xNN`. A blob may hold such characters itself; its lengths
    do not fit then, and it is not decoded.
    """
    if text is None or len(text) > _LONGEST_HEX:
        return None
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    data = text.encode("utf-8", "surrogatepass")
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), data)
