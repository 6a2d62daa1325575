"""Options that a command takes as one value are options like any other."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, get_args

import typer

from unified_prof.cli.command import with_groups


@dataclass(frozen=True)
class Size:
    wide: Annotated[int, typer.Option("--wide")]
    high: Annotated[int, typer.Option("--high")] = 3


def test_fields_stand_where_the_group_stood() -> None:
    got: list[object] = []

    def draw(name: str, size: Size, color: str = "red") -> None:
        got.append((name, size, color))

    command = with_groups(draw)
    parameters = inspect.signature(command).parameters
    assert [*parameters] == ["name", "wide", "high", "color"]
    assert parameters["wide"].default is inspect.Parameter.empty
    assert parameters["high"].default == 3
    assert get_args(parameters["high"].annotation)[0] is int
    command(name="a", wide=1, high=2, color="blue")
    assert got == [("a", Size(1, 2), "blue")]


def test_a_command_without_groups_is_called_as_it_is() -> None:
    got: list[int] = []
    with_groups(lambda depth: got.append(depth))(depth=3)
    assert got == [3]
