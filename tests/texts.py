"""JSON values as lines of text, for stored outputs and results."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

WIDTH = 320  # JSON values that fit are on one line.


def rounded(number: str) -> float:
    """Return a number without its last bits, which depend on the processor; times are exact."""
    return float(number if len(number.partition(".")[0]) > 9 else f"{float(number):.10g}")


def json_lines(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield a JSON value as lines."""
    line = prefix + json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and all(isinstance(one, int | float) for one in value):
        yield from textwrap.wrap(line, WIDTH)
        return
    if len(line) <= WIDTH + len(prefix) or not isinstance(value, dict | list):
        yield line
        return
    yield prefix + ("{" if isinstance(value, dict) else "[")
    indent = " " * (len(prefix) - len(prefix.lstrip()) + 1)
    for key in value if isinstance(value, dict) else range(len(value)):
        yield from json_lines(value[key], f"{indent}{key}: " if isinstance(key, str) else indent)
