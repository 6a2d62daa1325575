"""Defaults from `[tool.uprof]` of pyproject.toml.

Precedence: options, then `UPROF_*` variables, then the file. A key is a long option without dashes
in the table of its command: `[tool.uprof.gate]` `max-regress = "5%"`. `[tool.uprof.devices."NAME"]`
has the peaks of a device for rooflines.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from unified_prof.cli.command import Option, refuse
from unified_prof.errors import UsageError, system_errors

# Longer keys would take memory that grows with the square of their length.
_MAX_DOTS = 1000
_REPOSITORY = (".git", ".hg", ".svn", ".jj")


# Options that a project's pyproject.toml may set. The file may come with a cloned repository, so it
# must not decide what uprof writes, runs, attaches to or connects to. Options that are not listed
# are accepted on the command line and in UPROF_* variables only.
PROJECT_SETTINGS = frozenset(
    """
    against ai-core aic-freq aic-metrics aic-mode aicpu all ascendcl backend base base-with baseline
    batch-size batch-sizes by capture-steps convert critical-path debug delay device drift dry-run
    duration every exporter family faster format full-names ge-api history host-sys host-sys-usage
    host-sys-usage-freq idle ids include iterations jobs json l2 last layout live llc-profiling
    max-regress measure memory metric min-abs msproftx mstx-domain-exclude mstx-domain-include new
    new-with no-open noise npu-chip npu-events nts-metrics path perfetto port preset project-root
    quiet rank ranks report rounds runtime-api schema scope share slow sort stats step steps
    stop-after storage-limit strict sys-cpu-freq sys-cpu-profiling sys-hardware-mem
    sys-hardware-mem-freq sys-interconnection-freq sys-interconnection-profiling sys-io-profiling
    sys-io-sampling-freq sys-pid-profiling sys-pid-sampling-freq sys-profiling sys-sampling-freq
    table task-block task-memory task-time timeline-detail timeout to top verbose warmup watch
    what-if with without workload
    """.split()
)


def find(start: Path | None = None) -> Path | None:
    """Return the nearest pyproject.toml in `start` or a directory above it.

    The search ends at the root of a repository and at the user's home directory. The default of
    `start` is the current directory, which may have been deleted.
    """
    try:
        start = start or Path.cwd()
        home = Path.home().resolve()
    except (OSError, RuntimeError):
        return None
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file():
            return candidate
        if folder == home or any((folder / name).exists() for name in _REPOSITORY):
            return None
    return None


def defaults(path: Path, root: click.Command) -> dict[str, Any]:
    """Return the table of `path` as Click's default map for the commands of `root`.

    Raises UsageError if the file cannot be read, is not TOML, or names an unknown command, option
    or device figure.
    """
    with system_errors(UsageError, f"{path} cannot be read", slug="settings-unreadable"):
        text = path.read_bytes()
    if b"uprof" not in text and b"\\u" not in text and b"\\U" not in text:
        # Most projects have no such table; skip the TOML parser for them.
        return {}
    dots = max(line.count(b".") for line in text.splitlines())
    refuse(dots > _MAX_DOTS, f"{path}: a key has too many parts", slug="settings-unreadable")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as err:  # also an integer of thousands of digits
        why = (
            "nested too deeply to be read" if isinstance(err, RecursionError) else "not a TOML file"
        )
        raise UsageError(f"{path}: {why}: {err}", slug="settings-unreadable") from None
    tool = document.get("tool", {})
    refuse(not isinstance(tool, dict), f"{path}: `tool` is not a table", slug="wrong-setting")
    table = tool.get("uprof", {})
    refuse(not isinstance(table, dict), f"{path}: tool.uprof is not a table", slug="wrong-setting")
    _check_integers(table, str(path))
    if "devices" in table:
        from unified_prof.explain.roofline import peaks

        peaks.add(table.pop("devices"), f"{path}: [tool.uprof.devices")
    return _of_command(table, root, f"{path}: [tool.uprof")


def _check_integers(value: object, where: str) -> None:
    """Refuse integers that do not fit into 64 bits, as TOML requires."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise UsageError(f"{where}: an integer has more than 64 bits", slug="wrong-setting")
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _check_integers(one, where)


def _of_command(table: Mapping[str, Any], command: click.Command, where: str) -> dict[str, Any]:
    """Translate the table of one command and of its subcommands."""
    subcommands: Mapping[str, click.Command] = getattr(command, "commands", {})
    options = {
        option.removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, Option) and parameter.is_setting
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }
    result: dict[str, Any] = {}
    for key, value in table.items():
        if key in subcommands and isinstance(value, dict):
            result[key] = _of_command(value, subcommands[key], f"{where}.{key}")
            continue
        refuse(
            key in subcommands,
            f"{where}] {key}: expected a table of settings",
            hint=f"write its options below a line {where.rpartition(': ')[2]}.{key}]",
            slug="wrong-setting",
        )
        refuse(
            key in options and key not in PROJECT_SETTINGS,
            f"{where}] {key}: not accepted from pyproject.toml, because it decides what uprof"
            " writes, runs or connects to",
            hint=f"use --{key} on the command line, or its UPROF_ variable",
            slug="untrusted-setting",
        )
        if (parameter := options.get(key)) is not None and parameter.name is not None:
            result[parameter.name] = _value(value, f"{where}] {key}")
        else:
            known = ", ".join(sorted({*(options.keys() & PROJECT_SETTINGS), *subcommands}))
            raise UsageError(
                f"{where}] unknown setting {key!r}",
                hint=(f"known settings: {known}"),
                slug="wrong-setting",
            )
    return result


def _value(value: object, where: str) -> object:
    """Convert a setting for Click: text, a number, or a list for a repeatable option."""
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return [str(one) for one in value]
    if isinstance(value, bool | str | int | float):
        return value
    raise UsageError(f"{where}: unexpected type {type(value).__name__}", slug="wrong-setting")
