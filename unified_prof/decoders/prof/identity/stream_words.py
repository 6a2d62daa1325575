"""The stream and task words of device records, in their three notations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXPANDED_PLAIN_SQE = (3, 4)  # place holder and event record keep plain words


def decode_words(
    stream_word: NDArray[Any],
    task_word: NDArray[Any],
    *,
    expanded: bool,
    sqe_type: NDArray[Any] | int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the stream and task ids that the 16-bit words of device records stand for.

    Args:
        stream_word: the stream field of the records.
        task_word: the task field.
        expanded: the recording has an expand_stream_spec with status 1: streams have 15 bits.
        sqe_type: the task type of the records, where they have one.
    """
    stream = np.asarray(stream_word).astype(np.uint32)
    task = np.asarray(task_word).astype(np.uint32)
    if expanded:
        swapped = (stream & 0x8000 != 0) & ~np.isin(sqe_type, _EXPANDED_PLAIN_SQE)
        return (
            np.where(swapped, task, stream) & 0x7FFF,
            np.where(swapped, task & 0x8000 | stream & 0x7FFF, task),
        )
    high_in_stream = stream & 0x1000 != 0
    swapped = ~high_in_stream & (stream & 0x2000 != 0)
    return (
        np.where(swapped, task & 0x0FFF, stream) % np.uint32(2048),
        np.where(
            high_in_stream,
            task & 0x1FFF | stream & 0xE000,
            np.where(swapped, stream & 0x0FFF | task & 0xF000, task),
        ),
    )
