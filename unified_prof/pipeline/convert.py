"""One recording to one msprof database.

What a recording is, and how its rows are decoded, is the business of `pipeline.sources`; where its
report goes, that of `pipeline.places`; this module joins them. `uprof build`, `uprof import` and
`uprof run` all come through here, many recordings by way of `pipeline.conversions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unified_prof.errors import OutputError
from unified_prof.models import catalogue
from unified_prof.pipeline import ascend_layout, discovery, outputs, places
from unified_prof.pipeline.discovery import Found
from unified_prof.pipeline.places import ASCEND_PT, Place
from unified_prof.pipeline.sources import Decoded, Ground, Source, source_of
from unified_prof.pipeline.stages import Stages
from unified_prof.pipeline.tally import Tally
from unified_prof.store.atomic import remove_abandoned
from unified_prof.store.writer import ReportWriter
from unified_prof.version import VERSION

Progress = Callable[[str], None]

_NO_FACTS: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Converted:
    """A report that was made of a recording, and what went into it."""

    recording: Path
    database: Path
    kind: str
    decoded: Decoded
    rows: Mapping[str, int]
    """Rows by table, only tables that have some; STRING_IDS and UPROF_ tables are not counted."""
    anomalies: Mapping[str, tuple[int, str]]
    """What was skipped or not understood, as in UPROF_ANOMALIES: (count, the first case in words)
    by name."""
    seconds: Mapping[str, float]
    """CPU time by stage, in order."""


def convert(
    path: Path,
    target: Path | None = None,
    *,
    source: Source | None = None,
    schema: str = "documented",
    force: bool = False,
    facts: Mapping[str, str | None] = _NO_FACTS,
    of_own_run: bool = False,
    progress: Progress = lambda _: None,
) -> Converted:
    """Make the msprof database of one recording.

    Args:
        path: The recording.
        target: The database; by default where the source puts it.
        source: What the recording is; by default told by its contents.
        schema: Revision or alias of the msprof schema.
        force: Whether databases that are there may be replaced.
        facts: More rows of UPROF_RUN, about the run that was recorded.
        of_own_run: Whether uprof ran the program: its own frames are left out of call chains.
        progress: Told in a few words what is going on.

    Raises:
        RawFormatError: it is no recording, or damaged beyond use.
        OutputError: a database exists or cannot be written.
        UsageError: no such revision; or it is something that another command reads.
    """
    source = source or source_of(path)
    if source is None:
        raise discovery.refusal(path)
    found = Found(path, source)
    place = Place(target) if target is not None else _usual_place(found)
    settings = Settings(catalogue.resolve(catalogue.MSPROF, schema), force, facts, of_own_run)
    if not force:
        places.refuse_existing(place)
    with ExitStack() as folders:
        if place.folder is not None:
            folders.enter_context(outputs.output_directory(place.folder))
        return convert_found(found, place, settings, progress)


@dataclass(frozen=True, slots=True)
class Settings:
    """What all conversions of one command have in common."""

    revision: str
    force: bool
    facts: Mapping[str, str | None] = field(default_factory=dict)
    of_own_run: bool = False


def _usual_place(found: Found) -> Place:
    (place,) = places.choose([found], None)
    if isinstance(place, OutputError):
        raise place
    return place


def convert_found(found: Found, place: Place, settings: Settings, progress: Progress) -> Converted:
    """Write one report and give it its name; what it replaces goes when it is complete."""
    if place.target.exists() and place.target.samefile(found.path):
        raise OutputError(
            f"{place.target} is the recording itself, which a report never replaces",
            slug="not-replaced",
        )
    if not settings.force:
        places.refuse_existing(place)
    if place.folder is not None:  # another second has another name: the writer looks for its own
        remove_abandoned(place.folder)
    converted = _write(found, place, settings, progress)
    for old in place.existing:
        if old != converted.database:
            old.unlink(missing_ok=True)
    return converted


def _write(found: Found, place: Place, settings: Settings, progress: Progress) -> Converted:
    source, revision = found.source, settings.revision
    stages = Stages(progress)
    with ReportWriter(
        place.target,
        revision=revision,
        overwrite=settings.force,
        empty_tables=ascend_layout.empty_tables(revision) if place.layout == ASCEND_PT else (),
        enums=source.wants_enums(found.path),
    ) as writer:
        tally = Tally(writer)
        ground = _ground(revision, stages, of_own_run=settings.of_own_run)
        decoded = source.decode(found.path, tally, ground)
        facts: dict[str, Any] = {"tool": f"uprof {VERSION}", "command": source.command}
        for name, value in {
            **facts,
            **source.identity(found.path),
            **decoded.facts,
            **settings.facts,
        }.items():
            writer.fact(name, value)
        if place.folder is not None:
            if place.layout == ASCEND_PT:
                writer.rename(ascend_layout.database_name(decoded.rank))
            writer.before_name(_Companions(found, place, decoded, stages, force=settings.force))
        stages.now("finish")
    stages.end()
    return Converted(
        found.path,
        writer.path,
        source.kind,
        decoded,
        tally.rows,
        dict(writer.anomalies),
        stages.seconds,
    )


@dataclass(frozen=True, slots=True)
class _Companions:
    """Writes what belongs beside a report at a place of our choice, before it gets its name.

    So a report that is there has them, whenever the process that made it was killed.
    """

    found: Found
    place: Place
    decoded: Decoded
    stages: Stages
    force: bool

    def __call__(self, report: Path) -> None:
        """Write them; `report` is complete."""
        with self.stages.stage("beside"):
            source = self.found.source
            if self.place.layout == ASCEND_PT:
                ascend_layout.accompany(
                    report,
                    self.decoded.rank,
                    what=None if source.describes_itself(self.found.path) else source.what,
                    force=self.force,
                )
            source.complete(self.found.path, report, force=self.force)


def _ground(revision: str, stages: Stages, *, of_own_run: bool) -> Ground:
    spec = catalogue.load(catalogue.MSPROF, revision)
    columns = {name: frozenset(table.column_names) for name, table in spec.tables.items()}

    @cache
    def enum(table: str) -> Mapping[str, int]:
        return {str(name): int(str(number)) for number, name in spec.rows.get(table, ())}

    return Ground(
        has_column=lambda table, column: column in columns.get(table, ()),
        data_types=enum("ENUM_HCCL_DATA_TYPE"),
        enums=enum,
        stage=stages.stage,
        now=stages.now,
        is_own_frame=_is_own_frame if of_own_run else lambda _: False,
    )


def _is_own_frame(frame: str) -> bool:
    """Tell frames of this package, as the profiler writes them: it strips site-packages."""
    package = Path(__file__).resolve().parents[1]
    return frame.startswith((f"{package.name}/", f"{package}/"))
