"""Provider mode: a script that gives a model, inputs and an iteration, as Skyline asks for."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from unified_prof.errors import CaptureError

PREFIXES = ("uprof", "skyline", "deepview")
_PARTS = ("model_provider", "input_provider", "iteration_provider")
_EXPECTED = {
    "model_provider": "no parameter",
    "input_provider": "exactly one parameter, named batch_size, with an int as its default",
    "iteration_provider": "exactly one parameter, the model",
}


@dataclass(frozen=True, slots=True)
class Providers:
    """The three functions of a script, their signatures checked."""

    script: str
    names: tuple[str, str, str]
    model: Callable[[], Any]
    inputs: Callable[..., Any]
    iteration: Callable[[Any], Any]


def prefix_of(source: bytes | str, filename: str) -> str | None:
    """Return the prefix of the providers that `source` defines, None if it defines none.

    Looks at the text only: whether there are providers decides how the script is run.

    Raises:
        SyntaxError: `source` is no Python.
        CaptureError: Some of the three functions are there, but none of the sets is complete.
    """
    defined = set(_top_level_names(ast.parse(source, filename).body))
    begun: list[tuple[str, list[str]]] = []
    for prefix in PREFIXES:
        missing = [f"{prefix}_{part}" for part in _PARTS if f"{prefix}_{part}" not in defined]
        if not missing:
            return prefix
        if len(missing) < len(_PARTS):
            begun.append((prefix, missing))
    if not begun:
        return None
    prefix, missing = begun[0]
    found = [name for part in _PARTS if (name := f"{prefix}_{part}") in defined]
    raise CaptureError(
        f"{filename} defines {' and '.join(found)}, but not {' and '.join(missing)}",
        hint="a script has all three providers, or none to be run as it is",
        slug="missing-provider",
    )


def _top_level_names(body: Iterable[ast.stmt]) -> Iterable[str]:
    """Yield the names that module code binds, also inside `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                for child in getattr(node, field, ()):
                    nested = child.body if isinstance(child, ast.ExceptHandler) else [child]
                    if not (field == "body" and _is_main_guard(node)):
                        yield from _top_level_names(nested)


def _is_main_guard(node: ast.stmt) -> bool:
    """Whether `node` is `if __name__ == "__main__":`, which a provider script never enters."""
    return isinstance(node, ast.If) and "__name__" in {
        n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)
    }


def checked_providers(namespace: dict[str, Any], prefix: str, script: str) -> Providers:
    """Return the providers of `namespace`.

    Raises:
        CaptureError: One is missing, is no function or has another signature than asked for.
    """
    functions = []
    for part in _PARTS:
        name = f"{prefix}_{part}"
        function = namespace.get(name)
        if not callable(function):
            found = "is not defined" if function is None else f"is {_a(function)}, not a function"
            raise CaptureError(f"{script}: {name} {found}", slug="wrong-provider")
        _check_signature(function, name, part, script)
        functions.append(function)
    model, inputs, iteration = functions
    names = tuple(f"{prefix}_{part}" for part in _PARTS)
    return Providers(script, (names[0], names[1], names[2]), model, inputs, iteration)


def _check_signature(function: Any, name: str, part: str, script: str) -> None:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    simple = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if part == "input_provider":
        fine = (
            len(parameters) == 1
            and parameters[0].name == "batch_size"
            and parameters[0].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                       inspect.Parameter.KEYWORD_ONLY)
            and type(parameters[0].default) is int
        )  # fmt: skip
    else:
        fine = simple and len(parameters) == (1 if part == "iteration_provider" else 0)
    if not fine:
        line = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_firstlineno", None)
        where = script if line is None else f"{script}:{line}"
        raise CaptureError(
            f"{where}: found {name}{signature}, expected {_EXPECTED[part]}", slug="wrong-provider"
        )


def checked_model(providers: Providers, model: Any, device: str) -> Any:
    """Return `model` if it can be called and is on `device`.

    Raises:
        CaptureError: It is not.
    """
    from torch.nn import Module

    name = providers.names[0]
    if not callable(model):
        raise CaptureError(
            f"{providers.script}: {name}() returned {_a(model)}, expected a callable model",
            slug="wrong-provider",
        )
    if isinstance(model, Module):
        found = {parameter.device.type for parameter in model.parameters()}
        if found and device not in found:
            others = " and ".join(sorted(found))
            raise CaptureError(
                f"{providers.script}: {name}() returned a model on {others}, asked for is {device}",
                hint=f"run: uprof run --backend {sorted(found)[0]}, or move the model to {device}",
                slug="wrong-device",
            )
    return model


def checked_inputs(providers: Providers, inputs: Any) -> tuple[Any, ...]:
    """Return `inputs` as the arguments of an iteration.

    Raises:
        CaptureError: They are one bare tensor, or nothing one can go through.
    """
    import torch

    if isinstance(inputs, torch.Tensor) or not isinstance(inputs, Iterable):
        raise CaptureError(
            f"{providers.script}: {providers.names[1]}() returned {_a(inputs)}, "
            "expected a tuple of the iteration's arguments",
            hint="for one input write: return (tensor,)",
            slug="wrong-provider",
        )
    return tuple(inputs)


def checked_iteration(providers: Providers, iteration: Any) -> Callable[..., Any]:
    """Return `iteration` if it can be called.

    Raises:
        CaptureError: It cannot.
    """
    if not callable(iteration):
        raise CaptureError(
            f"{providers.script}: {providers.names[2]}(model) returned {_a(iteration)}, "
            "expected a function that runs one iteration",
            slug="wrong-provider",
        )
    return iteration  # type: ignore[no-any-return]


def _a(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
