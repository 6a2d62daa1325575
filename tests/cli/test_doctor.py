"""`uprof doctor` and detection of the Ascend toolkit."""

import json
import platform
from pathlib import Path

import pytest

from tests.backends import toy
from unified_prof import __version__
from unified_prof.backends import cann
from unified_prof.cli.app import main


def doctor(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert not ended.value.code


def test_json_lists_versions_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    doctor("--json")
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["uprof"] == __version__
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"]
    assert {"torch_npu", "cuda", "cann", "msprof"} <= found["versions"].keys()
    assert found["backends"]["cpu"]["available"] is True
    assert [*found["backends"]][:3] == ["npu", "cuda", "cpu"]


def test_text_output_shows_the_same_as_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.install(monkeypatch, off="tests.backends.toy:UnavailableBackend")
    doctor()
    out = capsys.readouterr().out
    assert "off      no         switched off" in out
    assert f"uprof        {__version__}" in out
    assert "\n\ninstalled\n" in out


def test_toolkit_is_found_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "toolkit"
    msprof = home / "tools" / "profiler" / "bin" / "msprof"
    msprof.parent.mkdir(parents=True)
    msprof.write_text("#!/bin/sh\n")
    msprof.chmod(0o755)
    info = home / "aarch64-linux" / "ascend_toolkit_install.info"
    info.parent.mkdir()
    info.write_text("package_name=Ascend-cann-toolkit\nversion=8.2.RC1\ninnerversion=V1\n")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ASCEND_TOOLKIT_HOME", str(home))
    assert cann.find_msprof() == msprof
    assert cann.version() == "8.2.RC1"
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    assert cann.find_msprof() == msprof


def test_msprof_on_path_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first/bin", "second"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "msprof").write_text("#!/bin/sh\n")
        (tmp_path / folder / "msprof").chmod(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "first"))
    monkeypatch.setenv("PATH", str(tmp_path / "second"))
    assert cann.find_msprof() == tmp_path / "second" / "msprof"


def test_chip_name_is_read_from_npu_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "npu-smi"
    smi.write_text(
        "#!/bin/sh\necho '\tNPU ID   Chip ID   Chip Logic ID   Chip Name'\n"
        "echo '\t0        0         0               Ascend 910B3'\n"
        "echo '\t0        1         -               Mcu'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert cann.chip() == "Ascend 910B3"
    monkeypatch.setenv("PATH", "")
    assert cann.chip() is None
