"""Queries the installed CANN toolkit, msprof and chip; lists the msprof options of each chip.

msprof calls a chip a platform and prints its number when it rejects an option (`PlatformType:4`).
The table of chips is used if msprof itself cannot be queried; see `msprof_plan`.
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

_COMMON_METRICS = (
    *("ArithmeticUtilization", "PipeUtilization", "Memory", "MemoryL0", "MemoryUB"),
    "ResourceConflictRatio",
)
_MAX_CUSTOM_EVENTS = 8
UNKNOWN = "unknown"  # Name for a chip that is not in the table: no option is left out in advance.


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip and the options that msprof accepts on it."""

    name: str  # Common name.
    platforms: tuple[int, ...]  # Platform numbers of msprof.
    full_names: str  # Regular expression for its names in npu-smi and CANN, without `Ascend`.
    # Unsupported options, without dashes; with one of them, msprof exits immediately.
    refuses: frozenset[str]
    metrics: tuple[str, ...]  # Values of `--aic-metrics`.
    # Option -> accepted values, if they differ from other chips.
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Option -> maximum, if it differs from other chips.
    limits: Mapping[str, int] = field(default_factory=dict)
    custom_events: int = _MAX_CUSTOM_EVENTS  # Maximum number of events in `--aic-metrics Custom:`.


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
        _COMMON_METRICS,
        values={"llc-profiling": ("capacity", "bandwidth")},
    ),
    Chip(
        "910A",
        (1,),
        r"910(?:A|Pro[AB]|PremiumA)",
        _words("task-block nts-metrics"),
        _COMMON_METRICS,
    ),
    Chip("310P", (4,), r"310P\d*.*", _words(f"{_PORTS} task-block nts-metrics"), _COMMON_METRICS),
    Chip(
        # A2 and A3. npu-smi also prints a bare 910B for a board of the generation before.
        "910B",
        (5,),
        r"910(?:B\d.*|_93.*|C\d*)",
        _words("task-block nts-metrics"),
        (*_COMMON_METRICS, "L2Cache", "MemoryAccess"),
    ),
    Chip(
        "310B",
        (7,),
        r"310B\d*.*",
        _words(f"{_LINKS} nts-metrics"),
        (*_COMMON_METRICS, "L2Cache", "PipelineExecuteUtilization"),
        values=_ALL_OR_OFF,
    ),
    Chip(
        "950",
        (15, 16),
        r"950.*",
        _words("nts-metrics"),
        (*_COMMON_METRICS, "L2Cache"),
        limits={"sys-hardware-mem-freq": 10000},
        custom_events=10,
    ),
)


def by_full_name(text: str | None) -> Chip | None:
    """Return the chip with a name from npu-smi or CANN (`Ascend 910B3`), None if unknown."""
    name = re.sub(r"^\s*ascend[\s_-]*", "", text or "", flags=re.IGNORECASE).strip()
    return next(
        (chip for chip in CHIPS if re.fullmatch(chip.full_names, name, re.IGNORECASE)), None
    )


def find_chip(text: str) -> Chip | None:
    """Return the chip for a value of `--npu-chip`, None for UNKNOWN.

    Raises UsageError if there is no chip with this name.
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


def query(*command: str, any_status: bool = False) -> str | None:
    """Return the output of `command`, None if it is missing, fails or takes too long.

    If `any_status`, an exit status other than 0 is not a failure.
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
    """Yield toolkit directories, starting with those from environment variables."""
    named = (os.environ.get(name, "") for name in _HOME_VARIABLES)
    for text in (*filter(None, named), *_INSTALL_FOLDERS):
        path = Path(text).expanduser()
        if path.is_dir():
            yield path


def find_msprof() -> Path | None:
    """Return the path of msprof: from PATH, otherwise from the first toolkit that contains it."""
    if on_path := shutil.which("msprof"):
        return Path(on_path)
    for home in homes():
        for below in _MSPROF_BELOW_HOME:
            if found := shutil.which(str(home / below)):
                return Path(found)
    return None


def version() -> str | None:
    """Return the version of the toolkit, None if unknown or not installed."""
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


def msprof_help() -> str | None:
    """Return the output of `msprof --help` on this machine, None if msprof does not respond."""
    msprof = find_msprof()
    return None if msprof is None else query(str(msprof), "--help", any_status=True)


def chip() -> str | None:
    """Return the name of the first chip as in npu-smi, such as `Ascend 910B3`."""
    answer = query("npu-smi", "info", "-m") or ""
    found = re.search(r"^\s*\d+\s+\d+\s+\d+\s+(\S.*?)\s*$", answer, re.MULTILINE)
    return found[1] if found else None


# Characters that msprof rejects in paths; a space is allowed.
FORBIDDEN_IN_PATHS = frozenset("\n\f\r\b\t\v\x7f\"'\\%><|&$;`")


def check_path(path: Path, what: str) -> None:
    """Raise UsageError if msprof would reject `path`."""
    if bad := sorted({*str(path)} & FORBIDDEN_IN_PATHS):
        raise UsageError(
            f"{what} {path} has characters that msprof rejects: {' '.join(map(repr, bad))}",
            hint="choose a directory without them",
            slug="msprof-refuses-path",
        )
