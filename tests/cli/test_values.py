"""Values of parameters are converted by type, and invalid values are refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest

from unified_prof.cli.command import argument, make_command, option
from unified_prof.errors import UsageError

Color = Literal["red", "green"]


@dataclass(frozen=True)
class Size:
    """Options that form one value of a command."""

    wide: int = option("", "--wide", default=2)
    each: Annotated[list[str] | None, option()] = None


def call(*words: str) -> dict[str, Any]:
    """Run a command with every kind of parameter and return its arguments."""
    called: list[dict[str, Any]] = []

    def every(
        paths: Annotated[list[Path], argument()],
        size: Size,
        top: int | None = option(min=1, max=50),
        part: float = option(default=0.5, max=1.5),
        color: Annotated[Color | None, option()] = None,
        shade: Annotated[Color, option()] = "green",
        output: Annotated[Path | None, option("", "-o --output")] = None,
        loud: Annotated[bool, option("", "--loud/--quiet")] = False,
    ) -> None:
        called.append(dict(locals()))

    make_command(every, "every").main(list(words), prog_name="uprof", standalone_mode=False)
    (found,) = called
    return {name: value for name, value in found.items() if name != "called"}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["a", "b/c", "-"], {"paths": [Path("a"), Path("b/c"), Path("-")]}),
        (["a", "--wide", "-3", "--each", "x", "--each", "y"], {"size": Size(-3, ["x", "y"])}),
        (["a", "--top", "3", "--part=1.25"], {"top": 3, "part": 1.25}),
        (["a", "--color", "red", "--loud"], {"color": "red", "loud": True}),
        (["a", "--output", "o.txt"], {"output": Path("o.txt")}),
    ],
)
def test_values_are_converted_by_type(words: list[str], changed: dict[str, Any]) -> None:
    defaults = {"paths": [Path("a")], "size": Size(), "top": None, "part": 0.5, "color": None}
    defaults |= {"shade": "green", "output": None, "loud": False}
    assert call(*words) == defaults | changed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--top", "0"], "expected 1 or more, found 0"),
        (["a", "--top", "51"], "expected 50 or less, found 51"),
        (["a", "--top", "many"], "expected a whole number, found 'many'"),
        (["a", "--wide", "1.0"], "expected a whole number"),
        (["a", "--part", "x"], "expected a number, found 'x'"),
        (["a", "--color", "blue"], "'blue' is not one of 'red', 'green'"),
        (["a", "--color", "rad"], "'red', 'green'; did you mean red?"),
        (["a", "--colour", "red"], "no such option: --colour"),
        ([], "missing argument"),
        ([""], "argument PATHS... is empty, expected a path"),
        (["a", "-o", ""], "-o is empty, expected a path"),
    ],
)
def test_wrong_values_are_refused(words: list[str], message: str) -> None:
    with pytest.raises((click.ClickException, UsageError)) as caught:
        call(*words)
    error: Any = caught.value
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert message in text
    assert error.exit_code == 2


def test_unreadable_paths_are_left_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_, **__: False)
    assert call(str(tmp_path))["paths"] == [tmp_path]
