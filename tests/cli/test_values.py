"""Plain words become what Typer makes of them; everything else is Typer's, errors included."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from unified_prof.cli import command as values
from unified_prof.cli.command import Application


class Color(str, Enum):
    RED = "red"
    GREEN = "green"


def command() -> tuple[Any, list[dict[str, Any]]]:
    """Return a command with every kind of parameter, and what it was called with."""
    called: list[dict[str, Any]] = []
    app = Application()

    @app.command()
    def every(
        paths: Annotated[list[Path], typer.Argument()],
        name: Annotated[str | None, typer.Option()] = None,
        top: Annotated[int | None, typer.Option(min=1, max=50)] = None,
        count: Annotated[int, typer.Option()] = 7,
        part: Annotated[float, typer.Option(max=1.5)] = 0.5,
        color: Annotated[Color | None, typer.Option()] = None,
        shade: Annotated[Color, typer.Option(case_sensitive=False)] = Color.GREEN,
        output: Annotated[Path | None, typer.Option()] = None,
        there: Annotated[Path | None, typer.Option(exists=True)] = None,
        each: Annotated[list[str] | None, typer.Option()] = None,
        pair: Annotated[tuple[int, str], typer.Option()] = (1, "a"),
        loud: Annotated[bool, typer.Option("--loud/--quiet")] = False,
    ) -> None:
        called.append(dict(locals()))

    return typer.main.get_command(app), called


def outcome(words: list[str], *, plainly: bool) -> tuple[Any, ...]:
    """Return what the words make, or the complaint about them."""
    made, called = command()
    with pytest.MonkeyPatch.context() as patch:
        if not plainly:
            patch.setattr(values, "make_plain", lambda param: None)
        try:
            made.main(words, prog_name="uprof", standalone_mode=False)
        except Exception as err:
            return type(err).__name__, str(err)
    (found,) = called
    del found["called"]
    return tuple((name, type(value), value) for name, value in found.items())


WORDS = [
    ["a"],
    ["a", "b/c", "-"],
    ["a", "--name", "x", "--top", "3", "--color", "red", "--output", "o.txt", "--loud"],
    ["a", "--name", "", "--each", "x", "--each", "y", "--pair", "3", "z"],
    ["a", "--top", "0"],
    ["a", "--top", "51"],
    ["a", "--top", "+4"],
    ["a", "--top", " 4"],
    ["a", "--top", "4_0"],
    ["a", "--top", "٣"],
    ["a", "--top", "many"],
    ["a", "--count", "-3"],
    ["a", "--count", "99999999999999999999"],
    ["a", "--count", "1.0"],
    ["a", "--part", "1.25"],
    ["a", "--part", "2"],
    ["a", "--color", "blue"],
    ["a", "--color", "RED"],
    ["a", "--shade", "RED"],
    ["a", "--there", "nowhere"],
    ["a", "--there", "."],
    ["a", "--name", "\udcff"],
    ["\udcff"],
    ["ä.db", "--name", "ö"],
    [],
]


@pytest.mark.parametrize("words", WORDS, ids=range(len(WORDS)))
def test_words_mean_what_typer_says(words: list[str]) -> None:
    assert outcome(words, plainly=True) == outcome(words, plainly=False)


@given(st.sampled_from(["--name", "--top", "--count", "--color", "--output"]), st.text(max_size=6))
def test_any_word_means_what_typer_says(option: str, word: str) -> None:
    words = ["a", f"{option}={word.replace(chr(0), '')}"]
    assert outcome(words, plainly=True) == outcome(words, plainly=False)


def test_a_file_that_may_not_be_read_is_typers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    words = [str(tmp_path / "a")]
    found = outcome(words, plainly=True)
    assert found == outcome(words, plainly=False)


def test_a_typer_that_works_otherwise_is_left_alone() -> None:
    class Other:
        _runtime_param = None

    other = Other()
    values.make_plain(other)
    assert other._runtime_param is None
    values.make_plain(object())
