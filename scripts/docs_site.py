"""Pages of the documentation site that are generated from the program.

mkdocs loads this file as a hook (mkdocs.yml). `commands()` generates the reference of all commands
from their declared options; the schema pages come from the scripts that print them. `messages()`
collects the messages of each error from the source, for docs/troubleshooting.md.
"""

from __future__ import annotations

import ast
import logging
import re
import runpy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.docs_site")
ROOT = Path(__file__).resolve().parent.parent
ERRORS_PAGE = "troubleshooting.md"
Nodes = Mapping[Path, Sequence[ast.AST]]  # of each module
# Elements that a browser loads from another host.
LOADS = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"' >]+"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|prev|next|me)\b)[^>]*"
    r"\bhref=[\"']?(?:https?:)?//[^\"' >]+"
    r"|api\.github\.com[^\"' >]*"
)

_INTRODUCTION = """\
# Commands

All commands and options, as in `uprof COMMAND --help-all`. The environment variable and the key in
pyproject.toml follow the name of an option: `--format` of `uprof gate` is `UPROF_GATE_FORMAT`, and
`format` in `[tool.uprof.gate]`. Options take precedence over variables, variables over the file.

"""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, content in GENERATED.items():
        files.append(File.generated(config, path, content=content()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add the messages of errors to the troubleshooting page."""
    if page.file.src_uri == ERRORS_PAGE:
        return with_messages(markdown)
    return markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Warn about pages that load anything from the network; fails a strict build."""
    for path in sorted(Path(config["site_dir"]).rglob("*.html")):
        for found in LOADS.findall(path.read_text(encoding="utf-8")):
            LOG.warning("%s loads from the network: %s", path.name, found)


def commands() -> str:
    """Return the reference of all commands as Markdown."""
    from unified_prof.cli.app import app

    with app.make_context("uprof", [], resilient_parsing=True) as context:
        return _INTRODUCTION + "".join(_of_group(app, context))


def _printed_by(script: str, function: str) -> str:
    return str(runpy.run_path(str(ROOT / "scripts" / script))[function]())


# Page of the site -> function that returns it.
GENERATED: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "schema/msprof.md": lambda: _printed_by("make_schema_docs.py", "page"),
    "schema/kineto-mapping.md": lambda: _printed_by("make_kineto_mapping.py", "as_markdown"),
}


def _of_group(group: Any, context: Any) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        with command.make_context(
            name, [], parent=context, resilient_parsing=True, ignore_unknown_options=True
        ) as inner:
            yield from _of_command(command, inner)
            if hasattr(command, "list_commands"):
                yield from _of_group(command, inner)


def _of_command(command: Any, context: Any) -> Iterator[str]:
    from unified_prof.cli.command import option_help
    from unified_prof.cli.examples import EXAMPLES

    path = context.command_path
    yield f"## {path}\n\n{_text(command.help)}\n\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{path} {usage}\n```\n\n"
    arguments = [
        (one.title, one.help) for one in command.params if one.param_type_name == "argument"
    ]
    if arguments:
        yield from _table("argument", arguments)
    for title, options in command.sections(context).items():
        yield f"**{title}**\n\n" if title != "Options" else ""
        yield from _table("option", list(map(option_help, options)))
    if examples := EXAMPLES.get(path.removeprefix("uprof "), ()):
        width = max(len(line) for line, _ in examples)
        lines = "\n".join(f"{line:{width}}  # {what}" for line, what in examples)
        yield f"```bash\n{lines}\n```\n\n"
    if command.epilog:
        yield f"{_text(command.epilog)}\n\n"


def _table(head: str, rows: list[tuple[str, str]]) -> Iterator[str]:
    yield f"| {head} | |\n|---|---|\n"
    for name, what in rows:
        cell = name.replace("|", "\\|")
        yield f"| `{cell}` | {_text(what).replace('|', chr(92) + '|')} |\n"
    yield "\n"


def _text(words: str | None) -> str:
    """Return a help text as Markdown, with special characters escaped."""
    words = " ".join((words or "").replace("\b", "").split())
    plain, code = [], words.split("`")
    for number, part in enumerate(code):
        if number % 2:
            plain.append(f"`{part}`")
        else:
            plain.append(re.sub(r"([*_<\[\]])", r"\\\1", part))
    return "".join(plain)


def with_messages(markdown: str, nodes: Nodes | None = None) -> str:
    """Return the troubleshooting page with the messages of each error."""
    known = messages(nodes)

    def add_messages(match: re.Match[str]) -> str:
        found = known.get(match[1], ())
        if not found:
            return match[0]
        shown = "; ".join(f"`{one}`" for one in found)
        return f"{match[0]}- **Messages:** {shown}\n"

    return re.sub(r"^### (\S+)\n(?:- .*\n)+", add_messages, markdown, flags=re.M)


def messages(nodes: Nodes | None = None) -> dict[str, list[str]]:
    """Return slug -> messages of the package's errors, with … for variable parts."""
    found: dict[str, set[str]] = defaultdict(set)
    for call, _ in raised(nodes):
        for slug in slugs_of(call):
            found[slug] |= _templates(call.args[0]) if call.args else set()
    return {slug: sorted(texts, key=str.lower) for slug, texts in found.items()}


def raised(nodes: Nodes | None = None) -> Iterator[tuple[ast.Call, Path]]:
    """Yield every call in the package that creates an error, with its file.

    Args:
        nodes: Nodes of the modules of the package; by default they are read from disk.
    """
    if nodes is None:
        modules = (ROOT / "unified_prof").rglob("*.py")
        nodes = {path: [*ast.walk(ast.parse(path.read_bytes()))] for path in modules}
    classes = _classes(nodes)
    for path, found in sorted(nodes.items()):
        for node in found:
            if not isinstance(node, ast.Call) or not _is_ours(node.func, "errors", "cli"):
                continue
            if _name(node.func) == "refuse":  # of cli/command.py: the condition comes first
                slug = ast.keyword("slug", ast.Constant("contradicting-options"))
                call = ast.Call(node.func, node.args[1:], [*node.keywords, slug])
                yield ast.copy_location(call, node), path
            elif _name(node.func) == "system_errors":  # of errors.py: the reason is added
                what = node.args[1]
                parts = what.values if isinstance(what, ast.JoinedStr) else [what]
                text = ast.JoinedStr([*parts, ast.Constant(": "), ast.Name("reason")])
                yield ast.copy_location(ast.Call(node.args[0], [text], node.keywords), node), path
            elif _name(node.func) in classes:
                yield node, path


def _classes(nodes: Nodes) -> set[str]:
    """Return the names of UprofError and its subclasses."""
    known = {"UprofError"}
    defined = [node for found in nodes.values() for node in found if isinstance(node, ast.ClassDef)]
    while new := {
        one.name for one in defined if known.intersection(map(_name, one.bases))
    }.difference(known):
        known |= new
    return known


def _is_ours(made: ast.expr, *modules: str) -> bool:
    """Return True for a plain name or one of our modules: pytest has a UsageError too."""
    return isinstance(made, ast.Name) or _name(getattr(made, "value", made)) in modules


def _name(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", "")


def slugs_of(call: ast.Call) -> list[str]:
    """Return the slugs that a call passes to an error; empty if it passes none.

    A slug that is taken from another error (`slug=err.slug`) is returned as `*`.
    """
    given = next((one.value for one in call.keywords if one.arg == "slug"), None)
    if given is None:
        return []
    parts = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
    return [str(one.value) if isinstance(one, ast.Constant) else "*" for one in parts]


def _templates(node: ast.expr) -> set[str]:
    """Return the possible texts of an expression, with … for variable parts."""
    if isinstance(node, ast.IfExp):
        return _templates(node.body) | _templates(node.orelse)
    if isinstance(node, ast.Constant):
        text = str(node.value)
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values
        )
    else:
        return set()
    text = text.replace("`", "'").strip()
    return {text} if re.search(r"\w{3}", text) else set()
