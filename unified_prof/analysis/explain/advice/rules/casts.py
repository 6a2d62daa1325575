"""Kernels that compute nothing: casts, copies on the device, changes of layout and of format."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.analysis.calls import KERNEL
from unified_prof.analysis.explain.advice.case import Case, Flags
from unified_prof.analysis.explain.advice.limits import LEAST_SHARE, percent
from unified_prof.analysis.finding import Finding
from unified_prof.analysis.read.framework import OTHER_PASS

CASTS_AND_COPIES = "casts_and_copies"
FORMAT_CONVERSIONS = "format_conversions"

COMPUTE_SHARE = 0.05
"""Of the time of kernels; the advisor's alarm, and for formats its rule."""

_OPERATIONS = re.compile(r"^aten::(?:to|_to_copy|copy_|contiguous|clone)$")
_KERNELS = re.compile(
    r"direct_copy_kernel|transpose_|nchwto|nhwcto|tonhwc|tonchw|convert_tensor", re.I
)
_FORMATS = re.compile(r"^(?:TransData|Cast|Transpose|TransposeD|StridedSlice\w*)$")


def _share(case: Case, chosen: Flags) -> float:
    compute = case.compute_ns
    own = case.within(case.pieces.start_ns[chosen], case.pieces.end_ns[chosen]).total_ns
    return own / compute if compute else 0.0


def casts_and_copies(case: Case) -> Iterator[Finding]:
    """Copies, casts and transpositions by kernels, apart from an optimizer's."""
    chosen = (case.pieces.kind == KERNEL) & ~case.named(case.operator, _FORMATS)
    chosen &= case.named(case.operator, _OPERATIONS) | case.named(case.kernel, _KERNELS)
    if case.recording.framework is not None:
        chosen &= case.recording.work.launches[1][case.pieces.row] != OTHER_PASS
    share = _share(case, chosen)
    cost = case.gain(chosen)
    if share < COMPUTE_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        CASTS_AND_COPIES,
        cost,
        f"{int(chosen.sum()):,} kernels only copy, cast or transpose: {percent(share)} of the time "
        "of all kernels",
        advice="let the producer write what the consumer reads: one layout (channels_last) and one "
        "type throughout, no .contiguous() or .to() inside the step",
        sure="likely",
        figures={"kernels": int(chosen.sum()), "share_of_compute": round(share, 4)},
        evidence=case.rows(np.flatnonzero(chosen)),
    )


def format_conversions(case: Case) -> Iterator[Finding]:
    """TransData, Cast and their like on an NPU."""
    chosen = (case.pieces.kind == KERNEL) & case.named(case.operator, _FORMATS)
    share = _share(case, chosen)
    cost = case.gain(chosen)
    if share < COMPUTE_SHARE or case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        FORMAT_CONVERSIONS,
        cost,
        f"{int(chosen.sum()):,} conversions of format or type take {percent(share)} of the time of "
        "all kernels",
        advice="keep one format and type between operators: torch.npu.config.allow_internal_format "
        "= False or weights converted once; cast once, before the loop",
        sure="likely",
        figures={"kernels": int(chosen.sum()), "share_of_compute": round(share, 4)},
        evidence=case.rows(np.flatnonzero(chosen)),
    )
