"""pytest-uprof: the fixture `uprof` measures a step of a test and compares it with a baseline.

    def test_step(uprof):
        uprof.run(step)

    pytest --uprof-save main          # keep what was measured
    pytest --uprof-compare main       # later: fail where it is slower

pytest imports this module at its start, in every session of an environment that has uprof. So it
imports nothing, and does nothing, before a test asks for the fixture: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import pytest

if hasattr(pytest, "StashKey"):  # an older pytest than 7 goes on without the plugin
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_addoption as pytest_addoption,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_configure as pytest_configure,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_configure_node as pytest_configure_node,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_runtest_call as pytest_runtest_call,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_sessionfinish as pytest_sessionfinish,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_terminal_summary as pytest_terminal_summary,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        pytest_unconfigure as pytest_unconfigure,
    )
    from unified_prof.integrations.pytest_uprof.hooks import (
        uprof as uprof,
    )
