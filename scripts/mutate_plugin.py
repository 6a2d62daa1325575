"""Plugin of pytest for `scripts/mutate.py`: records which lines each test runs, and runs mutants.

To record, pytest runs under coverage. To run mutants, pytest collects all tests once. Each mutant
then takes a fork of that process, in which the changed functions get their new code; that is ten
times as fast as starting pytest.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from mutate_context import TEST

import unified_prof

# File for the CPU time and the fixtures of each test; with it, the plugin records.
COSTS = "UPROF_MUTATE_COSTS"
# Descriptors to read mutants from and to write the verdicts to; with them, the plugin runs mutants.
PIPES = "UPROF_MUTATE_PIPES"
FIXTURE = " uses "  # in the name of what a fixture runs that several tests share
# Limit of the memory of a fork: mutants may allocate a whole range of 64-bit numbers.
MEMORY_BYTES = 4 << 30
IMPORTED = "runs at import"  # verdict: the mutant changes no function

_records: dict[str, tuple[float, list[str]]] = {}


def _switch(context: str) -> str:
    before = os.environ.get(TEST, "")
    os.environ[TEST] = context
    return before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record the lines and the CPU time of a test."""
    if COSTS not in os.environ:
        return (yield)
    _switch(item.nodeid)
    start_s = sum(os.times()[:4])
    try:
        return (yield)
    finally:
        cost_s = round(sum(os.times()[:4]) - start_s, 2)
        _records[item.nodeid] = cost_s, list(getattr(item, "fixturenames", []))
        _switch("")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Record what a shared fixture runs for all tests that use it."""
    if COSTS not in os.environ or fixturedef.scope == "function":
        return (yield)
    before = _switch(f"{request.node.nodeid}{FIXTURE}{fixturedef.argname}")
    try:
        return (yield)
    finally:
        _switch(before)


def pytest_sessionfinish() -> None:
    """Write the CPU time and the fixtures of all tests."""
    if COSTS in os.environ:
        file = Path(os.environ[COSTS])
        earlier = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        files = {test.partition("::")[0] for test in _records}
        kept = {test: one for test, one in earlier.items() if test.partition("::")[0] not in files}
        file.write_text(json.dumps(kept | _records), encoding="utf-8")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run mutants that the script sends, one per line, each in a fork of this process."""
    if PIPES not in os.environ:
        return None
    asked, answers = map(int, os.environ[PIPES].split(","))
    for module in pkgutil.walk_packages(unified_prof.__path__, "unified_prof."):
        with suppress(ImportError):  # an optional package is missing
            importlib.import_module(module.name)
    collected = [item.nodeid for item in session.items]
    os.write(answers, (json.dumps(collected) + "\n").encode())
    with os.fdopen(asked, encoding="utf-8") as lines:
        for line in lines:
            request = json.loads(line)
            verdict = _in_fork(session, request)
            os.write(answers, (json.dumps(verdict) + "\n").encode())
    return True


def _in_fork(session: pytest.Session, request: dict[str, object]) -> object:
    receive, send = os.pipe()
    if not (child := os.fork()):
        os.setsid()
        verdict: object = None
        try:
            verdict = _run(session, **request)  # type: ignore[arg-type]
        except BaseException as error:
            verdict = f"pytest fails: {error!r}"
        finally:
            os.write(send, json.dumps(verdict).encode())
            os._exit(0)
    os.close(send)
    limit_s = float(str(request["limit_s"]))
    try:
        if not select.select([receive], [], [], limit_s)[0]:
            return f"more than {limit_s:.0f} s"
        return json.loads(os.read(receive, 1 << 16) or b'"the process of the tests ends"')
    finally:
        os.close(receive)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _run(
    session: pytest.Session,
    path: str,
    old: str,
    new: str,
    tests: list[str],
    folder: str,
    limit_s: float,
) -> str | None:
    """Change functions, run tests; return the first that fails."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    if new != old and not _patch(path, old, new):
        return IMPORTED
    failed: list[str] = []

    class Failures:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

    session.config.pluginmanager.register(Failures())
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = Path(folder), None
    by_name = {item.nodeid: item for item in session.items}
    items = [by_name[name] for name in tests if name in by_name]
    for item, following in zip(items, [*items[1:], None], strict=False):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed:
            break
    session._setupstate.teardown_exact(None)
    return failed[0] if failed else None


def _patch(path: str, old: str, new: str) -> bool:
    """Give functions of a module their new code; return False if that is impossible."""
    changed = {
        key: code for key, code in _codes(compile(new, path, "exec"), {}) if key[0] != "<module>"
    }
    unchanged = dict(_codes(compile(old, path, "exec"), {}))
    changed = {key: code for key, code in changed.items() if code != unchanged.get(key)}
    if not changed:
        return False
    lines = {(unchanged[key].co_qualname, unchanged[key].co_firstlineno): key for key in changed}
    gc.unfreeze()
    patched = 0
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__code__.co_filename != path:
            continue
        code = function.__code__
        if (key := lines.get((code.co_qualname, code.co_firstlineno))) is not None:
            try:
                function.__code__ = changed[key]
            except ValueError:  # other free variables
                return False
            patched += 1
    gc.freeze()
    return patched > 0


def _codes(code: CodeType, seen: dict[str, int]) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Yield all code objects with their names, numbered because properties have equal names."""
    number = seen[code.co_qualname] = seen.get(code.co_qualname, 0) + 1
    yield (code.co_qualname, number), code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner, seen)
