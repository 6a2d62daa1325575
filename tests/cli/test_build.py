import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.prof_generator import Recipe, generate
from unified_prof.cli.app import app


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("whole"), Recipe(operators=3)).path


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["build", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def test_summary_lists_rows_and_times(original: Path, tmp_path: Path) -> None:
    code, out, err = run(original, "-o", tmp_path / "x.db")
    assert (code, out) == (0, "")
    assert f"{original} -> {tmp_path / 'x.db'}" in err
    assert "TASK" in err
    assert "CPU time" in err


def test_quiet_json_prints_only_json(original: Path, tmp_path: Path) -> None:
    code, out, err = run(original, "-o", tmp_path / "x.db", "--json", "-q")
    assert (code, err) == (0, "")
    (record,) = json.loads(out)
    assert record["database"] == str(tmp_path / "x.db")
    assert record["rows"]["TASK"] == 3
    assert record["cpu_seconds"]


def test_bad_recording_is_an_error_and_the_others_are_built(original: Path, tmp_path: Path) -> None:
    good = shutil.copytree(original, tmp_path / "PROF_1")
    (tmp_path / "PROF_2").mkdir()
    code, out, err = run(tmp_path, "--json")
    assert code == 6
    assert "PROF_2 has neither host/ nor device_<N>/" in err
    assert len(list(good.glob("msprof_*.db"))) == 1
    assert [record.get("exit_code") for record in json.loads(out)] == [None, 6]


def test_databases_are_replaced_only_with_force(original: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.db"
    assert run(original, "-o", target)[0] == 0
    code, _, err = run(original, "-o", target)
    assert code == 9
    assert "--force" in err
    assert run(original, "-o", target, "--force")[0] == 0
