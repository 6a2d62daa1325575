"""Escaped texts mean themselves to a CommonMark renderer, and are escaped only where needed."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unified_prof.report.document import Document, escape_markdown, name_column, render_markdown

markdown_it = pytest.importorskip("markdown_it")

# Texts of reports that need no escapes, or only those shown.
LEGIBLE = [
    *(
        "a step slowed down at 12 - 14",
        "step 12-14 of rank 0",
        "events/00012-slow-step",
        "--device",
    ),
    *("aten::mm", "ncclDevKernel_AllReduce_Sum_f32", "Optimizer.step#SGD.step", "-5 % (n = 3)"),
    *(
        "loss = 1.5 + 2.5, e = 3!",
        "time: 12:30:45",
        "2026-12-01",
        "{'a': 1}",
        "x^2",
        "C:/runs/a.db",
    ),
]
NEEDED = {
    "- a list": r"\- a list",
    "+ a list": r"\+ a list",
    "---": r"\---",
    "===": r"\===",
    "# a heading": r"\# a heading",
    "ends with #": r"ends with \#",
    "issue #12": r"issue \#12",
    "*emphasis* and _emphasis_": r"\*emphasis\* and \_emphasis\_",
    "__init__": r"\_\_init\_\_",
    "~struck~, `code`, $x$": r"\~struck\~, \`code\`, \$x\$",
    "[link](x)": r"\[link\](x)",
    "![image](x)": r"!\[image\](x)",
    "https://example.com, www.example.com": r"https\://example.com, www\.example.com",
    "@someone": r"\@someone",
    "a|b": r"a\|b",
    "<b>&amp;</b>": "&lt;b&gt;&amp;amp;&lt;/b&gt;",
    "std::vector<int>::push_back": "std::vector&lt;int&gt;::push_back",
    "C:\\runs": r"C:\\runs",
    ":tada:": r"\:tada:",
    "    indented": "indented",
}


@pytest.mark.parametrize("text", LEGIBLE)
def test_texts_without_markup_are_written_as_they_are(text: str) -> None:
    assert escape_markdown(text, starts_line=True) == text


@pytest.mark.parametrize(("text", "escaped"), NEEDED.items())
def test_markup_is_escaped(text: str, escaped: str) -> None:
    assert escape_markdown(text, starts_line=True) == escaped


class _Texts(HTMLParser):
    """Collects the text of the elements of a page, and the elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


_OURS = {"p", "ul", "li", "strong", "h2", "h3", "table", "thead", "tbody", "tr", "th", "td"}


def assert_means_itself(text: str) -> None:
    document = Document()
    document.title(f"title {text}")
    document.fact("label", text)
    document.line(text)
    document.finding("", text)
    document.warning("one", text)
    document.warning("two", text, text)
    document.table([name_column("names", [text, text])], caption=f"caption {text}")
    renderer = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"])
    page = _Texts(renderer.render(render_markdown(document)))
    assert page.tags <= _OURS
    shown = " ".join("".join(page.texts).split())
    assert shown.count(" ".join(text.split())) == 9


@pytest.mark.parametrize("text", [*LEGIBLE, *NEEDED])
def test_renderers_show_the_text(text: str) -> None:
    assert_means_itself(text)


_PIECES = st.sampled_from([*"-+*=_~`#>|[]()!<&:.$@\\1ab \u00e4", "```", "---", "&amp;", "](x)"])


@settings(max_examples=300)
@given(st.lists(_PIECES, min_size=1, max_size=12).map("".join))
def test_renderers_show_any_text(text: str) -> None:
    text = f"{text} end"
    assume(text[:-4].strip() and not re.match(r"\s*\d+[.)]\s", text))  # Numbered lists are lists.
    assert_means_itself(text)
