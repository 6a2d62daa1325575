"""How decoding tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Stage = Callable[[str], AbstractContextManager[Any]]
"""Entered around each part of the work, with its name: for timing and progress."""
