"""`uprof mcp`, driven over stdio by the client of the official SDK."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.cluster import ranks
from unified_prof.errors import UsageError
from unified_prof.integrations.report_tools import MAX_BYTES, ReportTools, page

# Without importing it in each worker.
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs mcp")

# Bytes of the answers to one question.
MAX_ANSWER = 20_000


@dataclass(frozen=True)
class Reply:
    """Answer of a tool: text, and whether it is an error."""

    text: str
    is_error: bool

    @property
    def fields(self) -> Any:
        assert not self.is_error, self.text
        return json.loads(self.text)

    @property
    def rows(self) -> Any:
        return self.fields["rows"]


# Name and arguments of a tool, or a function of the answers so far that returns both.
Call = tuple[str, dict[str, Any]] | Callable[[list[Reply]], tuple[str, dict[str, Any]]]


def converse(
    root: Path, calls: Sequence[Call], *options: str
) -> tuple[list[Reply], list[str], dict[str, str]]:
    """Start a server, call tools, and return the answers, the tools, and all resources."""
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters

    async def talk() -> tuple[list[Reply], list[str], dict[str, str]]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(root.parent / "cache")}
        words = ["-m", "unified_prof", "mcp", "--root", str(root), *options]
        server = StdioServerParameters(command=sys.executable, args=words, env=environment)
        async with Client(server, read_timeout_seconds=120) as client:
            replies: list[Reply] = []
            for call in calls:
                name, arguments = call(replies) if callable(call) else call
                found = await client.call_tool(name, arguments)
                content: Any = found.content[0]
                replies.append(Reply(content.text, bool(found.is_error)))
            tools = [one.name for one in (await client.list_tools()).tools]
            resources = {}
            for one in (await client.list_resources()).resources:
                part: Any = (await client.read_resource(one.uri)).contents[0]
                resources[str(one.uri)] = part.text
            return replies, tools, resources

    return asyncio.run(talk())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tracked runs, an NPU recording, the databases of two ranks, and a trace."""
    root = tmp_path_factory.mktemp("mcp") / "runs"
    for side, factor in (("base", 1.0), ("new", 1.5)):
        (root / side).mkdir(parents=True)
        run_time_report(
            root / side / "run_time.sqlite",
            [
                ("linear", 1.5 * factor, 3.0 * factor, [("model.py", 12), ("train.py", 3)]),
                ("relu", 0.25, 0.25, [("model.py", 13), ("train.py", 3)]),
            ],
            iterations=[(i, 5.5 * factor + i / 1000, 1.8, 3.3, 9_000, 1) for i in range(8)],
        )
        memory_report(root / side / "memory.sqlite", peak=100_000)
    training_step(root / "npu.db")
    ranks.databases(root / "ranks", world=2, slow_1=1.5)
    ranks.trace(root / "rank0.json", rank=0, world=2)
    return root


# Question -> calls and a check of the answers.
QUESTIONS: dict[str, tuple[list[Call], Callable[..., bool]]] = {
    "Which operation takes longest?": (
        [("breakdown", {"path": "base"})],
        lambda one: (one.rows[0]["name"], one.rows[0]["total_ns"]) == ("linear", 4_500_000),
    ),
    "How long is a step?": (
        [("summary", {"path": "base"})],
        lambda one: one.fields["totals"]["iteration_ns"] == 5_503_500,
    ),
    "What is the peak memory?": (
        [("summary", {"path": "base"})],
        lambda one: one.fields["totals"]["peak_bytes"] == 100_000,
    ),
    "Which line costs most in model.py?": (
        [("source_cost", {"path": "base", "file": "model.py"})],
        lambda one: (
            [(row["id"], row["name"]) for row in one.rows[:2]]
            == [("line 1", "model.py:12"), ("line 2", "model.py:13")]
        ),
    ),
    "Is the new run slower?": (
        [("compare", {"base": "base", "new": "new"})],
        lambda one: (
            one.fields["totals"]["total"]["verdict"] != "faster"
            and one.rows[0]["place"]["name"] == "linear"
            and one.rows[0]["delta_ns"] == 2_250_000
        ),
    ),
    "Which kernel of the NPU takes longest?": (
        [
            ("open_report", {"path": "npu.db"}),
            ("breakdown", {"path": "npu.db", "by": "kernel", "limit": 2}),
        ],
        lambda opened, one: (
            "kernel" in opened.rows[0]["breakdowns"]
            and (one.rows[0]["name"], one.rows[0]["total_ns"]) == ("mm_kernel", 250)
        ),
    ),
    "What ran on the NPU between 1.2 and 1.25 us?": (
        [
            (
                "timeline_slice",
                {"path": "npu.db", "start_ms": 0.0012, "duration_ms": 0.00005, "track": "device"},
            )
        ],
        lambda one: [row["name"] for row in one.rows] == ["relu_kernel"],
    ),
    "What if the host were twice as fast, and without matmuls?": (
        [
            ("what_if", {"path": "npu.db", "faster": {"host": 2}}),
            ("what_if", {"path": "npu.db", "without": ["mm_kernel"]}),
        ],
        # The matmuls run while the host works on.
        lambda host, one: 0 < host.fields["gain_ns"] <= 2_500 and one.fields["gain_ns"] == 0,
    ),
    "Which rank is slow?": (
        [("cluster_findings", {"path": "ranks"})],
        lambda one: one.rows[0]["ranks"] == [1] and one.rows[0]["cost_ms_per_step"] > 0,
    ),
    "Why is this trace slow?": (
        [
            ("convert", {"path": "rank0.json"}),
            lambda replies: ("findings", {"path": replies[-1].fields["path"]}),
        ],
        lambda made, one: made.fields["path"].endswith(".db") and one.fields["step_ms"] > 0,
    ),
}


@pytest.mark.slow
def test_ten_questions_are_answered_in_few_calls(root: Path) -> None:
    calls = [call for of_question, _ in QUESTIONS.values() for call in of_question]
    replies, tools, resources = converse(root, calls)
    for question, (of_question, is_right) in QUESTIONS.items():
        answers, replies = replies[: len(of_question)], replies[len(of_question) :]
        assert len(answers) <= 3
        assert sum(len(one.text) for one in answers) <= MAX_ANSWER, question
        assert is_right(*answers), (question, [one.text for one in answers])
    assert "findings" in tools
    assert "run" not in tools
    path = root / "base" / "run_time.sqlite"
    headline = json.loads(resources[f"uprof://report/{quote(str(path), safe='')}"])
    assert headline["totals"]["total_ns"] == 5_000_000


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("open_report", {"path": "/etc/passwd"}, "outside-roots"),
    ("open_report", {"path": "../secret.db"}, "outside-roots"),
    ("open_report", {"path": "base/../../secret.db"}, "outside-roots"),
    ("open_report", {"path": "link.db"}, "outside-roots"),
    ("open_report", {"path": "linked"}, "outside-roots"),
    ("convert", {"path": "linked"}, "outside-roots"),
    ("source_cost", {"path": "link.db"}, "outside-roots"),
    ("compare", {"base": "base", "new": "link.db"}, "outside-roots"),
    ("cluster_findings", {"path": ".."}, "outside-roots"),
    ("open_report", {"path": ""}, "empty-path"),
    ("open_report", {"path": "a\0b"}, "empty-path"),
    ("open_report", {"path": "missing.db"}, "no-such-file"),
    ("open_report", {"path": "x" * 5_000}, "cannot-read"),
    ("open_report", {"path": "base", "depth": 3}, "depth"),
    ("breakdown", {"path": "base", "by": "y" * 5_000}, "no-breakdown"),
    ("what_if", {"path": "npu.db", "limit": 10**9}, "wrong-cursor"),
    ("what_if", {"path": "npu.db", "limit": -5}, "wrong-cursor"),
    ("open_report", {"path": "rank0.json"}, "convert"),
    ("open_report", {"path": ["base"]}, "string"),
    ("open_report", {}, "path"),
    ("breakdown", {"path": "base", "by": "nothing"}, "no-breakdown"),
    ("breakdown", {"path": "base", "limit": 10**12}, "wrong-cursor"),
    ("breakdown", {"path": "base", "limit": -1}, "wrong-cursor"),
    ("breakdown", {"path": "base", "limit": "many"}, "integer"),
    ("breakdown", {"path": "base", "cursor": "-1"}, "wrong-cursor"),
    ("breakdown", {"path": "base", "cursor": "9" * 5_000}, "wrong-cursor"),
    ("breakdown", {"path": "base", "report": 7}, "no-report"),
    ("timeline_slice", {"path": "base"}, "no-timeline"),
    ("timeline_slice", {"path": "npu.db", "start_ms": 1e308}, "wrong-option-value"),
    ("timeline_slice", {"path": "npu.db", "duration_ms": -1}, "wrong-option-value"),
    ("what_if", {"path": "npu.db", "faster": {"mm_kernel": 0}}, "wrong-option-value"),
    ("what_if", {"path": "npu.db", "faster": {"nobody": 2}}, "nothing-of-that-name"),
    ("cluster_findings", {"path": "base"}, "not-several-ranks"),
    ("run", {"script": "train.py"}, "run"),
    ("nothing", {}, "nothing"),
)


@pytest.mark.slow
def test_hostile_paths_and_malformed_arguments_are_refused(root: Path) -> None:
    secret = training_step(root.parent / "secret.db")
    (root / "linked").mkdir()
    for link, target in (("link.db", secret), ("linked/inner.db", secret)):
        (root / link).symlink_to(target)
    try:
        replies, *_ = converse(root, [(name, arguments) for name, arguments, _ in REFUSED])
    finally:
        for link in ("link.db", "linked/inner.db"):
            (root / link).unlink()
    for reply, (name, arguments, word) in zip(replies, REFUSED, strict=True):
        assert reply.is_error, (name, arguments, reply.text)
        assert word in reply.text, (name, arguments, reply.text)
        assert "Traceback" not in reply.text
        assert len(reply.text) < 1_000


@pytest.mark.slow
def test_malformed_messages_are_answered_and_later_ones_served(tmp_path: Path) -> None:
    ping = '{"jsonrpc": "2.0", "id": 7, "method": "ping"}'
    lines = ["not json", '{"jsonrpc": "2.0"', '{"a": 1}', "[" * 100_000, ping]
    server = subprocess.Popen(
        [sys.executable, "-m", "unified_prof", "mcp", "--root", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write("\n".join(lines) + "\n")
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in lines]
    finally:
        server.stdin.close()
        server.stdout.close()
        assert server.wait(60) == 0
    assert [answer["id"] for answer in answers] == [None, None, None, None, 7]
    codes = [answer["error"]["code"] for answer in answers[:-1]]
    assert codes == [-32700, -32700, -32600, -32700]  # JSON-RPC 2.0, section 5.1


def test_long_answers_have_a_cursor(tmp_path: Path) -> None:
    run_time_report(
        tmp_path / "run_time.sqlite",
        [(f"operation_{'x' * 300}_{i}", 1.0 + i, None, [("model.py", i)]) for i in range(500)],
    )
    tools, cursor, names = ReportTools([tmp_path]), None, []
    while True:
        answer = tools.breakdown(".", limit=200, cursor=cursor)
        assert len(json.dumps(answer)) < 1.5 * MAX_BYTES
        names += [row["name"] for row in answer["rows"]]
        if (cursor := answer["next_cursor"]) is None:
            break
    assert len(names) == answer["rows_in_all"] == len(set(names)) == 500


def test_page_has_a_row_even_if_it_is_too_large() -> None:
    found = page([{"values": [*range(100_000)]}, {}])
    assert len(found["rows"]) == 1
    assert found["next_cursor"] == "1"
    with pytest.raises(UsageError, match="limit"):
        page([], 0)


@pytest.mark.slow
def test_script_is_profiled_if_allowed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    root = tmp_path / "work"
    root.mkdir()
    (root / "train.py").write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(int(sys.argv[1])):\n"
        "    model(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print('done')\n"
    )
    (root / "fails.py").write_text("raise SystemExit('no data')\n")
    replies, tools, _ = converse(
        root,
        [
            ("run", {"script": "train.py", "arguments": ["30"], "backend": "cpu"}),
            lambda replies: ("breakdown", {"path": replies[0].fields["path"]}),
            ("run", {"script": "fails.py", "backend": "cpu"}),
            ("run", {"script": "/bin/true"}),
        ],
        "--allow-run",
    )
    done, measured, failed, refused = replies
    assert "run" in tools
    assert done.fields["exit_code"] == 0
    assert "done" in done.fields["output"]
    assert measured.rows[0]["name"] == "linear"
    assert failed.fields["exit_code"] == 1
    assert "no data" in failed.fields["output"]
    assert "outside-roots" in refused.text
