"""Slices of a trace decoded at once: events of known categories straight to their arguments' types.

`args` otherwise stay text until the kind is known and are decoded again, which takes a third of the
time of reading. Where a slice holds anything else (a category without a type here, another phase,
arguments of another shape, parameters of a collective, which are kept as text), it is decoded the
general way: what comes out is the same.
"""

from __future__ import annotations

from typing import Any, Literal, Union

import msgspec

from unified_prof.decoders.kineto import events as ev

_MOST_SKIPPED = 64

_NO_COLLECTIVE: Any = msgspec.field(default=None, name="Collective name")


class _OperationArgs(ev.OperationArgs, gc=False):
    collective: None = _NO_COLLECTIVE


class _GpuArgs(ev.GpuArgs, gc=False):
    collective: None = _NO_COLLECTIVE


_COMPLETE: dict[type[msgspec.Struct], tuple[str, ...]] = {
    _OperationArgs: ("cpu_op", "user_annotation"),
    ev.CallArgs: ("cuda_runtime", "cuda_driver", "hip_runtime"),
    _GpuArgs: ("kernel", "gpu_memcpy", "gpu_memset"),
    ev.SyncArgs: ("cuda_sync",),
    ev.ExternalIdArgs: ("gpu_user_annotation",),
}
_WITHOUT_ARGUMENTS = ("python_function", "python_gc")
_FLOWS = ("ac2g", "fwdbwd", "async")

_Fields = list[Any]
_PLACE: _Fields = [("name", ev.Scalar, ""), ("pid", ev.Scalar, None), ("tid", ev.Scalar, None)]
_TIMES: _Fields = [("ts", msgspec.Raw, ev.ABSENT), ("dur", msgspec.Raw, ev.ABSENT)]


def _struct(category: str, fields: _Fields) -> Any:
    return msgspec.defstruct(
        f"Known_{category}",
        fields,
        namespace={"cat": category},
        tag_field="cat",
        tag=category,
        gc=False,
    )


def _structs() -> list[Any]:
    whole: _Fields = [("ph", Literal["X"])]
    made = [_struct(one, [*whole, *_PLACE, *_TIMES]) for one in _WITHOUT_ARGUMENTS]
    for args, categories in _COMPLETE.items():
        given = ("args", args, msgspec.field(default_factory=args))
        made += [_struct(one, [*whole, *_PLACE, *_TIMES, given]) for one in categories]
    made.append(
        _struct(
            "cpu_instant_event",
            [("ph", Literal["i"]), *_PLACE, *_TIMES, ("args", msgspec.Raw, ev.ABSENT)],
        )
    )
    return made + [_struct(one, [("ph", Literal["s", "t", "f"])]) for one in _FLOWS]


_decode = msgspec.json.Decoder(list[Union[tuple(_structs())]]).decode  # type: ignore[misc]  # noqa: UP007


class KnownSlices:
    """Decodes slices of known events; tries less often in traces that have few of them."""

    def __init__(self) -> None:
        self.decoded = 0
        """Slices that were."""
        self._failures = 0
        self._skip = 0

    def decode(self, text: memoryview) -> list[ev.Event] | None:
        """Return the events of a JSON list, None where that has to be done the general way."""
        if self._skip:
            self._skip -= 1
            return None
        try:
            events: list[ev.Event] = _decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._skip = min(self._failures, _MOST_SKIPPED)
            self._failures = 2 * self._failures + 1
            return None
        self._failures = 0
        self.decoded += 1
        return events
