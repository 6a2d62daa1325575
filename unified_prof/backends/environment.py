"""Detects installed versions that determine which backends can run."""

from __future__ import annotations

import platform
import re
import sqlite3
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

from unified_prof.backends import cann
from unified_prof.backends.cann import query
from unified_prof.backends.torch_device import torch_missing_reason


def versions() -> dict[str, str | None]:
    """Return the versions that backends depend on; None for software that is not installed.

    `cuda` is the version that torch was built with, `cuda_driver` that of the installed driver.
    """
    msprof = cann.find_msprof()
    answer = query("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    driver = re.match(r"[\d.]+", answer or "")
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "torch": _package("torch"),
        "torch_npu": _package("torch_npu"),
        "cuda": _torch_cuda(),
        "cuda_driver": None if driver is None else driver[0],
        "cann": cann.version(),
        "npu_chip": cann.chip(),
        "msprof": str(msprof) if msprof else None,
    }


def _package(name: str) -> str | None:
    try:
        return package_version(name)
    except PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    if torch_missing_reason():
        return None
    import torch

    cuda, hip = torch.version.cuda, torch.version.hip
    if hip:
        return f"ROCm {hip}"
    return str(cuda) if cuda else None
