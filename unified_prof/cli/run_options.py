"""The options of `uprof run` that have a meaning together, and the specification made of them.

If you add one about what is measured, it is a field here and one of `runs.spec.RunSpec`; how the
first becomes the second stands in `WhatToMeasure.spec`. Options of the NPU backend alone are rows
of `backends.msprof_options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unified_prof.cli.options import Quiet
from unified_prof.cli.untouched import Workload
from unified_prof.errors import UsageError
from unified_prof.plain import printable
from unified_prof.runs import spec as asked

if TYPE_CHECKING:
    from unified_prof.backends.base import Backend


class Scope(str, Enum):
    """Which operations a report keeps."""

    MODULE = asked.MODULE
    PROJECT = asked.PROJECT


@dataclass(frozen=True, slots=True)
class WhatToRun:
    """The workload, as `python` would be told it."""

    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]",
            help="The workload; everything after SCRIPT is its own.",
        ),
    ] = None
    module: Annotated[
        str | None,
        typer.Option("-m", "--module", metavar="MODULE", help="Run a module, as python -m does."),
    ] = None

    def workload(self, *, attach: bool) -> Workload:
        """Return what is to run; nothing where a running process is attached to.

        Raises:
            UsageError: nothing is named, or something besides the process.
        """
        command = self.command or []
        if attach:
            if self.module is not None or command:
                raise UsageError(
                    "--pid records a running process, there is no workload to start",
                    slug="contradicting-options",
                )
            return Workload("process", False, ())
        if self.module is not None:
            return Workload(self.module, True, tuple(command))
        if not command:
            raise UsageError(
                "nothing to run",
                hint="uprof run SCRIPT [ARGS]... or -m MODULE [ARGS]...",
                slug="nothing-to-run",
            )
        return Workload(command[0], False, tuple(command[1:]))


@dataclass(frozen=True, slots=True)
class WhatToMeasure:
    """Which reports of which iterations, and what of the program they show."""

    report: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of run-time, memory and timeline, separated by commas.",
            show_default="the backend's usual",
        ),
    ] = None
    timeline_detail: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="What a timeline on cpu or cuda holds besides times, of shapes, stacks and "
            "memory, separated by commas; or none. Less is faster: with all of them a step takes "
            "almost twice as long.",
            show_default="shapes",
        ),
    ] = None
    warmup: Annotated[int, typer.Option(min=0, help="Iterations to let pass before measuring.")] = (
        asked.WARMUP
    )
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to measure.")] = (
        asked.ITERATIONS
    )
    project_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Files below it are yours and appear in stack frames.",
            show_default="this folder, or the script's if it lies elsewhere",
        ),
    ] = None
    scope: Annotated[
        Scope,
        typer.Option(
            help="module: operations called below a module of the project; project: all with a "
            "frame in the project, such as a loss outside the model."
        ),
    ] = Scope.MODULE
    include: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE",
            help="Keep the lines of this package below yours, such as mylibrary.models; may be "
            "given several times.",
            show_default="model code of transformers, diffusers, timm, torchvision",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Ask the input provider for batches of this size."),
    ] = None
    stop_after: Annotated[
        bool, typer.Option("--stop-after", help="End the script once all is measured.")
    ] = False

    def spec(
        self,
        workload: Workload,
        backend: Backend,
        output: Path,
        npu_options: Mapping[str, object],
    ) -> asked.RunSpec:
        """Return the specification of a run of `workload` on `backend`.

        Raises:
            UsageError: a report or a folder is none.
        """
        return asked.RunSpec(
            target=workload.target,
            is_module=workload.is_module,
            arguments=workload.arguments,
            reports=_reports(self.report, backend),
            output_dir=output,
            project_root=_project_root(self.project_root, workload),
            warmup=self.warmup,
            iterations=self.iterations,
            scope=self.scope.value,
            include=tuple(self.include or ()),
            batch_size=self.batch_size,
            stop_after=self.stop_after,
            options={**npu_options, **_timeline_options(self.timeline_detail)},
        )


@dataclass(frozen=True, slots=True)
class WhatToSay:
    """What stands on the terminal, or on stdout for programs."""

    quiet: Quiet = False
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="More operations.")] = False
    json_: Annotated[
        bool,
        typer.Option(
            "--json", help="The result as one line on stdout; the workload's goes to stderr."
        ),
    ] = False


def _reports(text: str | None, backend: Backend) -> tuple[str, ...]:
    from unified_prof.backends.registry import default_reports

    if text is None:
        return default_reports(backend)
    known = (asked.RUN_TIME, asked.MEMORY, asked.TIMELINE)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"no report {unknown[0]!r}", hint=f"known: {', '.join(known)}", slug="unknown-report"
        )
    if not names:
        raise UsageError(
            "--report names no report", hint=f"known: {', '.join(known)}", slug="unknown-report"
        )
    return tuple(name for name in known if name in names)


def _timeline_options(detail: str | None) -> dict[str, object]:
    if detail is None:
        return {}
    names = tuple(name.strip() for name in detail.split(",") if name.strip())
    return {"timeline_detail": () if names == ("none",) else names}


def _project_root(given: Path | None, workload: Workload) -> Path:
    if given is not None:
        if not given.is_dir():
            raise UsageError(
                f"--project-root {printable(str(given))} is not a folder", slug="no-folder"
            )
        return given.resolve()
    here = Path.cwd()
    script = Path(workload.target).resolve()
    return here if workload.is_module or script.is_relative_to(here) else script.parent
