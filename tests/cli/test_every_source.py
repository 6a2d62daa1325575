"""Every kind of recording, converted or passed directly to each command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_report import Done, uprof
from tests.migrate.databases import LATEST, make, make_msmonitor
from tests.pipeline.test_sources import MAKERS


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(params=MAKERS)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return MAKERS[request.param](tmp_path / "in")


def succeeded(done: Done) -> Done:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def read_all(path: Path, folder: Path, *more: str) -> None:
    """Read a report or a recording with every command."""
    text = succeeded(uprof("report", path, *more)).stdout
    assert "msprof database" in text
    (document,) = json.loads(succeeded(uprof("report", path, "--json", *more)).stdout)["reports"]
    assert document["family"] == "msprof"
    page = folder / "page.html"
    succeeded(uprof("report", path, "-o", page, "--force", *more))
    assert page.read_text().startswith("<!doctype html>")
    timeline = folder / "timeline.json"
    succeeded(uprof("trace", path, "-o", timeline, "--force", *more))
    assert json.loads(timeline.read_text())["traceEvents"]
    difference = json.loads(succeeded(uprof("diff", path, path, "--json", *more)).stdout)
    assert difference
    verdict = uprof("gate", path, path, "--json", *more)
    assert verdict.returncode in (0, 3), verdict.stderr
    assert json.loads(verdict.stdout)["exit_code"] == verdict.returncode


@pytest.mark.quick(cases=2)
def test_every_recording_can_be_imported_and_read(recording: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.db"
    message = succeeded(uprof("import", recording, "-o", report)).stderr
    assert f"{recording} -> {report}" in message
    read_all(report, tmp_path)


@pytest.mark.quick(cases=1)
def test_every_recording_can_be_read_with_convert(recording: Path) -> None:
    text = succeeded(uprof("report", recording, "--convert")).stdout
    assert "msprof database" in text
    message = uprof("report", recording)
    assert message.returncode == 7
    assert "first, or use --convert" in message.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kineto", "prof"])
def test_every_command_can_convert(kind: str, tmp_path: Path) -> None:
    read_all(MAKERS[kind](tmp_path / "in"), tmp_path, "--convert")


def test_conversion_is_noted_once_and_never_with_quiet(tmp_path: Path) -> None:
    trace = MAKERS["kineto"](tmp_path / "in")
    done = succeeded(uprof("report", trace, "--convert"))
    message = done.stderr
    assert done.stdout.startswith(f"{trace.name.partition('.')[0]}.db: torch.profiler trace"), (
        "no hash"
    )
    assert message.startswith(f"uprof: note: {trace} is a torch.profiler trace; its report is ")
    assert message.count("\n") == 1
    assert succeeded(uprof("report", trace, "--convert", "-q")).stderr == ""


def test_bad_trace_of_a_rank_is_reported_as_a_damaged_report(tmp_path: Path) -> None:
    for rank in (0, 1):
        MAKERS["kineto"](tmp_path / "run" / f"rank{rank}")
    bad = tmp_path / "run" / "rank1" / "run.pt.trace.json"
    bad.write_text('{"schemaVersion": 1, "traceEvents": 5}')
    done = uprof("report", tmp_path / "run", "--convert")
    assert done.returncode == 7
    assert "1 of 2 re" in done.stderr
    assert str(bad) in done.stderr
    alone = uprof("report", bad, "--convert")
    assert (alone.returncode, alone.stdout) == (6, "")


def test_comparison_shows_the_names_of_the_original_recordings(tmp_path: Path) -> None:
    traces = [MAKERS["kineto"](tmp_path / "runs" / name) for name in ("base", "new")]
    text = succeeded(uprof("diff", *traces, "--convert")).stdout
    assert f"{traces[0]} -> {traces[1]}" in text
    ambiguous = uprof("gate", traces[0].parent, tmp_path / "runs", "--convert")
    assert ambiguous.returncode == 2
    assert "has 2 recordings" in ambiguous.stderr


def test_recording_can_be_saved_as_baseline_with_convert(tmp_path: Path) -> None:
    trace = MAKERS["kineto"](tmp_path / "in")
    store = ("--store", tmp_path / "store.sqlite")
    refused = uprof("baseline", "save", "main", trace, *store)
    assert refused.returncode != 0
    assert "--convert" in refused.stderr
    succeeded(uprof("baseline", "save", "main", trace, *store, "--convert"))
    (entry,) = json.loads(succeeded(uprof("baseline", "list", "--json", *store)).stdout)
    assert entry["label"] == str(trace)
    verdict = uprof("gate", trace, "--baseline", "main", *store, "--convert")
    assert verdict.returncode in (0, 3), verdict.stderr


@pytest.mark.parametrize("kind", ["prof", "ascend_pt", "ascend_text"])
def test_ascend_recordings_are_exported_during_conversion(kind: str, tmp_path: Path) -> None:
    recording = MAKERS[kind](tmp_path / "in")
    done = uprof("export", recording, "-o", tmp_path / "out", "--convert")
    assert done.returncode in (0, 2), done.stderr
    if kind == "prof":
        assert done.returncode == 0
        assert not (tmp_path / "cache").exists(), "a temporary database is used"
    else:
        assert (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("msmonitor_4242_20260301120000000_0.db", make_msmonitor),
        ("ascend_mindspore_profiler_0.db", lambda path: make(path, LATEST)),
    ],
)
def test_databases_of_mindspore_and_msmonitor_are_read_directly(
    name: str, make: Callable[[Path], Path], tmp_path: Path
) -> None:
    database = make(tmp_path / name)
    for arguments in ((), ("--convert",)):
        (one,) = json.loads(succeeded(uprof("report", database, "--json", *arguments)).stdout)[
            "reports"
        ]
        assert one["path"] == str(database)
        assert one["family"] == "msprof"
    done = uprof("import", database)
    assert done.returncode == 2
    assert "is a finished report" in done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("command", [("report",), ("trace", "-o", "t.json")])
def test_profiles_of_jax_are_recognized(command: tuple[str, ...], tmp_path: Path) -> None:
    profile = tmp_path / "host.xplane.pb"
    profile.write_bytes(b"\x0a")
    for more in ((), ("--convert",)):
        done = uprof(command[0], profile, *command[1:], *more)
        assert done.returncode == 7
        assert "it is a JAX or TensorFlow profile (XPlane)" in done.stderr
