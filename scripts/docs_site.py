"""What the documentation's site has that no file of docs/ has: it is made of the program itself.

mkdocs loads this file as a hook (mkdocs.yml). `commands()` is the reference of every command, from
the options that the program parses; `messages()` lists under every error of
docs/troubleshooting.md the messages that it comes with, from where they are raised.
"""

from __future__ import annotations

import ast
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.docs_site")
ROOT = Path(__file__).resolve().parent.parent
COMMANDS_PAGE = "commands.md"
ERRORS_PAGE = "troubleshooting.md"
# What a browser fetches unasked from somewhere else.
LOADS = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"' >]+"
    r"|<link\b(?![^>]*\brel=[\"']?(?:canonical|prev|next|me)\b)[^>]*"
    r"\bhref=[\"']?(?:https?:)?//[^\"' >]+"
    r"|api\.github\.com[^\"' >]*"
)

_INTRODUCTION = """\
# Commands

Every command with every option, as `uprof COMMAND --help` has them. An option's variable and its
key in pyproject.toml follow its name: `--format` of `uprof gate` is `UPROF_GATE_FORMAT`, and
`format` in `[tool.uprof.gate]`. Options beat variables, variables beat the file.

"""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, COMMANDS_PAGE, content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Add to a page what the program knows."""
    if page.file.src_uri == ERRORS_PAGE:
        return with_messages(markdown)
    return markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Refuse a site that would load anything from the network: a warning fails a strict build."""
    for path in sorted(Path(config["site_dir"]).rglob("*.html")):
        for found in LOADS.findall(path.read_text(encoding="utf-8")):
            LOG.warning("%s loads from the network: %s", path.name, found)


def commands() -> str:
    """Return the reference of all commands as Markdown."""
    from unified_prof.cli.app import app

    with app.make_context("uprof", [], resilient_parsing=True) as context:
        return _INTRODUCTION + "".join(_of_group(app, context))


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
        (one.metavar or one.name.upper(), one.help or "")
        for one in command.params
        if one.param_type_name == "argument" and not one.hidden
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
    """Return help as Markdown that shows it as it is: stars and brackets mean nothing."""
    words = " ".join((words or "").replace("\b", "").split())
    plain, code = [], words.split("`")
    for number, part in enumerate(code):
        if number % 2:
            plain.append(f"`{part}`")
        else:
            plain.append(re.sub(r"([*_<\[\]])", r"\\\1", part))
    return "".join(plain)


def with_messages(markdown: str) -> str:
    """Return the page of errors with the messages of each below its fix."""
    known = messages()

    def told(match: re.Match[str]) -> str:
        found = known.get(match[1], ())
        if not found:
            return match[0]
        shown = "; ".join(f"`{one}`" for one in found)
        return f"{match[0]}- **Messages:** {shown}\n"

    return re.sub(r"^### (\S+)\n(?:- .*\n)+", told, markdown, flags=re.M)


def messages() -> dict[str, list[str]]:
    """Return slug -> the messages of the package's errors, with … for what differs."""
    found: dict[str, set[str]] = defaultdict(set)
    for call, _ in raised():
        for slug in slugs_of(call):
            found[slug] |= _templates(call.args[0]) if call.args else set()
    return {slug: sorted(texts, key=str.lower) for slug, texts in found.items()}


def raised(trees: dict[Path, ast.Module] | None = None) -> Iterator[tuple[ast.Call, Path]]:
    """Yield every place of the package that makes an error, and every bare tag of a slug.

    Args:
        trees: The package's modules, where they have been parsed already.
    """
    if trees is None:
        modules = (ROOT / "unified_prof").rglob("*.py")
        trees = {path: ast.parse(path.read_bytes()) for path in modules}
    classes = _classes(trees)
    for path, tree in sorted(trees.items()):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_ours(node.func) and _name(node.func) in classes:
                yield node, path


def _classes(trees: dict[Path, ast.Module]) -> set[str]:
    """Return the names of UprofError and of all that descend from it."""
    known = {"UprofError"}
    defined = [
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    while new := {
        one.name for one in defined if known.intersection(map(_name, one.bases))
    }.difference(known):
        known |= new
    return known


def _is_ours(made: ast.expr) -> bool:
    """Return whether a name stands alone or below `errors`: pytest has a UsageError as well."""
    return isinstance(made, ast.Name) or _name(getattr(made, "value", made)) == "errors"


def _name(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", "")


def slugs_of(call: ast.Call) -> list[str]:
    """Return the slugs that an error may get where it is made, `[]` where it names none.

    One that hands on another error's (`slug=err.slug`) has the name `*`.
    """
    given = next((one.value for one in call.keywords if one.arg == "slug"), None)
    if given is None:
        return []
    parts = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
    return [str(one.value) if isinstance(one, ast.Constant) else "*" for one in parts]


def _templates(node: ast.expr) -> set[str]:
    """Return the texts that an expression may have, with … for what is not known."""
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
