"""Huawei's toolkit on this machine: where CANN and its msprof are, their versions, the chip."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from unified_prof.backends.asking import answer_of

# Set by the toolkit's set_env.sh; the newer name first.
_HOME_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_INSTALL_FOLDERS = (
    "/usr/local/Ascend/ascend-toolkit/latest",
    "/usr/local/Ascend/cann",
    "/usr/local/Ascend/latest",
    "~/Ascend/ascend-toolkit/latest",
    "~/Ascend/cann",
    "~/Ascend/latest",
)
_MSPROF_BELOW_HOME = (
    "bin/msprof",
    "tools/profiler/bin/msprof",
    "x86_64-linux/bin/msprof",
    "aarch64-linux/bin/msprof",
)
_VERSION_FILES = (
    ("*-linux/ascend_toolkit_install.info", r"^version=(\S+)"),
    ("*-linux/ascend_cann_install.info", r"^version=(\S+)"),
    ("version.cfg", r"running_version=\[(?:[^:\]]*:)?([^\]]+)\]"),
    ("share/info/runtime/version.info", r"^Version=(\S+)"),
    ("runtime/version.info", r"^Version=(\S+)"),
)


def homes() -> Iterator[Path]:
    """Yield the folders where a toolkit lies, those named by the environment first."""
    named = (os.environ.get(name, "") for name in _HOME_VARIABLES)
    for text in (*filter(None, named), *_INSTALL_FOLDERS):
        path = Path(text).expanduser()
        if path.is_dir():
            yield path


def find_msprof() -> Path | None:
    """Return the msprof command: the one on PATH, else that of the first toolkit that has one."""
    if on_path := shutil.which("msprof"):
        return Path(on_path)
    for home in homes():
        for below in _MSPROF_BELOW_HOME:
            if found := shutil.which(str(home / below)):
                return Path(found)
    return None


def version() -> str | None:
    """Return the version of the toolkit, or None where there is none or it does not say."""
    near_msprof = []
    if (msprof := find_msprof()) is not None:
        near_msprof = list(msprof.resolve().parents)[1:5]
    for home in (*homes(), *near_msprof):
        for pattern, expression in _VERSION_FILES:
            for path in sorted(home.glob(pattern)):
                try:
                    text = path.read_text(encoding="utf-8", errors="replace")
                except OSError:
                    continue
                if found := re.search(expression, text, re.MULTILINE):
                    return found[1]
    return None


def device_files() -> list[Path]:
    """Return the device files of the NPUs that this machine or container shows."""
    return sorted(p for p in Path("/dev").glob("davinci*") if p.name[7:].isdecimal())


def msprof_help() -> str | None:
    """Return the list of options that msprof prints for the chip it sees; None: it does not say."""
    msprof = find_msprof()
    return None if msprof is None else answer_of(str(msprof), "--help", any_status=True)


def chip() -> str | None:
    """Return the name of the first chip as npu-smi gives it, such as `Ascend 910B3`."""
    answer = answer_of("npu-smi", "info", "-m") or ""
    found = re.search(r"^\s*\d+\s+\d+\s+\d+\s+(\S.*?)\s*$", answer, re.MULTILINE)
    return found[1] if found else None
