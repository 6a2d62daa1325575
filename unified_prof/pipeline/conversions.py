"""Many recordings to msprof databases, several at a time in processes of their own.

One that fails does not stop the others: an outcome says what became of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from unified_prof.errors import OutputError, UprofError
from unified_prof.models import catalogue
from unified_prof.pipeline import ascend_layout, discovery, outputs, places
from unified_prof.pipeline.convert import Converted, Progress, Settings, convert_found
from unified_prof.pipeline.discovery import Found
from unified_prof.pipeline.places import ASCEND_PT, PLAIN, Place
from unified_prof.pipeline.sources import Source

STANDARD_INPUT = Path("-")
"""What names standard input among recordings."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one recording of several: `converted`, `already` or `error`."""

    number: int
    """Place among what was asked for, from 0: outcomes come as they are ready."""
    recording: Path
    source: Source | None = None
    """None: the path names no recording."""
    converted: Converted | None = None
    already: Path | None = None
    """The report that an earlier run made of it, which was left as it is."""
    error: UprofError | None = None


def worst_exit_code(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code of several conversions: of the first that failed, else 0."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    first = min(failed, key=lambda outcome: outcome.number, default=None)
    return 0 if first is None or first.error is None else first.error.exit_code


def convert_all(
    paths: Sequence[Path],
    output: Path | None = None,
    *,
    schema: str | None = None,
    layout: str = PLAIN,
    force: bool = False,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    note: Progress = lambda _: None,
) -> Iterator[Outcome]:
    """Make the databases of all recordings that `paths` name; yield each when it is ready.

    One that fails does not stop the others. Of several recordings, those whose report an earlier
    run has made are passed over (`Outcome.already`), unless `force` is given.

    Args:
        paths: Recordings, folders in which they lie at any depth, and patterns; STANDARD_INPUT.
        output: A file if it ends in `.db` (for one recording), else a folder.
        schema: Revision or alias of the msprof schema; None: `documented`, or in the layout of
            torch_npu what its readers do best with.
        layout: `plain`, or `ascend-pt` for the names and folders of torch_npu.
        force: Whether databases that are there may be replaced.
        jobs: How many recordings to convert at a time.
        progress: Told in a few words what is going on.
        note: Told in a sentence what was not looked into.

    Raises:
        UsageError: no such revision; several reports, or a layout, cannot be had in one file.
    """
    schema = schema or (ascend_layout.SCHEMA if layout == ASCEND_PT else "documented")
    settings = Settings(catalogue.resolve(catalogue.MSPROF, schema), force)
    if output is not None and places.is_file(output):
        places.refuse_sharing(output, len(paths), layout)
    if STANDARD_INPUT not in paths:
        yield from _convert_all(paths, output, layout, settings, jobs, progress, note)
        return
    from unified_prof.pipeline import standard_input

    with ExitStack() as files:
        named = [path for path in paths if path != STANDARD_INPUT]
        kept = None
        try:
            kept = files.enter_context(standard_input.as_file(progress))
        except UprofError as err:
            yield Outcome(-1, STANDARD_INPUT, error=err)
        else:
            named.insert(paths.index(STANDARD_INPUT), kept)
        for outcome in _convert_all(named, output, layout, settings, jobs, progress, note):
            yield _of_standard_input(outcome) if outcome.recording == kept else outcome


def _of_standard_input(outcome: Outcome) -> Outcome:
    """Return the outcome in the words of one who knows nothing of a temporary file."""
    error, converted = outcome.error, outcome.converted
    if error is not None:
        path, words = str(outcome.recording), "standard input"
        hint = None if error.hint is None else error.hint.replace(path, words)
        error = type(error)(str(error).replace(path, words), hint=hint, slug=error.slug)
    if converted is not None:
        converted = replace(converted, recording=STANDARD_INPUT)
    return replace(outcome, recording=STANDARD_INPUT, error=error, converted=converted)


def _convert_all(
    paths: Sequence[Path],
    output: Path | None,
    layout: str,
    settings: Settings,
    jobs: int,
    progress: Progress,
    note: Progress,
) -> Iterator[Outcome]:
    recordings: dict[int, Found] = {}
    for number, found in enumerate(discovery.find(paths, progress, note)):
        if isinstance(found, Found):
            recordings[number] = found
        else:
            yield Outcome(number, found[0], error=found[1])
    chosen = places.choose(list(recordings.values()), output, layout)
    tasks: list[_Task] = []
    for (number, found), place in zip(recordings.items(), chosen, strict=True):
        outcome = Outcome(number, found.path, found.source)
        if isinstance(place, OutputError):
            yield replace(outcome, error=place)
        elif (
            len(recordings) > 1
            and not settings.force
            and (already := places.made_already(found, place, settings.revision))
        ):
            yield replace(outcome, already=already)
        else:
            tasks.append(_Task(outcome, found, place, settings))
    with ExitStack() as folders:
        ready: list[_Task] = []
        for task in tasks:
            try:
                if not settings.force:
                    places.refuse_existing(task.place)
                if task.place.folder is not None:
                    folders.enter_context(outputs.output_directory(task.place.folder))
            except OutputError as err:
                yield replace(task.outcome, error=err)
            else:
                ready.append(task)
        yield from _run(ready, jobs, progress)


@dataclass(frozen=True, slots=True)
class _Task:
    """One conversion, as it goes to a process of its own."""

    outcome: Outcome
    found: Found
    place: Place
    settings: Settings


def _run(tasks: Sequence[_Task], jobs: int, progress: Progress) -> Iterator[Outcome]:
    if jobs == 1 or len(tasks) <= 1:
        for done, task in enumerate(tasks):
            at = f"{done + 1} of {len(tasks)}, " if len(tasks) > 1 else ""
            yield outcome_of(task, partial(_tell_of, progress, f"{at}{task.found.path.name}"))
        return
    from unified_prof.pipeline import executors

    progress(f"converting {len(tasks)} recordings")
    with executors.open_executor(jobs=min(jobs, len(tasks))) as crew:
        for finished, (task, result) in enumerate(
            executors.each(crew, outcome_of, tasks, again=_once_more), start=1
        ):
            progress(f"{finished} of {len(tasks)} done")
            if isinstance(result, executors.Failure):
                error = UprofError(
                    f"{task.found.path}: the process that converted it {result}, twice",
                    hint="if memory ran out, convert it without --jobs on a machine that has more",
                    slug="process-killed",
                )
                yield replace(task.outcome, error=error)
            else:
                yield result


def _once_more(task: _Task) -> _Task:
    """Return the task for another try: what is there now may be the first one's own report."""
    place = places.as_it_is_now(task.found, task.place)
    if places.made_already(task.found, place, task.settings.revision) is None:
        return task
    return replace(task, place=place, settings=replace(task.settings, force=True))


def _tell_of(progress: Progress, recording: str, stage: str) -> None:
    progress(f"{recording}: {stage}")


def outcome_of(task: _Task, progress: Progress = lambda _: None) -> Outcome:
    """Convert one recording, in whichever process this is, and return what became of it."""
    try:
        converted = convert_found(task.found, task.place, task.settings, progress)
    except UprofError as err:
        return replace(task.outcome, error=err)
    return replace(task.outcome, converted=converted)
