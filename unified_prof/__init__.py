"""uprof: one profiler for PyTorch on NVIDIA CUDA, Huawei Ascend NPUs and the CPU.

Public names are imported on first use, so that `import unified_prof` loads neither torch nor NumPy
nor SQLAlchemy. PYTEST_DONT_REWRITE keeps pytest, which loads the plugin of this package, from
warning that the package is already imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unified_prof.version import VERSION

__version__ = VERSION

# Public name -> module that defines it.
_EXPORTS: dict[str, str] = {
    "advise": "unified_prof.explain.api",
    "detect": "unified_prof.sqlite.opening",
    "diff": "unified_prof.compare.device_diff",
    "figures": "unified_prof.report.api",
    "gate": "unified_prof.report.api",
    "open_report": "unified_prof.sqlite.reader",
    "profile": "unified_prof.pipeline.live",
    "step": "unified_prof.tracking.live",
    "trace_handler": "unified_prof.integrations.measurement",
    "upgrade": "unified_prof.migrate.upgrade",
    "watch": "unified_prof.pipeline.live",
    "what_if": "unified_prof.explain.api",
}

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
    "watch",
    "what_if",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
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
    """Remove the magics: `%unload_ext unified_prof`."""
    import_module("unified_prof.integrations.notebook").unload(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from unified_prof.compare.device_diff import diff
    from unified_prof.explain.api import advise, what_if
    from unified_prof.integrations.measurement import trace_handler
    from unified_prof.migrate.upgrade import upgrade
    from unified_prof.pipeline.live import profile, watch
    from unified_prof.report.api import figures, gate
    from unified_prof.sqlite.opening import detect
    from unified_prof.sqlite.reader import open_report
    from unified_prof.tracking.live import step
