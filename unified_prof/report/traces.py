"""What formats of traces have in common: their parts, and what becomes of damaged reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from unified_prof.analysis.base import Analysis, OverTime
from unified_prof.analysis.model import Series
from unified_prof.analysis.views.tracks import Track
from unified_prof.errors import StoreError


@dataclass(slots=True)
class Written:
    """What a trace file holds."""

    tracks: int = 0
    slices: int = 0
    flows: int = 0
    counters: int = 0


Lose = Callable[[OverTime, StoreError], None]


class WithPath:
    """A report with the track of its critical path in front."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    @property
    def path(self) -> str:
        """The file."""
        return self.analysis.path

    @cached_property
    def _critical(self) -> Track | None:
        return self.analysis.path_track()

    def tracks(self) -> Iterator[Track]:
        """Yield the critical path, then the streams and threads."""
        if self._critical is not None:
            yield self._critical
        yield from self.analysis.tracks()

    def memory_series(self) -> tuple[Series, ...]:
        """Return memory in use over time."""
        return self.analysis.memory_series()

    def counter_series(self) -> tuple[Series, ...]:
        """Return other quantities over time."""
        return self.analysis.counter_series()


class TraceWriter(ABC):
    """Writes reports into one trace."""

    def __init__(self) -> None:
        self.written = Written()
        self._flow_base = 0
        """Number after which those of the report's arrows begin."""

    def write(self, analyses: Iterable[tuple[str, OverTime]], lose: Lose | None) -> Written:
        """Write each report, under a prefix for the names of its groups; return what there is.

        What is damaged ends only itself, if somebody is to be told of it.
        """
        for prefix, analysis in analyses:
            try:
                self._analysis(prefix, analysis)
            except StoreError as err:
                if lose is None:
                    raise
                lose(analysis, err)
        return self.written

    def _analysis(self, prefix: str, analysis: OverTime) -> None:
        """Write all tracks and counters of one report."""
        highest = 0
        for track in analysis.tracks():
            self._track(prefix, track)
            highest = max(highest, int(track.flow_in.max(initial=0)))
        for series in (*analysis.memory_series(), *analysis.counter_series()):
            self._counter(prefix, series)
        self._flow_base += highest

    @abstractmethod
    def _track(self, prefix: str, track: Track) -> None:
        """Write a track with its slices and arrows."""

    @abstractmethod
    def _counter(self, prefix: str, series: Series) -> None:
        """Write a counter with its values."""
