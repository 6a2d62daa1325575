"""The chips that msprof tells apart, and what it takes and refuses on each of them.

msprof calls them platforms and prints their number after a refusal (`PlatformType:4`). This table
is used where msprof itself cannot be asked; see `msprof_offer`.

Ask another program a short question.

Huawei's toolkit on this machine: where CANN and its msprof are, their versions, the chip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from unified_prof.errors import UsageError

_EVERYWHERE = (
    *("ArithmeticUtilization", "PipeUtilization", "Memory", "MemoryL0", "MemoryUB"),
    "ResourceConflictRatio",
)
_MOST_CUSTOM_EVENTS = 8
UNKNOWN = "unknown"
"""The name for a chip that is none of the table: nothing is left out beforehand."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One of them."""

    name: str
    """As people call it."""
    platforms: tuple[int, ...]
    """The numbers by which msprof knows it."""
    full_names: str
    """Expression for its names in npu-smi and CANN, without `Ascend`."""
    refuses: frozenset[str]
    """Options, by their names without dashes, that end msprof before it starts anything."""
    metrics: tuple[str, ...]
    """What `--aic-metrics` may be."""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option -> the values it takes, where they differ from those of other chips."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Option -> the largest number it takes, where that differs."""
    custom_events: int = _MOST_CUSTOM_EVENTS
    """How many events `--aic-metrics Custom:` may list."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LINKS = "sys-interconnection-profiling sys-interconnection-freq"
_PORTS = "sys-io-profiling sys-io-sampling-freq"
_ALL_OR_OFF = {"task-block": ("all", "off")}

CHIPS: tuple[Chip, ...] = (
    Chip(
        "310",
        (0,),
        r"310",
        _words(
            f"{_LINKS} l2 npu-events storage-limit task-block nts-metrics dynamic pid delay"
            " duration"
        ),
        _EVERYWHERE,
        values={"llc-profiling": ("capacity", "bandwidth")},
    ),
    Chip("910A", (1,), r"910(?:A|Pro[AB]|PremiumA)", _words("task-block nts-metrics"), _EVERYWHERE),
    Chip("310P", (4,), r"310P\d*.*", _words(f"{_PORTS} task-block nts-metrics"), _EVERYWHERE),
    Chip(
        # A2 and A3. A bare 910B is what npu-smi calls a board of the generation before as well.
        "910B",
        (5,),
        r"910(?:B\d.*|_93.*|C\d*)",
        _words("task-block nts-metrics"),
        (*_EVERYWHERE, "L2Cache", "MemoryAccess"),
    ),
    Chip(
        "310B",
        (7,),
        r"310B\d*.*",
        _words(f"{_LINKS} nts-metrics"),
        (*_EVERYWHERE, "L2Cache", "PipelineExecuteUtilization"),
        values=_ALL_OR_OFF,
    ),
    Chip(
        "950",
        (15, 16),
        r"950.*",
        _words("nts-metrics"),
        (*_EVERYWHERE, "L2Cache"),
        limits={"sys-hardware-mem-freq": 10000},
        custom_events=10,
    ),
)


def by_full_name(text: str | None) -> Chip | None:
    """Return the chip that npu-smi or CANN calls `text`, such as `Ascend 910B3`; None: unclear."""
    name = re.sub(r"^\s*ascend[\s_-]*", "", text or "", flags=re.IGNORECASE).strip()
    return next(
        (chip for chip in CHIPS if re.fullmatch(chip.full_names, name, re.IGNORECASE)), None
    )


def named(text: str) -> Chip | None:
    """Return the chip that the user calls `text`; None: it is to be taken as unknown.

    Raises:
        UsageError: there is none of that name.
    """
    if text.strip().lower() == UNKNOWN:
        return None
    plain = re.sub(r"^\s*ascend[\s_-]*", "", text, flags=re.IGNORECASE).strip().lower()
    aliases = {"910": "910a", "a2": "910b", "a3": "910b", "910_93": "910b"}
    for chip in CHIPS:
        if chip.name.lower() == aliases.get(plain, plain):
            return chip
    if found := by_full_name(text):
        return found
    known = ", ".join([*(chip.name for chip in CHIPS), UNKNOWN])
    raise UsageError(
        f"--npu-chip: expected one of {known}, found {text!r}", slug="wrong-npu-option"
    )


_TIMEOUT_S = 10


def answer_of(*command: str, any_status: bool = False) -> str | None:
    """Return what `command` prints, or None where it is missing, fails or takes too long.

    Args:
        command: Program and arguments.
        any_status: Whether an exit status other than 0 is no failure.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=not any_status,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


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
