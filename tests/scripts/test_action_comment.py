"""The comment on a pull or merge request is written by the first run and updated by later ones."""

import os
import re
import runpy
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.forkserver import interpreter
from tests.processes import run
from tests.scripts import forge
from tests.scripts.forge import ACCOUNT, TOKEN, Forge
from tests.scripts.test_action import SCRIPT, TEMPLATE, make_repository, programs

MARK = "<!-- uprof gate -->"
COMMENT: dict[str, Any] = runpy.run_path(str(ROOT / "action" / "comment.py"))


@pytest.fixture
def server() -> Iterator[Forge]:
    with forge.serving() as running:
        yield running


def github(server: Forge) -> dict[str, str]:
    return {
        "GH_TOKEN": TOKEN,
        "GITHUB_REPOSITORY": "unified-prof/uprof",
        "GITHUB_API_URL": server.address,
        "UPROF_PULL_REQUEST": "7",
    }


def gitlab(server: Forge) -> dict[str, str]:
    return {
        "UPROF_GITLAB_TOKEN": TOKEN,
        "CI_API_V4_URL": f"{server.address}/api/v4",
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "7",
    }


@pytest.fixture(params=[github, gitlab], ids=["github", "gitlab"])
def place(
    request: pytest.FixtureRequest, server: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Forge:
    """Return a server with a pull or merge request without comments."""
    for name in (*github(server), *gitlab(server)):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**request.param(server), "UPROF_WORK": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("time.sleep", lambda _: None)
    return server


def write(folder: Path, text: str = "pass", mark: str = MARK) -> int:
    (folder / "comment.md").write_text(f"{mark}\n{text}\n", encoding="utf-8")
    code: int = COMMENT["main"]()
    return code


def test_first_run_creates_the_comment_next_updates_it(place: Forge, tmp_path: Path) -> None:
    place.comments += [{"id": one, "body": f"about {MARK}"} for one in range(150)]
    assert write(tmp_path, "⚠️ unclear") == 0
    assert write(tmp_path, "✅ pass") == 0
    assert place.bodies()[150:] == [f"{MARK}\n✅ pass\n"]


def test_comment_of_another_account_is_not_updated(place: Forge, tmp_path: Path) -> None:
    """Its author could edit the verdict."""
    stranger = {"user": {"login": "attacker"}, "author": {"id": 6}}
    place.comments += [{"id": 77, "body": f"{MARK}\nhi", **stranger}]
    place.comments += [{"id": 78, "body": f"{MARK}\nhi", "user": None, "author": None}]
    assert write(tmp_path, "first") == 0
    assert write(tmp_path, "second") == 0
    assert place.bodies() == [f"{MARK}\nhi", f"{MARK}\nhi", f"{MARK}\nsecond\n"]


def test_account_of_a_github_token_can_be_named(
    server: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**github(server), "UPROF_WORK": str(tmp_path), "UPROF_COMMENT_AUTHOR": "me"}
    for name, value in {**environment, "no_proxy": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    server.comments.append({"id": 9, "body": MARK, "user": {"login": "me"}})
    assert write(tmp_path, "new") == 0
    assert server.bodies() == [f"{MARK}\nnew\n"]


def test_gates_with_different_names_have_separate_comments(place: Forge, tmp_path: Path) -> None:
    for text in ("first", "second"):
        for name in ("", " gpu", " npu"):
            assert write(tmp_path, text, f"<!-- uprof gate{name} -->") == 0
    assert [body.splitlines()[1] for body in place.bodies()] == ["second"] * 3


def test_long_comment_is_truncated_with_its_markup_closed(place: Forge, tmp_path: Path) -> None:
    assert write(tmp_path, "<details>\n" + "ä line\n" * 20_000) == 0
    (body,) = place.bodies()
    assert len(body) < 65_536
    assert body.endswith("(truncated; the job's files have the rest)\n</details>")


def test_token_without_permission_skips_the_comment_and_the_job_passes(
    place: Forge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.failures = [403]
    assert write(tmp_path) == 0
    assert place.comments == []
    errors = capsys.readouterr().err
    assert "may not comment here (403" in errors
    assert TOKEN not in errors


def test_busy_server_is_retried(place: Forge, tmp_path: Path) -> None:
    place.failures = [502, 503]
    assert write(tmp_path) == 0
    assert len(place.comments) == 1


def test_permanent_server_error_is_reported(
    place: Forge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.failures = [500] * 3
    assert write(tmp_path) == 1
    assert "cannot write the comment: 500" in capsys.readouterr().err


def test_missing_server_is_reported(
    place: Forge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("GITHUB_API_URL", "CI_API_V4_URL"):
        monkeypatch.setenv(name, "file:///etc")
    assert write(tmp_path) == 1
    assert "is not an HTTP address" in capsys.readouterr().err


def test_nothing_is_written_without_a_verdict_request_or_token(
    place: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COMMENT["main"]() == 0
    for name in ("GH_TOKEN", "UPROF_GITLAB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert write(tmp_path) == 0
    assert place.requests == []


_HOSTILE = (
    "$(touch${IFS}PWN)",
    "`touch${IFS}PWN`",
    "a;touch${IFS}PWN;b",
    "a&&touch${IFS}PWN|b",
    "'\"$(touch${IFS}PWN)",
    "main>PWN",
    "#!{touch,PWN}",
)
# Stands in for uprof: records its arguments and finds a regression.
_RECORDER = """#!/bin/sh
printf '%s\\n' "$@" >>"$UPROF_WORK/arguments"
[ "$1" = gate ] || exit 0
echo '## verdict' >>"$GITHUB_STEP_SUMMARY"
exit 1
"""


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_branches_and_paths_run_nothing(server: Forge, tmp_path: Path, name: str) -> None:
    repository, work = tmp_path / "repository", tmp_path / f"work {name}"
    make_repository(repository, "", "changed = True")
    subprocess.run(["git", "branch", name, "HEAD~1"], cwd=repository, check=True)
    programs(tmp_path / "bin")
    (tmp_path / "bin" / "uprof").write_text(_RECORDER)
    environment = {
        **os.environ,
        **github(server),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "UPROF_COMMAND": f"train.py {name}",
        "UPROF_BASE_REF": name,
        "UPROF_METRICS": f"operation:{name}",
        "UPROF_MAX_REGRESS": name,
        "UPROF_ROUNDS": name,
        "UPROF_NAME": f"{name}\n--upload-pack=x -c",
        "UPROF_WORK": str(work),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "no_proxy": "127.0.0.1",
    }
    for script, code in (("gate.sh", 1), ("comment.py", 0)):
        done = subprocess.run(
            [str(ROOT / "action" / script)],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert TOKEN not in done.stdout + done.stderr
    assert f"train.py {name}\n" in (work / "arguments").read_text()
    assert [name in body for body in server.bodies()] == [True]
    assert [path for path in tmp_path.rglob("PWN") if path.name == "PWN"] == []
    assert not Path("PWN").exists()


def job(**inputs: str) -> tuple[dict[str, str], list[str]]:
    """Return variables and script of the component's job with its inputs inserted, like GitLab."""
    yaml = import_module("yaml")
    header, _, text = TEMPLATE.read_text(encoding="utf-8").partition("\n---\n")
    inputs_of_job: dict[str, object] = {
        name: one.get("default") for name, one in yaml.safe_load(header)["spec"]["inputs"].items()
    }
    inputs_of_job |= inputs

    def value(match: re.Match[str]) -> str:
        one = inputs_of_job[match[1]]
        return one if isinstance(one, str) else import_module("json").dumps(one)

    document = yaml.safe_load(re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", value, text))
    (found,) = document.values()
    return found["variables"], found["script"]


def test_component_quotes_all_inputs() -> None:
    command = "bert=--backend cuda 'my train.py' --name \"a: b\" # $HOME"
    found, script = job(commands=[command, "vit=x.py"], setup='pip install -e ".[dev]" && make')  # type: ignore[arg-type]
    assert import_module("json").loads(found["UPROF_COMMANDS"]) == [command, "vit=x.py"]
    assert found["UPROF_SETUP"] == 'pip install -e ".[dev]" && make'
    assert found["UPROF_MAX_REGRESS"] == "5%"
    assert all(isinstance(line, str) for line in script)
    assert job(commands=["x.py"])[0]["UPROF_SETUP"] == ""  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.forks_of_commands
def test_component_measures_workloads_and_writes_one_note(server: Forge, tmp_path: Path) -> None:
    repository, work = tmp_path / "repository", tmp_path / "work"
    slow = SCRIPT.replace("{seconds}", "0.1 if 'b' in sys.argv else 0.01")
    both = SCRIPT.replace("{seconds}", "0.01")
    base = make_repository(repository, f"import sys{both}", f"import sys{slow}")
    options = "--backend cpu --iterations 6 train.py"
    found, script = job(commands=[f"one={options} a", f"two={options} b"])  # type: ignore[arg-type]
    mark = "<!-- uprof gate uprof-gate -->"
    server.comments.append({"id": 3, "body": f"{mark}\nof yesterday", **ACCOUNT})
    with interpreter(tmp_path) as python:
        done = run(
            *("bash", "-eo", "pipefail", "-c", "\n".join(script)),
            cwd=repository,
            env={
                **found,
                **gitlab(server),
                "PATH": programs(tmp_path / "bin", python),
                "UPROF_BASE_REF": base,
                "UPROF_WORK": str(work),
                "UPROF_ROUNDS": "3",
                "no_proxy": "127.0.0.1",
            },
        )
    assert done.returncode == 1, done.stdout + done.stderr
    (body,) = server.bodies()
    assert body.startswith("<!-- uprof gate uprof-gate -->\n**uprof-gate**\n\n## ❌ uprof gate")
    rows = [line.split(" | ")[:3] for line in body.splitlines() if line.startswith("| ")]
    assert ["| two", "total", "regression"] in rows
    assert any(row[0] == "| geometric mean" for row in rows)
    assert "<summary>What changed in two</summary>" in body
    assert "<summary>What changed in one</summary>" in body
    assert (work / "verdict.xml").is_file()
    assert TOKEN not in done.stdout + done.stderr
