"""Reuse of freed memory by the C library."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from unified_prof.base import process_tuning

pytestmark = pytest.mark.fresh_interpreter

_FAULTS = """
import resource, sys
import numpy as np
from unified_prof.base import process_tuning
if sys.argv[1] == "keep":
    process_tuning.keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def some():
    columns = [np.ones(300_000) for _ in range(8)]
    return sum(column[0] for column in columns)
some()
before = faults()
for _ in range(10):
    some()
print(faults() - before)
"""


def _faults(how: str) -> int:
    command = [sys.executable, "-c", _FAULTS, how]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(result.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library alone")
def test_freed_memory_is_reused_without_page_faults() -> None:
    assert _faults("as usual") > 10 * _faults("keep") + 1000


def test_other_c_libraries_are_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (lambda _: object(), os.stat):
        monkeypatch.setattr(ctypes, "CDLL", library)
        process_tuning.keep_memory()
