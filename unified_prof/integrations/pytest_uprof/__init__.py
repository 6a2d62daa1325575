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

# pytest older than 7 runs without the plugin
pytest_plugins = (
    ["unified_prof.integrations.pytest_uprof.hooks"] if hasattr(pytest, "StashKey") else []
)
