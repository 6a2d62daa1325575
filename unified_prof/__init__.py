"""uprof: one profiler for PyTorch on NVIDIA CUDA, Huawei Ascend NPUs and the CPU.

The public API in one screen; everything is imported when it is first used, so that
`import unified_prof` loads neither torch nor NumPy nor SQLAlchemy. pytest rewrites the asserts of
packages that bring a plugin, and complains where they are imported before it: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unified_prof.version import VERSION

__version__ = VERSION

_EXPORTS: dict[str, str] = {
    "advise": "unified_prof.explain.api",
    "detect": "unified_prof.sqlite.detect",
    "diff": "unified_prof.compare.device_diff",
    "figures": "unified_prof.report.api",
    "gate": "unified_prof.report.api",
    "open_report": "unified_prof.sqlite.reader",
    "profile": "unified_prof.pipeline.live",
    "step": "unified_prof.tracking.live",
    "trace_handler": "unified_prof.integrations.measurement",
    "upgrade": "unified_prof.migrate.upgrade",
    "what_if": "unified_prof.explain.api",
}
"""Public name -> module that defines it."""

__all__ = [
    "__version__",
    "advise",
    "detect",
    "diff",
    "figures",
    "gate",
    "open_report",
    "profile",
    "step",
    "trace_handler",
    "upgrade",
    "what_if",
]


def __getattr__(name: str) -> Any:
    """Import a public name the first time it is asked for."""
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Add the magics `%%uprof` and `%uprof` to IPython: `%load_ext unified_prof`."""
    import_module("unified_prof.integrations.notebook").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again: `%unload_ext unified_prof`."""
    import_module("unified_prof.integrations.notebook").unload(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from unified_prof.compare.device_diff import diff
    from unified_prof.explain.api import advise, what_if
    from unified_prof.integrations.measurement import trace_handler
    from unified_prof.migrate.upgrade import upgrade
    from unified_prof.pipeline.live import profile
    from unified_prof.report.api import figures, gate
    from unified_prof.sqlite.detect import detect
    from unified_prof.sqlite.reader import open_report
    from unified_prof.tracking.live import step
