"""Full disks, read-only directories, and the memory for writing."""

import os
from pathlib import Path

import pytest

from tests.processes import python
from unified_prof.errors import OutputError
from unified_prof.sqlite.writer import ReportWriter

pytestmark = pytest.mark.fresh_interpreter

FILL_THE_DISK = """
import resource, sys
import numpy as np
from unified_prof.errors import UprofError
from unified_prof.sqlite.writer import ReportWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
try:
    with ReportWriter(sys.argv[1]) as report:
        for _ in range(100):
            report.write("TASK", {"startNs": np.arange(10_000)})
except UprofError as err:
    sys.exit(f"{err.exit_code} {err}")
"""

MEASURE = """
import sys
import numpy as np
from pathlib import Path
from unified_prof.sqlite.writer import ReportWriter

def resident_kb(field):
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))

rows = int(sys.argv[2])
task = {"startNs": np.arange(rows)[::-1].copy(), "globalTaskId": np.arange(rows)}
pmu = {"globalTaskId": np.arange(rows), "name": np.arange(rows) % 30, "value": np.random.rand(rows)}
before = resident_kb("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
with ReportWriter(sys.argv[1]) as report:
    report.write("TASK", task)
    report.write("TASK_PMU_INFO", pmu)
print(resident_kb("VmHWM") - before)
"""


@pytest.mark.slow
def test_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "msprof.db"
    run = python("-c", FILL_THE_DISK, target)
    assert run.stderr.startswith(f"9 cannot write {target}: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write to every directory")
def test_read_only_directory_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="is read-only, or this user may not write there"):
            ReportWriter(tmp_path / "msprof.db").__enter__()
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    used_kb = {}
    for rows in (50_000, 400_000):
        run = python("-c", MEASURE, tmp_path / f"{rows}.db", str(rows), check=True)
        used_kb[rows] = int(run.stdout)
    assert used_kb[400_000] < used_kb[50_000] + 20_000
