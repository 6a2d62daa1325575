"""Write requirements.lock: the versions of constraints.txt with the hashes of their files.

    python scripts/lock.py                                      # after a change of constraints.txt
    python -m pip install --require-hashes -r requirements.lock # refuses any other file

The hashes are those that pip finds on the configured package index for Linux (x86-64, Python 3.11).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = "# Written by scripts/lock.py from constraints.txt; for pip install --require-hashes.\n"


def report() -> dict[str, Any]:
    """Return pip's report on the files that it would install."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "report.json")
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"),
                *("--dry-run", "--ignore-installed", "--no-deps", "--report", str(target)),
                *("-r", str(ROOT / "constraints.txt")),
            ],
            check=True,
        )
        found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Write the file and return an exit code."""
    lines = []
    for item in report()["install"]:
        about, hashes = item["metadata"], item["download_info"]["archive_info"]["hashes"]
        lines.append(f"{about['name']}=={about['version']} --hash=sha256:{hashes['sha256']}\n")
    LOCK.write_text(HEADER + "".join(sorted(lines, key=str.lower)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
