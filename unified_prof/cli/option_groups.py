"""Options that belong together are one value: a dataclass of what they say.

Typer makes a command's parameters from a function's. Here a function may take several of them at
once: a parameter whose type is a dataclass stands for the dataclass's fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` with the fields of its dataclasses as parameters, where those stood."""
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in own.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        made = {
            name: group(**{one.name: arguments.pop(one.name) for one in fields(group)})
            for name, group in groups.items()
        }
        command(**arguments, **made)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        parameters += _fields(groups[name]) if name in groups else [_by_name(parameter)]
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper


def _fields(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=types[one.name],
        )
        for one in fields(group)
    ]


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
