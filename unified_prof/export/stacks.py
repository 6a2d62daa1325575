"""Weighted call stacks as files for flame graph viewers.

* collapsed: a line `frame;frame;frame weight` per stack, for Brendan Gregg's scripts
* speedscope: all measures in one file, each a profile of sampled stacks
* pprof: gzipped profile.proto, all measures in one file; its messages are described here and
  encoded by the protobuf package
"""

from __future__ import annotations

import gzip
import json
import posixpath
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from unified_prof.base.text import printable
from unified_prof.errors import missing_package
from unified_prof.recording.breakdowns import Frame, Stacks
from unified_prof.version import VERSION


def write_collapsed(path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
    """Write collapsed stacks; the format has one measure and no title."""
    ((_, stacks),) = parts
    names: dict[Frame, str] = {}
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sample in stacks.samples:
            for frame in sample.frames:
                if frame not in names:
                    names[frame] = _name(frame)
            stack = ";".join(names[frame] for frame in sample.frames)
            file.write(f"{stack} {sample.weight}\n")


def _name(frame: Frame) -> str:
    """Return a frame's name without semicolons and line ends, which are separators."""
    text = frame.name
    if frame.what == "function":
        text = f"{text} ({posixpath.basename(frame.file or '')}:{frame.line})"
    return printable(text.replace(";", ":"))


Written = tuple[str, str | None, int | None]  # Name, file and line.


def as_written(frame: Frame) -> Written:
    """Return the part of a frame that is written: name, file and line."""
    return frame.name, frame.file, frame.line


_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write_speedscope(path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
    """Write each part as a profile with its title as name."""
    numbers: dict[Written, int] = {}
    profiles = []
    for title, stacks in parts:
        samples = [
            [numbers.setdefault(as_written(frame), len(numbers)) for frame in sample.frames]
            for sample in stacks.samples
        ]
        profiles.append(
            {
                "type": "sampled",
                "name": printable(title),
                "unit": stacks.measure.unit,
                "startValue": 0,
                "endValue": stacks.total,
                "samples": samples,
                "weights": [sample.weight for sample in stacks.samples],
            }
        )
    document = {
        "$schema": _SCHEMA,
        "exporter": f"uprof {VERSION}",
        "name": printable(parts[0][0]),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in numbers]},
        "profiles": profiles,
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def _frame(frame: Written) -> dict[str, Any]:
    name, file, line = frame
    found: dict[str, Any] = {"name": printable(name)}
    return found if file is None else found | {"file": printable(file), "line": line}


# Message -> (number, name, type) of each written field; * marks repeated fields.
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "Profile": (
        (1, "sample_type", "*ValueType"),
        (2, "sample", "*Sample"),
        (4, "location", "*Location"),
        (5, "function", "*Function"),
        (6, "string_table", "*string"),
        (13, "comment", "*int64"),
        (14, "default_sample_type", "int64"),
    ),
    "ValueType": ((1, "type", "int64"), (2, "unit", "int64")),
    "Sample": ((1, "location_id", "*uint64"), (2, "value", "*int64")),
    "Location": ((1, "id", "uint64"), (4, "line", "*Line")),
    "Line": ((1, "function_id", "uint64"), (2, "line", "int64")),
    "Function": ((1, "id", "uint64"), (2, "name", "int64"), (4, "filename", "int64")),
}

_SCALARS = {"int64": "TYPE_INT64", "uint64": "TYPE_UINT64", "string": "TYPE_STRING"}


def write_pprof(path: Path, parts: Sequence[tuple[str, Stacks]]) -> None:
    """Write each part as a sample type; a stack has 0 for the types of other parts.

    Raises UsageError if the protobuf package is not installed.
    """
    hint = "run `pip install 'unified-prof[pprof]'`"
    with missing_package("a pprof profile needs the protobuf package", hint=hint):
        profile = _profile_class()()
    texts: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return texts.setdefault(printable(value), len(texts))

    places: dict[Written, int] = {}
    for _, stacks in parts:
        profile.sample_type.add(type=text(stacks.measure.name), unit=text(stacks.measure.unit))
    profile.default_sample_type = text(parts[0][1].measure.name)
    for title, _ in parts:
        profile.comment.append(text(title))
    profile.comment.append(text(f"uprof {VERSION}"))
    for number, (_, stacks) in enumerate(parts):
        for sample in stacks.samples:
            values = [0] * len(parts)
            values[number] = sample.weight
            ids = [places.setdefault(as_written(frame), len(places) + 1) for frame in sample.frames]
            profile.sample.add(location_id=ids[::-1], value=values)
    for (name, file, line), identity in places.items():
        # Without a name of the system's: pprof would cut the parameters off one that is the same.
        profile.function.add(id=identity, name=text(name), filename=text(file or ""))
        place = profile.location.add(id=identity)
        place.line.add(function_id=identity, line=line or 0)
    profile.string_table.extend(texts)
    # No time in the head of the file: the same report gives the same bytes.
    path.write_bytes(gzip.compress(profile.SerializeToString(deterministic=True), mtime=0))


@lru_cache(maxsize=1)
def _profile_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "uprof.pprof"
    file = descriptor_pb2.FileDescriptorProto(
        name="uprof/pprof.proto", package=package, syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, name, kind in fields:
            several, kind = kind.startswith("*"), kind.removeprefix("*")
            field = described.field.add(name=name, number=number)
            field.label = kinds.LABEL_REPEATED if several else kinds.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = getattr(kinds, _SCALARS[kind])
            else:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Profile"))


# Layout -> writer of stacks, each with its title, as one file.
WRITERS: dict[str, Callable[[Path, Sequence[tuple[str, Stacks]]], None]] = {
    "collapsed": write_collapsed,
    "speedscope": write_speedscope,
    "pprof": write_pprof,
}
