"""Every JSON document of the command line is as its JSON Schema says, without further keys."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.analysis.builders import memory_report, run_time_report, training_step
from tests.cli.test_report import refused, uprof
from tests.cluster import ranks
from tests.pipeline.test_flight_recorder import call, dump, waits, write
from tests.report.on_page import embedded_data
from tests.watch.runs import CAPTURED, eventful, write_run
from unified_prof.report import contract


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tracked runs, a device recording and a run of two ranks."""
    root = tmp_path_factory.mktemp("contract")
    for side, factor in (("base", 1.0), ("new", 1.5)):
        (root / side).mkdir()
        run_time_report(
            root / side / "run_time.sqlite",
            [
                ("linear", 1.5 * factor, 3.0 * factor, [("model.py", 12)]),
                (f"gone_in_{side}", 0.5, None, [("model.py", 13)]),
            ],
            modules=[("net.linear", "Linear"), None],
            iterations=[(i, 5.0 * factor + i / 100, 1.5, 3.0, 9_000, 1) for i in range(8)],
            facts={"device": "cpu", "argv": "train.py"},
            anomalies=[("impossible_size", 2, "a size of -1")],
        )
        memory_report(root / side / "memory.sqlite", peak=round(100_000 * factor))
    training_step(root / "device.db")
    ranks.databases(root / "ranks", world=2, slow_1=1.5)
    ranks.databases(root / "six_ranks", world=6)
    (root / "watched").mkdir()
    write_run(root / "watched", change=eventful, events=CAPTURED)
    (root / "dumps").mkdir()
    write(root / "dumps", {0: dump([call(1), waits(2)]), 1: dump([call(1)])})
    assert uprof("cluster", "build", root / "ranks", "-o", root / "run").returncode == 0
    return root


COMMANDS = (
    ("advise", "advise", "device.db"),
    ("advise", "advise", "base", "--top", "1"),
    ("advise", "advise", "ranks"),
    ("what-if", "advise", "device.db", "--what-if"),
    ("what-if", "advise", "device.db", "--faster", "mm_kernel=2", "--without", "communication"),
    ("diff", "diff", "base", "new"),
    ("diff", "diff", "base", "base"),
    ("diff", "diff", "device.db", "ranks/rank1.db"),
    ("diff", "diff", "--workload", "a=base:new", "--workload", "b=new:base"),
    ("gate", "gate", "base", "new"),
    ("gate", "gate", "base", "base", "--metric", "peak-memory"),
    ("gate", "gate", "--workload", "a=base:new", "--workload", "b=base:new"),
    ("cluster", "cluster", "report", "run"),
    ("cluster", "cluster", "report", "run", "--rank", "1"),
    ("cluster", "cluster", "report", "run", "--step", "1"),
    ("report", "report", "base"),
    ("report", "report", "device.db", "--stats"),
    ("report", "report", "ranks"),
    ("report", "report", "six_ranks"),
    ("report", "report", "dumps"),
    ("report", "report", "watched"),
)


@pytest.mark.quick(cases=2)
@pytest.mark.parametrize("name", dict.fromkeys(name for name, *_ in COMMANDS))
def test_documents_are_as_their_schema_says_and_changed_ones_are_refused(
    name: str, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    schema = contract.schema(name)
    validator = jsonschema.Draft202012Validator(schema)
    shapes: set[str] = set()
    accepted = changed = 0
    for words in (words for other, *words in COMMANDS if other == name):
        done = uprof(*words, "--json")
        assert done.returncode in (0, 1, 3, 7), done.stderr
        document = json.loads(done.stdout)
        validator.validate(document)
        assert sorted(set(unknown_keys(document, schema, schema["$defs"]))) == []
        results = [validator.is_valid(one) for one in mutations(shortened(document), shapes)]
        accepted += sum(results)
        changed += len(results)
    assert changed >= 25
    # Keys of facts and figures are data: any of them may be missing.
    assert accepted <= max(15, 0.15 * changed), accepted


def shortened(value: Any) -> Any:
    """Return a document whose lists have one element of each shape."""
    if isinstance(value, dict):
        return {key: shortened(one) for key, one in value.items()}
    if isinstance(value, list):
        return [*{shape(one): shortened(one) for one in value}.values()]
    return value


def shape(value: Any) -> str:
    """Return the keys and types of a document."""
    if isinstance(value, dict):
        return str({key: shape(one) for key, one in value.items()})
    return str([*map(shape, value)]) if isinstance(value, list) else type(value).__name__


def mutations(value: Any, shapes: set[str]) -> Iterator[Any]:
    """Yield a document with one key missing or one value of a wrong type, once per kind of object.

    Objects whose keys are data (facts, figures) may lack any key, and have others.
    """
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in mutations(one, shapes))
    elif isinstance(value, dict) and str(sorted(value)) not in shapes:
        shapes.add(str(sorted(value)))
        for key, one in value.items():
            yield {name: other for name, other in value.items() if name != key}
            yield value | {key: {"": [0]} if isinstance(one, str | int | None) else "text"}
            yield from (value | {key: other} for other in mutations(one, shapes))


@pytest.mark.parametrize("report", ["base", "device.db"])
def test_figures_in_the_page_follow_the_schema(report: str, inputs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert uprof("report", inputs / report, "-o", page).returncode == 0
    definitions = contract.schema("report")["$defs"]
    unknown = dict.fromkeys(definitions["BreakdownRow"]["properties"])  # left out of the page
    valid = jsonschema.Draft202012Validator({"$ref": "#/$defs/Report", "$defs": definitions})
    reports = embedded_data(page.read_text())["reports"]
    for one in reports:
        for breakdown in one["figures"]["breakdowns"].values():
            # Shortened names are for tables.
            breakdown["rows"] = [
                {key: value for key, value in (unknown | row).items() if key != "short"}
                for row in breakdown["rows"]
            ]
        valid.validate(one["figures"])
    assert reports


def unknown_keys(value: Any, schema: Any, shapes: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys of a valid document that its schema does not name."""
    if "anyOf" in schema:
        valid = [
            one
            for one in schema["anyOf"]
            if jsonschema.Draft202012Validator({**one, "$defs": shapes}).is_valid(value)
        ]
        found = [list(unknown_keys(value, one, shapes, path)) for one in valid]
        yield from min(found, key=len)
        return
    if isinstance(value, list):
        for one in value:
            yield from unknown_keys(one, schema.get("items") or {}, shapes, path)
    if isinstance(value, dict):
        known = dict(schema.get("properties", {}))
        if "$ref" in schema:
            shape = shapes[schema["$ref"].rpartition("/")[2]]
            known = shape.get("properties", {}) | known
            schema = shape | {key: one for key, one in schema.items() if key != "$ref"}
        for key, one in value.items():
            if key in known:
                yield from unknown_keys(one, known[key], shapes, f"{path}.{key}")
            elif isinstance(more := schema.get("additionalProperties"), dict):
                yield from unknown_keys(one, more, shapes, f"{path}.*")
            elif known:
                yield f"{path}.{key}"


@pytest.mark.slow
def test_unknown_keys_and_wrong_types_are_found() -> None:
    schema = contract.schema("report")
    row = dict.fromkeys(schema["$defs"]["BreakdownRow"]["properties"], None)
    row |= {"name": "a", "kind": "operation", "count": 1, "busy_ns": 3}
    shape = {"$ref": "#/$defs/BreakdownRow", "$defs": schema["$defs"]}
    jsonschema.validate(row, shape)
    assert list(unknown_keys(row, shape, schema["$defs"])) == []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(row | {"busy_ns": "3"}, shape)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(row | {"count": None}, shape)
    total = {"$ref": "#/$defs/Breakdown"}
    assert list(unknown_keys({"rows": [], "sum": 1}, total, schema["$defs"])) == [".sum"]


@pytest.mark.quick(cases=1)
@pytest.mark.parametrize("name", contract.DOCUMENTS)
def test_schema_is_printed_and_valid(name: str) -> None:
    schema = json.loads(uprof("schema", name).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    version = contract.DOCUMENTS[name][0]
    assert schema["title"] == f"uprof {name}, version {version}"


def test_command_without_documented_json_is_refused() -> None:
    refused(uprof("schema", "view"), 2, "report", "cluster")
