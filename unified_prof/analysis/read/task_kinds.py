"""What a device task is, judged by the text of its type alone."""

from __future__ import annotations

import re

from unified_prof.analysis.calls import COMMUNICATION, COPY, KERNEL, OTHER
from unified_prof.analysis.read.strings import NOTHING_KNOWN

WAIT = 6
"""A task that only waits, records or notifies: no work (continues the numbers of `calls.KINDS`)."""

# What the text of a task's type says about it. Decides only where no table knows the task.
_WAITS = re.compile(
    r"wait|record|event|notify|(?<!a)sync|barrier|profiling|maintenance|write[ _]?value|capture|"
    r"label|switch|nop\b|mstx|place_?holder|model_(?:execute|end|exit)",
    re.IGNORECASE,
)
_COPIES = re.compile(r"mem ?cpy|mem ?set|sdma|pcie|copy|async_?dma", re.IGNORECASE)
_KERNELS = re.compile(
    r"kernel|ai_?core|ai_?cpu|ai_?vec|vector|cube|mix_ai|dsa|dvpp|stars_common|ffts|fusion",
    re.IGNORECASE,
)
_COLLECTIVES = re.compile(r"hccl|nccl|rccl|communication|rdma|\bccu", re.IGNORECASE)


def kind_of_type(text: str | None) -> int:
    """Return what a task is, judged by the text of its type alone."""
    if text in NOTHING_KNOWN:
        return OTHER
    assert text is not None
    if _COLLECTIVES.search(text):
        return COMMUNICATION
    if _COPIES.search(text):
        return COPY
    if _WAITS.search(text):
        return WAIT
    return KERNEL if _KERNELS.search(text) else OTHER
