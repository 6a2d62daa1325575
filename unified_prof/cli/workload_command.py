"""A command whose last arguments are another program's: nothing after SCRIPT is ours."""

from __future__ import annotations

from typing import Any

from unified_prof.cli.command_line import Command
from unified_prof.cli.npu_options import SECTION

MODULE_OPTIONS = ("-m", "--module")


class WorkloadCommand(Command):
    """Stop reading options at the first argument that is none, or after `-m MODULE`.

    Python itself does it so: in `python -m pkg --epochs 3` the option is the module's.
    """

    allow_interspersed_args = False
    folded = {SECTION: "--help-npu"}  # noqa: RUF012

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse our options out of `args`, leaving the workload's as they are."""
        return super().parse_args(ctx, end_options_after_module(args, self._options_with_value()))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line's pieces."""
        return ["[OPTIONS]", "[--]", "SCRIPT|-m MODULE", "[ARGS]..."]

    def _options_with_value(self) -> frozenset[str]:
        names: set[str] = set()
        for param in self.params:
            flag: Any = getattr(param, "is_flag", False)
            if param.param_type_name == "option" and not flag:
                names.update(param.opts)
        return frozenset(names)


def end_options_after_module(args: list[str], with_value: frozenset[str]) -> list[str]:
    """Return `args` with `--` put after `-m MODULE`, where that ends our options.

    Args:
        args: The command's arguments.
        with_value: Names of our options that take the next argument as their value.
    """
    position = 0
    while position < len(args):
        argument = args[position]
        name, equals, _ = argument.partition("=")
        if argument == "--" or not argument.startswith("-"):
            break
        if name in MODULE_OPTIONS or (argument.startswith("-m") and not argument.startswith("--")):
            end = position + (2 if argument in MODULE_OPTIONS else 1)
            return [*args[:end], "--", *args[end:]]
        position += 2 if not equals and argument in with_value else 1
    return args
