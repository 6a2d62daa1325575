"""pytest-uprof: the fixture `uprof` measures a step of a test and compares it with a baseline.

    def test_step(uprof):
        uprof.run(step)

    pytest --uprof-save main          # save the results as baseline main
    pytest --uprof-compare main       # later: fail if a step is slower

pytest imports this module in every session of an environment that has uprof, so nothing heavy is
imported before a test uses the fixture. PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pytest

if hasattr(pytest, "StashKey"):  # pytest older than 7 runs without the plugin
    from unified_prof.integrations.pytest_uprof.hooks import (  # noqa: F401 (found by pytest)
        pytest_addoption,
        pytest_configure,
        pytest_configure_node,
        pytest_runtest_call,
        pytest_sessionfinish,
        pytest_terminal_summary,
        pytest_unconfigure,
        uprof,
    )
