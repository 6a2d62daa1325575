"""Options after the module belong to the module."""

import pytest

from unified_prof.cli.run_options import end_options_after_module


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (["-m", "pkg", "--epochs", "3"], ["-m", "pkg", "--", "--epochs", "3"]),
        (["-q", "-m", "pkg", "-m", "x"], ["-q", "-m", "pkg", "--", "-m", "x"]),
        (["--module=pkg", "--json"], ["--module=pkg", "--", "--json"]),
        (["-mpkg", "--json"], ["-mpkg", "--", "--json"]),
        (["--backend", "-m", "-m", "pkg", "-q"], ["--backend", "-m", "-m", "pkg", "--", "-q"]),
        (["--backend=cpu", "-m", "pkg"], ["--backend=cpu", "-m", "pkg", "--"]),
        (["-m", "pkg", "--", "x"], ["-m", "pkg", "--", "--", "x"]),
        # These belong to the script or follow `--`.
        (["train.py", "-m", "pkg"], ["train.py", "-m", "pkg"]),
        (["--", "-m", "pkg"], ["--", "-m", "pkg"]),
        (["--backend", "cpu", "train.py", "-m"], ["--backend", "cpu", "train.py", "-m"]),
        (["-m"], ["-m", "--"]),
        ([], []),
    ],
)
def test_only_module_option_of_uprof_ends_its_options(ours: list[str], expected: list[str]) -> None:
    assert end_options_after_module(ours, frozenset({"--backend", "-m", "--module"})) == expected
