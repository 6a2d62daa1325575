"""Write a synthetic PROF_* directory of any size, for benchmarks and experiments.

    python scripts/make_prof.py OUT --seed 1 --operators 100000 --pmu PipeUtilization
    python scripts/make_prof.py OUT --samples 50 --counters hbm,llc --host-usage cpu,mem

Every option is a field of tests/prof_generator/recipe.py. The same options give the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.prof_generator import COUNTERS, HOST_USAGE, Recipe, generate

_CHOICES = {"counters": COUNTERS, "host_usage": HOST_USAGE}


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    """Return a parser with an option for every field of a recipe."""
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("out", type=Path, help="directory in which the PROF_* directory is created")
    for field in fields(Recipe):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        options: dict[str, Any] = {"default": default}
        if isinstance(default, bool):
            options["action"] = argparse.BooleanOptionalAction
        elif isinstance(default, tuple):
            options["type"] = _numbers if field.name == "devices" else _names
            known = ",".join(_CHOICES.get(field.name, ()))
            options["help"] = f"comma-separated{': ' + known if known else ''}"
        else:
            options["type"] = type(default)
        result.add_argument(name, **options)
    return result


def main() -> None:
    arguments = vars(parser().parse_args())
    out = arguments.pop("out")
    for name, known in _CHOICES.items():
        if unknown := set(arguments[name]) - set(known):
            sys.exit(f"unknown {name}: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    recipe = Recipe(**arguments)
    try:
        print(generate(out, recipe).path)
    except FileExistsError as err:
        sys.exit(f"{err.filename} exists already: choose another directory or seed")


if __name__ == "__main__":
    main()
