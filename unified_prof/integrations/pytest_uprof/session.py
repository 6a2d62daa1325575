"""Session of the plugin: judges each test when it ends, and saves results at the end."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from unified_prof.baselines import api
from unified_prof.baselines.store import MAX_NAME, Entry, NewBaseline
from unified_prof.compare.comparable import Run, pool
from unified_prof.errors import StoreError, UprofError
from unified_prof.integrations.pytest_uprof import verdicts
from unified_prof.integrations.pytest_uprof.settings import SEPARATOR, Settings
from unified_prof.integrations.pytest_uprof.verdicts import Judged

_SUFFIX = ".measured"
# Length of the hash in baseline names that would be too long for the store.
_HASH_CHARACTERS = 12


class Record(msgspec.Struct, frozen=True):
    """Result of one measured step, passed from a worker to the end of the session."""

    test: str
    at_ns: int
    judged: Judged
    # Baseline to save; None if saving was not requested or the test failed.
    baseline: NewBaseline | None


class Session:
    """State shared by the fixtures of one session.

    Args:
        config: Configuration of pytest.
        folder: Directory where each process writes its results.
        controller: Data from the controller, in an xdist worker.
        one_run: True if this session measures one test for another session.
    """

    def __init__(
        self,
        config: pytest.Config,
        folder: Path,
        controller: Mapping[str, Any] | None,
        *,
        one_run: bool,
    ) -> None:
        self.is_one_run = one_run
        self._folder = folder
        self._command = verdicts.Command(config, controller)
        option = config.option
        self._save: str | None = option.uprof_save
        self._compare: str | None = option.uprof_compare
        store = option.uprof_store
        self._store = str(config.rootpath / api.DEFAULT_STORE) if store is None else store
        self._entries: dict[str, Entry] | None = None
        self._messages: list[str] = []
        self._failed: str | None = None

    def test_id(self, item: pytest.Item, name: str) -> str:
        """Return the name of a step, which is the same in all sessions."""
        test = verdicts.plain_id(item)
        return f"{test} ({name})" if name else test

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other worker on this machine measures (not on Windows)."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "turn").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def completed(self, item: pytest.Item, measured: Mapping[str, tuple[Settings, Run]]) -> None:
        """Measure a passed test again, judge its steps and record the results.

        Raises:
            pytest.fail.Exception: A step is a regression.
            CaptureError: The test cannot be measured again.
            StoreError: The baseline cannot be read.
        """
        if self.is_one_run:
            verdicts.save(self._folder, {name: run for name, (_, run) in measured.items()})
            return
        runs = {name: [run] for name, (_, run) in measured.items()}
        if self._save is not None or self._compare is not None:
            asked = max(wanted.runs for wanted, _ in measured.values())
            with self.turn():
                for number in range(2, asked + 1):
                    more = self._command.measure(item, number, asked)
                    for name, (wanted, _) in measured.items():
                        if number <= wanted.runs:
                            runs[name].append(verdicts.step_run(more, name))
        failures = []
        for name, (wanted, run) in measured.items():
            test = self.test_id(item, name)
            whole = replace(pool(runs[name]), label=test, facts=run.facts)
            judged = self._judged(test, whole, wanted)
            item.user_properties.extend(verdicts.properties(judged, name))
            fails = judged.outcome == "regression" or (
                judged.outcome == "inconclusive" and wanted.fail_inconclusive
            )
            saved = None
            if self._save is not None and not fails:
                saved = api.to_save(stored_name(self._save, test), whole)
            self._write(Record(test, time.time_ns(), judged, saved))
            if fails:
                failures.append(judged.message)
        if failures:
            pytest.fail("\n\n".join(failures), pytrace=False)

    def end(self, session: pytest.Session) -> None:
        """Save the baselines."""
        if self._save is None:
            return
        records = self._records()
        new = [record.baseline for record in records if record.baseline is not None]
        if session.exitstatus == pytest.ExitCode.INTERRUPTED:
            self._messages.append("not saved: the session was interrupted")
        elif not new:
            self._messages.append("not saved: no passed test has results")
        else:
            try:
                entries = api.save_all(new, self._store)
            except UprofError as err:
                hint = f" ({err.hint})" if err.hint else ""
                self._failed = f"not saved: {err.tagged_message}{hint}"
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
                return
            left_out = len(records) - len(entries)
            self._messages.append(
                f"saved {len(entries)} of {len(records)} as {self._save} in {self._store}"
                + (": regressions are not saved" if left_out else "")
            )

    def show(self, reporter: Any) -> None:
        """Print the results and what was saved."""
        records = self._records()
        if not (records or self._messages or self._failed):
            return
        reporter.section("uprof")
        if records:
            judged = {record.test: record.judged for record in records}
            for line in verdicts.table(judged, compared=self._compare is not None):
                reporter.write_line(line)
            if {one.outcome for one in judged.values()} == {"no baseline"}:
                name = f" {self._compare}" if self._compare else ""
                self._messages.append(
                    f"not compared: no baseline{name} of these tests in {self._store}"
                )
        for line in self._messages:
            reporter.write_line(line)
        if self._failed is not None:
            reporter.write_line(self._failed, red=True)

    def _judged(self, test: str, run: Run, wanted: Settings) -> Judged:
        entry = self._entry(test)
        if self._compare is None or entry is None:
            compared = self._compare is not None
            return verdicts.measured(run, "no baseline" if compared else "measured")
        base = api.load_baseline(f"{entry.name}@{entry.version}", self._store)
        name = entry.name.partition(SEPARATOR)[0]
        return verdicts.judge(test, base.with_label(f"{name}@{entry.version}"), run, wanted)

    def _entry(self, test: str) -> Entry | None:
        """Return the baseline of a step: the newest of the requested name, or of any name."""
        if self._compare is None:
            return None
        if self._entries is None:
            try:
                self._entries = {entry.name: entry for entry in api.entries(self._store)}
            except StoreError as err:
                if err.slug != "no-store":
                    raise
                self._entries = {}
        if self._compare:
            return self._entries.get(stored_name(self._compare, test))
        names = {entry.name.partition(SEPARATOR)[0] for entry in self._entries.values()}
        found = [self._entries.get(stored_name(name, test)) for name in names]
        known = [entry for entry in found if entry is not None]
        return max(known, key=lambda entry: entry.saved_at, default=None)

    def _write(self, record: Record) -> None:
        """Write a record atomically; other workers write to the same directory."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        partial = self._folder / f"{name}.partial"
        partial.write_bytes(msgspec.msgpack.encode(record))
        partial.replace(self._folder / f"{name}{_SUFFIX}")

    def _records(self) -> list[Record]:
        """Return the records of all workers by test; the last one if a test was repeated."""
        found = [
            msgspec.msgpack.decode(path.read_bytes(), type=Record)
            for path in self._folder.glob(f"*{_SUFFIX}")
        ]
        newest = {one.test: one for one in sorted(found, key=lambda one: one.at_ns)}
        return sorted(newest.values(), key=lambda one: one.test)


def stored_name(name: str, test: str) -> str:
    """Return the unique, printable name of a step's baseline in the store."""
    whole = f"{name}{SEPARATOR}{test}"
    plain = "".join(one if one.isprintable() else "?" for one in whole)
    if plain == whole and len(whole) <= MAX_NAME:
        return whole
    mark = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{plain[: MAX_NAME - _HASH_CHARACTERS - 1]}~{mark}"
