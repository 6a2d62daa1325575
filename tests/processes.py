"""Runs programs, and keeps what they print."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any


def run(
    *words: str | Path, env: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program with the variables `env` in addition to those of this process."""
    options = {"capture_output": True, "text": True, "timeout": 400, "check": False} | options
    return subprocess.run(words, env={**os.environ, **env}, **options)


def python(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python."""
    return run(sys.executable, *words, **options)


def uprof(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of uprof."""
    return python("-m", "unified_prof", *words, **options)
