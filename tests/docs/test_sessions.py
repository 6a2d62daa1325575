"""The recorded sessions are complete and short, and the page shows them."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT

CASTS = sorted((ROOT / "docs" / "sessions").glob("*.cast"))


def recorder() -> ModuleType:
    """Return the recording script as a module."""
    path = ROOT / "scripts" / "record_sessions.py"
    spec = importlib.util.spec_from_file_location("record_sessions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_session_has_one_recording() -> None:
    assert [one.stem for one in CASTS] == sorted(one.name for one in recorder().ALL)


@pytest.mark.parametrize("cast", CASTS, ids=lambda cast: cast.stem)
def test_recording_is_complete_short_and_anonymous(cast: Path) -> None:
    head, *events = map(json.loads, cast.read_text(encoding="utf-8").splitlines())
    assert head["version"] == 2
    assert head["width"] > 0
    times = [at for at, kind, _ in events if kind == "o"]
    assert times == sorted(times)
    assert times[-1] < 120, "a session takes at most two minutes"
    shown = "".join(text for _, _, text in events)
    assert not re.search(r"(?<![\w.:~])/(?:home|root|tmp|work|Users|var|opt)/", shown)
    assert "Traceback" not in shown


@pytest.mark.parametrize("cast", CASTS, ids=lambda cast: cast.stem)
def test_recording_contains_the_commands_of_its_session(cast: Path) -> None:
    session = next(one for one in recorder().ALL if one.name == cast.stem)
    _, *events = map(json.loads, cast.read_text(encoding="utf-8").splitlines())
    typed = [text[2:].strip() for _, _, text in events if text.startswith("$ ")]
    assert [one for one in typed if one] == list(session.commands)
    assert (ROOT / "examples" / "sessions" / session.script).is_file()


def test_page_embeds_the_recordings() -> None:
    stored = (ROOT / "docs" / "sessions.md").read_text(encoding="utf-8")
    assert stored == recorder().page(), "run scripts/record_sessions.py --pages"
