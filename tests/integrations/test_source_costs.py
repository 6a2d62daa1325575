"""Files of an editor are found among the files of a run."""

from pathlib import Path

import pytest

from unified_prof.integrations.source_costs import SourceCosts

PROJECT = Path("/home/me/project")


@pytest.mark.parametrize(
    ("root", "recorded", "opened", "expected"),
    [
        # In the project, only the path from its root counts.
        (PROJECT, ["net/model.py"], "/home/me/project/net/model.py", "net/model.py"),
        (PROJECT, ["model.py"], "/home/me/project/net/model.py", None),
        # Elsewhere, and without a known root, the longest end of the path.
        (PROJECT, ["/lib/torch/nn.py"], "/lib/torch/nn.py", "/lib/torch/nn.py"),
        (None, ["model.py", "net/model.py"], "/elsewhere/net/model.py", "net/model.py"),
        (None, ["net/model.py"], "/elsewhere/subnet/model.py", None),
        (None, ["net/model.py"], "net/model.py", "net/model.py"),
        (None, ["/lib/torch/nn.py"], "/other/lib/torch/nn.py", None),
    ],
)
def test_file_is_found_by_its_path(
    root: Path | None, recorded: list[str], opened: str, expected: str | None
) -> None:
    costs = SourceCosts(Path("run.db"), 0.0, {name: {} for name in recorded}, root=root)
    assert costs.file_of(Path(opened)) == expected
