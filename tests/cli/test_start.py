"""What a command imports is what its files ask for: start-up is most of a small report's time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.builders import memory_report, run_time_report

HEAVY = (
    "unified_prof.analysis.recording",
    "unified_prof.pipeline.sources",
    "unified_prof.cluster.stored",
    "unified_prof.decoders",
    "pyarrow",
    "torch",
)


@pytest.mark.parametrize(
    "command", [("report", "run"), pytest.param(("gate", "run", "run"), marks=pytest.mark.slow)]
)
def test_reports_of_operations_need_nothing_of_timelines(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    run_time_report(tmp_path / "run" / "run_time.sqlite", [("linear", 1.5, 3.0, [("m.py", 1)])])
    memory_report(tmp_path / "run" / "memory.sqlite")
    code = (
        "import sys\n"
        "from unified_prof.__main__ import main\n"
        "try:\n"
        f"    sys.argv = ['uprof', *{command!r}]\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
