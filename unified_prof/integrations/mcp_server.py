"""MCP server of `uprof mcp`: the tools of `report_tools` over the official SDK, on stdio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from unified_prof.errors import UprofError, UsageError
from unified_prof.integrations.report_tools import READING_TOOLS, Answer, ReportTools
from unified_prof.version import VERSION

_INSTRUCTIONS = (
    "Performance of PyTorch training and inference, measured by uprof or recorded by other "
    "profilers. Begin with open_report, then summary and findings; use breakdown, source_cost, "
    "timeline_slice and what_if for details, compare for two runs, cluster_findings for many "
    "ranks. Figures have their unit in the key; null or a missing key is not measured. Cite the "
    "ids of findings and rows. Arguments of most tools: path, a file or directory; report, the "
    "number of a report in a directory, see open_report; limit, the maximum number of rows; "
    "cursor, next_cursor of the answer before if it is not null, for more rows."
)
_CONVERT = "if it is a recording of another profiler, use the tool convert"
# Maximum number of reports listed as resources; others are read by their path.
_MAX_RESOURCES = 200
# Maximum length of an error, which may quote an argument.
_MAX_TEXT = 400


def _brief(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def make_server(tools: ReportTools, *, allow_run: bool = False) -> Any:
    """Return the server; `run()` serves stdio until the client closes it.

    Raises:
        UsageError: The SDK is not installed.
    """
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ResourceError, ToolError
        from mcp.server.mcpserver.resources import FunctionResource
        from mcp.types import ToolAnnotations
    except ImportError as err:
        raise UsageError(
            "the MCP SDK (2 or newer) is not installed",
            hint="pip install 'unified-prof[mcp]'",
            slug="missing-package",
        ) from err

    def answering(method: Callable[..., Answer], kind: type[Exception]) -> Callable[..., str]:
        """Return the method with its answer as JSON, and errors of uprof as errors of the SDK."""

        @functools.wraps(method)
        def call(*args: Any, **values: Any) -> str:
            try:
                return msgspec.json.encode(method(*args, **values)).decode()
            except UprofError as err:
                hint = _CONVERT if err.slug == "not-a-report" else err.hint
                hint = f" ({hint})" if hint else ""
                raise kind(f"{_brief(str(err))}{_brief(hint)} [uprof:{err.slug}]") from None
            except OSError as err:  # a file that vanished, a name that is too long
                raise kind(f"cannot read: {err.strerror} [uprof:cannot-read]") from None

        return call

    server: Any = MCPServer("uprof", version=VERSION, instructions=_INSTRUCTIONS, log_level="ERROR")
    for name in (*READING_TOOLS, *(["run"] if allow_run else [])):
        notes = ToolAnnotations(read_only_hint=name != "run", open_world_hint=name == "run")
        tool = answering(getattr(tools, name), ToolError)
        described = server.tool(
            name=name,
            description=inspect.getdoc(tool),
            annotations=notes,
            structured_output=False,
        )
        described(tool)
        # By default, the SDK ignores arguments that a tool does not have.
        made = server._tool_manager.get_tool(name)
        made.fn_metadata.arg_model.model_config["extra"] = "forbid"
        made.fn_metadata.arg_model.model_rebuild(force=True)
        made.parameters["additionalProperties"] = False
    for path in tools.reports()[:_MAX_RESOURCES]:
        server.add_resource(
            FunctionResource(
                uri=f"uprof://report/{quote(path, safe='')}",
                name=path,
                description="Headline of this report",
                mime_type="application/json",
                fn=functools.partial(answering(tools.summary, ResourceError), path),
            )
        )
    return server
