"""Advice rules about what only NPUs record: AI CPUs, clocks, cores, pipes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from unified_prof.arrays.types import Ints
from unified_prof.explain.advice.device_context import Case
from unified_prof.explain.advice.idle_rows import LEAST_SHARE, WARN_SHARE, duration, percent
from unified_prof.explain.advice.kernel_rules import computing, highest_ratio, on_ai_cpu
from unified_prof.explain.roofline import peaks
from unified_prof.explain.roofline.peaks import Device, known_devices
from unified_prof.recording.model import Finding

AI_CPU = "ai_cpu"
FREQUENCY_DROP = "frequency_drop"
IDLE_CORES = "idle_cores"
NO_PIPE_BUSY = "no_pipe_busy"

# Shorter tasks are dominated by their launch (MindStudio advisor's threshold).
LONG_NS = 20_000
# Minimum drop of the mean clock over tasks (MindStudio advisor's threshold).
DROP_SHARE = 0.05
# Below this share of its highest clock a chip is idle, not throttled (800 of 1800 MHz).
IDLE_CLOCK = 0.5
# Cores that are idle for less than this share of a task are the tail of many blocks.
TAIL_SHARE = 0.05
# A pipe that is less busy does not bound a task (MindStudio advisor's threshold).
BUSY_PIPE = 0.8

# Name of two chip generations, which only differ in their clock.
_OF_TWO = "Ascend910B"
_NAMED = re.compile(r"\((.*)\)$")
_VECTOR = re.compile(r"vector|aiv", re.IGNORECASE)
_RATIO = re.compile(
    r"^ai[cv]_(?!icache).*_ratio\w*$|^(?:mac|vec|mte[123]|scalar|fixpipe)_ratio\w*$"
)


def ai_cpu(case: Case) -> Iterator[Finding]:
    """Find operators that ran on an AI CPU because no AI core kernel supports them."""
    pieces, chosen = case.pieces, on_ai_cpu(case)
    cost = case.gain(chosen)
    if case.share(cost) < WARN_SHARE or int(pieces.length_ns[chosen].max()) < LONG_NS:
        return
    yield case.finding(
        AI_CPU,
        cost,
        f"AI CPU: {int(chosen.sum()):,} operators run on AI CPUs instead of AI cores, "
        f"{percent(case.share(cost))} of the time without overlap",
        advice="change the dtype (avoid float64, int64, complex) or the form (index, nonzero, "
        "unique) of these operators",
        sure="likely",
        figures={"tasks": int(chosen.sum()), "alone_ns": cost},
        evidence=case.rows(np.flatnonzero(chosen)),
    )


def frequency_drop(case: Case) -> Iterator[Finding]:
    """Find AI cores that compute below the highest clock of their chip."""
    found = case.recording.source.integers(
        "AICORE_FREQ", {"device": "deviceId", "at": "timestampNs", "mhz": "CAST(freq AS INTEGER)"}
    )
    good = (found["mhz"] > 0) & (found["at"] >= 0)
    if case.number is not None:
        good &= found["device"] == case.number
    at, mhz = found["at"][good], found["mhz"][good]
    if not len(at):
        return
    order = np.argsort(at, kind="stable")
    at, mhz = at[order], mhz[order]
    chip = _chip_of(case)
    own = None if chip is None else chip.mhz
    highest = max(int(mhz.max()), int(own or 0))
    rows = np.flatnonzero(computing(case))
    if not len(rows):
        return
    sample = np.searchsorted(at, case.pieces.start_ns[rows], side="right") - 1
    during = np.where(sample >= 0, mhz[sample], highest)
    lost = np.where(during > IDLE_CLOCK * highest, 1 - during / highest, 0.0)
    length = case.pieces.length_ns[rows]
    mean = float((lost * length).sum() / length.sum())
    cost = case.gains(rows, lost * length)
    if mean < DROP_SHARE or not cost:
        return
    usual = float((during * length).sum() / length.sum())
    known = "the maximum of this chip" if own else "the maximum of this recording"
    yield case.finding(
        FREQUENCY_DROP,
        cost,
        f"clock drop: the AI cores compute at a mean of {usual:,.0f} MHz, {highest:,} MHz "
        f"is {known}",
        advice="check temperature, power limit and neighbors of this device (npu-smi info)",
        sure="certain" if own else "likely",
        figures={"mean_mhz": round(usual), "highest_mhz": highest, "lost_share": round(mean, 4)},
        evidence=case.rows(rows, (lost * length).astype(np.int64)),
    )


def _info(case: Case) -> tuple[Ints, Ints]:
    """Return the kernels that are long enough, and their rows of COMPUTE_TASK_INFO."""
    tasks, pieces = case.recording.tasks, case.pieces
    task = case.recording.work.task[pieces.row]
    info = np.where(task >= 0, np.append(tasks.info, -1)[task], -1)
    rows = np.flatnonzero((info >= 0) & (pieces.length_ns >= LONG_NS))
    return rows, info[rows].astype(np.int64)


def idle_cores(case: Case) -> Iterator[Finding]:
    """Find kernels whose blocks do not use all cores."""
    cubes, vectors = _cores(case)
    rows, info = _info(case)
    columns = case.recording.source.integers(
        "COMPUTE_TASK_INFO", {"blocks": "blockNum", "type": "taskType"}
    )
    blocks, types = columns["blocks"][info], columns["type"][info]
    ids, number = np.unique(types, return_inverse=True)
    texts = [text or "" for text in case.recording.strings.texts(ids.tolist())]
    vector = np.array([bool(_VECTOR.search(text)) for text in [*texts, ""]])[number]
    of_cores = np.array(["AI_CPU" not in text for text in [*texts, ""]])[number]
    cores = np.where(vector, vectors, cubes)
    rounds = np.maximum(-(-blocks // cores), 1)
    idle = np.where((blocks > 0) & of_cores, 1 - blocks / (cores * rounds), 0.0)
    rows, idle = rows[idle >= TAIL_SHARE], idle[idle >= TAIL_SHARE]
    lost = idle * case.pieces.length_ns[rows]
    cost = case.gains(rows, lost)
    if case.share(cost) < LEAST_SHARE:
        return
    yield case.finding(
        IDLE_CORES,
        cost,
        f"idle cores: {len(rows):,} kernels have blocks that do not fill {cubes} cube and "
        f"{vectors} vector cores",
        advice=(
            "choose sizes (batch, heads, hidden) that divide evenly among the cores, or tune "
            "the tiling"
        ),
        sure="possible",
        figures={"kernels": len(rows), "cubes": cubes, "vectors": vectors},
        evidence=case.rows(rows, lost.astype(np.int64)),
    )


def no_pipe_busy(case: Case) -> Iterator[Finding]:
    """Find kernels without a busy pipe, bound neither by compute nor by memory."""
    rows, _ = _info(case)
    ratio = highest_ratio(case, _RATIO)[rows]
    idle = (ratio > 0) & (ratio < BUSY_PIPE)
    rows, ratio = rows[idle], ratio[idle]
    lost = (1 - ratio) * case.pieces.length_ns[rows]
    cost = case.gains(rows, lost)
    if case.share(cost) < WARN_SHARE:
        return
    yield case.finding(
        NO_PIPE_BUSY,
        cost,
        f"no busy pipe: {len(rows):,} long kernels "
        f"({duration(int(case.pieces.length_ns[rows].sum()))}) "
        f"keep no pipe busy for {percent(BUSY_PIPE)}; they are bound neither by compute "
        "nor by memory",
        advice="use larger or aligned shapes (inner dimensions in multiples of 256), fused "
        "operators, a tuned tiling",
        sure="possible",
        figures={"kernels": len(rows), "lost_ns": int(lost.sum())},
        evidence=case.rows(rows, lost.astype(np.int64)),
    )


def _chip_of(case: Case) -> Device | None:
    """Return the row of this chip in the table of devices."""
    device = known_devices(case.recording)[case.device or ""]
    if device is not None and device.is_recorded:
        return device
    named = _NAMED.search(case.device or "")
    if named is None or device is None:
        return None  # its clock is of another chip than its name
    if named[1] == _OF_TWO and "AICORE_FREQ" not in case.recording.source.tables:
        return None
    return peaks.find(named[1])


def _cores(case: Case) -> tuple[int, int]:
    """Return the number of cube and vector cores of a chip, 0 if unknown."""
    chip = _chip_of(case)
    if chip is None or chip.cores is None:
        return 0, 0
    return int(chip.cores), int(chip.vector_cores or chip.cores)


def lacks_cores(case: Case) -> str | None:
    """Return a reason if the number of cores is unknown."""
    named = "number of cores unknown for this name in NPU_INFO"
    return None if _cores(case)[0] else f"{case.device}: {named}"
