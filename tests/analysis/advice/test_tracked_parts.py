"""Advice about parts of an iteration, chains of operations and recomputation, each with a twin."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs
from msgspec.structs import replace

from tests.analysis.advice.faulty_runs import MS
from tests.analysis.builders import run_time_report
from unified_prof.cli.app import app
from unified_prof.explain.advice import tracked as tracked_module
from unified_prof.explain.advice.tracked import Tracked
from unified_prof.explain.advice.tracked_operations import advise
from unified_prof.recording.calls import UNKNOWN, Calls, Labels
from unified_prof.recording.model import Finding, Gaps, Step

ITERATION_MS = 100


def tracked(
    *operations: tuple[str, str, float],
    parts: dict[str, int] | None = None,
    recomputed_ms: list[float] | None = None,
    gaps: Gaps | None = None,
    facts: dict[str, str] | None = None,
) -> Tracked:
    """Return a run of 100 ms per iteration.

    Args:
        operations: Name, line and time in ms of each operation.
        parts: Times of parts of the iteration in ms.
        recomputed_ms: Recomputation of each operation.
        gaps: Gaps between operations.
        facts: Facts of the report.
    """
    labels = Labels()
    times = np.array([round(ms * MS) for *_, ms in operations], np.int64)
    again = None
    if recomputed_ms is not None:
        again = np.array([round(ms * MS) if ms else UNKNOWN for ms in recomputed_ms], np.int64)
    calls = Calls(
        labels=labels,
        name=labels.numbers([name for name, *_ in operations]),
        kind=np.zeros(len(operations), np.int8),
        line=labels.numbers([line for _, line, _ in operations]),
        total_ns=times,
        recomputed_ns=again,
    )
    found = {name: ms * MS for name, ms in (parts or {}).items()}
    rest = ITERATION_MS * MS - sum(found.values())
    return Tracked(
        steps=tuple(Step(str(number), ITERATION_MS * MS) for number in range(3)),
        calls=calls,
        gaps=gaps,
        facts={"part_lines": json.dumps({"data_loading": "train.py:8"}), **(facts or {})},
        parts_ns={"forward": rest, "other": 0, **found},
    )


def findings(run: Tracked) -> dict[str, Finding]:
    return {one.kind: one for one in advise(run).findings}


def optimizers(**settings: Any) -> str:
    return json.dumps([{"class": "AdamW", "foreach": False, "fused": False, **settings}])


@pytest.mark.parametrize(
    ("kind", "part", "facts", "cost_ms"),
    [
        ("data_loading", "data_loading", {"data_loader_workers": "0"}, 20),
        ("synchronizing_reads", "synchronizing_reads", {}, 20),
        ("unfused_optimizer", "optimizer", {"optimizers": optimizers()}, 10),
    ],
)
def test_a_part_of_ten_percent_or_more_is_found(
    kind: str, part: str, facts: dict[str, str], cost_ms: float
) -> None:
    found = findings(tracked(parts={part: 20}, facts=facts))
    assert found.keys() == {kind}
    assert found[kind].cost_ms_per_step == cost_ms
    assert findings(tracked(parts={part: 9}, facts=facts)) == {}


def test_data_loading_names_its_line_and_the_number_of_workers() -> None:
    in_process = findings(tracked(parts={"data_loading": 20}, facts={"data_loader_workers": "0"}))
    assert (
        "in the main process: 20 % of an iteration at train.py:8" in in_process["data_loading"].text
    )
    waiting = findings(tracked(parts={"data_loading": 20, "waiting_for_cpu": 50}))["data_loading"]
    assert "40 % of an iteration (CPU wait excluded) at train.py:8" in waiting.text
    assert waiting.cost_ms_per_step == 20
    workers = findings(tracked(parts={"data_loading": 20}, facts={"data_loader_workers": "4"}))
    assert "with 4 workers" in workers["data_loading"].text
    assert workers["data_loading"].advice != in_process["data_loading"].advice


@pytest.mark.parametrize(
    "settings", [{"fused": True}, {"foreach": True}, {"class": "Adafactor"}, {"class": "LBFGS"}]
)
def test_an_optimizer_that_is_fused_or_cannot_be_is_not_advised(settings: dict[str, Any]) -> None:
    assert (
        findings(tracked(parts={"optimizer": 60}, facts={"optimizers": optimizers(**settings)}))
        == {}
    )


@pytest.mark.parametrize(
    ("settings", "cost_ms"),
    [
        ({"parameters": 400}, 6),
        ({"parameters": 4000}, 10),  # at most half of its time
        ({"parameters": 6}, None),  # the time is traffic of large tensors
        ({"parameters": 400, "class": "SGD"}, 1.2),
        ({"parameters": 400, "sparse": True}, None),
    ],
)
def test_a_fused_optimizer_saves_the_calls(settings: dict[str, Any], cost_ms: float | None) -> None:
    run = tracked(parts={"optimizer": 20}, facts={"optimizers": optimizers(**settings)})
    found = findings(run).get("unfused_optimizer")
    assert (found and found.cost_ms_per_step) == cost_ms


@pytest.mark.parametrize(
    ("others", "text"),
    [([], "in a loop: 20 %"), ([{"sparse": True}], "in a loop; all optimizers together: 20 %")],
)
def test_the_share_is_that_of_all_optimizers(others: list[dict[str, Any]], text: str) -> None:
    some = json.dumps([*json.loads(optimizers(parameters=400)), *others])
    run = tracked(parts={"optimizer": 20}, facts={"optimizers": some})
    assert text in findings(run)["unfused_optimizer"].text


def test_other_code_is_what_is_not_between_operations() -> None:
    found = findings(tracked(parts={"other": 30, "waiting_for_cpu": 40, "optimizer": 1}))
    assert found["other_code"].cost_ms_per_step == 30
    assert "50 % of an iteration (CPU wait excluded) is neither" in found["other_code"].text
    assert "other_code" not in findings(tracked(parts={"other": 9, "optimizer": 1}))
    # An inference loop has no optimizer; in reports without parts, the rest may be the optimizer's.
    inference = tracked(parts={"other": 30})
    assert findings(inference)["other_code"].cost_ms_per_step == 30
    assert "other_code" not in findings(structs.replace(inference, facts={}))
    gaps = Gaps(np.array([0]), ("train.py:5",), np.full((1, 3), 25.0 * MS))
    between = findings(tracked(parts={"other": 30, "optimizer": 1}, gaps=gaps))
    assert between["time_between_operations"].cost_ms_per_step == 25
    assert "other_code" not in between


def test_waiting_for_a_cpu_is_no_time_of_a_part() -> None:
    """20 of the 40 ms that the program ran are half of it; waiting takes the other 60 ms."""
    run = tracked(parts={"waiting_for_cpu": 60, "data_loading": 20})
    assert "50 % of an iteration" in findings(run)["data_loading"].text


def test_recomputation_is_found_by_operation() -> None:
    operations = [("linear", "m.py:3", 30.0), ("relu", "m.py:3", 5.0), ("linear", "m.py:9", 10.0)]
    finding = findings(tracked(*operations, recomputed_ms=[12, 3, 0]))["recomputation"]
    assert finding.cost_ms_per_step == 15
    assert [(one["name"], one["total_ns"]) for one in finding.evidence] == [
        ("linear", 12 * MS),
        ("relu", 3 * MS),
    ]
    assert findings(tracked(*operations, recomputed_ms=[5, 3, 0])) == {}


GELU = [("mul", 2.0), ("pow", 4.0), ("mul", 2.0), ("add", 2.0), ("mul", 2.0), ("tanh", 6.0)]
GELU += [("add", 2.0), ("mul", 3.0)]


@pytest.mark.parametrize(
    ("chain", "names", "cost_ms"),
    [
        # From `pow` to the `mul` after `tanh`, but for the most expensive operation.
        ("tanh GELU", GELU, 4 + 2 + 2 + 2 + 6 + 2 + 3 - 6),
        ("RMSNorm", [("pow", 3.0), ("mean", 3.0), ("add", 1.0), ("rsqrt", 1.0), ("mul", 4.0)], 8),
        (
            "LayerNorm",
            [
                *(("mean", 2.0), ("sub", 1.0), ("pow", 1.0), ("mean", 2.0), ("sub", 1.0)),
                *(("add", 1.0), ("sqrt", 1.0), ("truediv", 1.0), ("mul", 1.0)),
            ],
            9,
        ),
        ("embedding lookup", [("one_hot", 4.0), ("float", 2.0), ("matmul", 9.0)], 15),
        (
            "softmax attention",
            [("matmul", 20.0), ("truediv", 3.0), ("softmax", 6.0), ("__matmul__", 20.0)],
            9,
        ),
        (
            "softmax attention",
            # The mask is built in between.
            [
                *(("matmul", 20.0), ("ones", 1.0), ("triu", 1.0), ("masked_fill", 3.0)),
                *(("softmax", 6.0), ("matmul", 20.0)),
            ],
            9,
        ),
    ],
)
def test_a_function_written_as_single_operations_is_found(
    chain: str, names: list[tuple[str, float]], cost_ms: float
) -> None:
    run = tracked(*[(name, "model.py:7", ms) for name, ms in names])
    finding = findings(run)["unfused_chain"]
    assert finding.text.startswith(f"{chain} written as single operations once")
    assert finding.cost_ms_per_step == pytest.approx(cost_ms)
    interrupted = [names[0], *names[1:-1], ("conv2d", 1.0), names[-1]]
    assert findings(tracked(*[(name, "model.py:7", ms) for name, ms in interrupted])) == {}
    files = [(name, f"{number}.py:7", ms) for number, (name, ms) in enumerate(names)]
    assert findings(tracked(*files)) == {}


@pytest.mark.parametrize("backward_ms", [0, 30])
def test_activations_without_a_backward_pass_are_unused(backward_ms: int) -> None:
    run = tracked(("linear", "m.py:3", 30.0), parts={"backward": backward_ms})
    run = structs.replace(
        run, calls=structs.replace(run.calls, activation_bytes=np.array([3 << 20]))
    )
    found = findings(run)
    assert found.keys() == (set() if backward_ms else {"unused_activations"})
    assert backward_ms or "3.0 MiB" in found["unused_activations"].text


@pytest.mark.parametrize(
    ("facts", "parts", "fires"),
    [
        ({"torch_threads": "1", "processors": "4"}, {"forward": 80}, True),
        ({"torch_threads": "4", "processors": "4"}, {"forward": 80}, False),
        ({"torch_threads": "1", "processors": "1"}, {"forward": 80}, False),
        ({"torch_threads": "1", "processors": "4", "rank": "0"}, {"forward": 80}, False),
        ({"torch_threads": "1", "processors": "4"}, {"forward": 30}, False),
        # Other programs use the processors.
        ({"torch_threads": "1", "processors": "4"}, {"forward": 60, "waiting_for_cpu": 20}, False),
    ],
)
def test_one_thread_on_a_host_with_more_processors(
    facts: dict[str, str], parts: dict[str, int], fires: bool
) -> None:
    facts |= {"device": "cpu: model"}
    found = findings(tracked(("linear", "model.py:7", 80), parts=parts, facts=facts))
    assert found.keys() == ({"single_thread"} if fires else set())
    if fires:
        assert found["single_thread"].cost_ms_per_step == 60
    short = [("linear", "model.py:7", 0.08)] * 1000
    assert "single_thread" not in findings(tracked(*short, parts=parts, facts=facts))


def test_time_between_operations_is_at_most_the_rest_of_the_iteration() -> None:
    """Gaps of tracked iterations contain data loading and the time of tracking itself."""
    gaps = Gaps(
        before=np.array([0, 1]),
        lines=("train.py:8", "train.py:11"),
        gap_ns=np.array([[70.0 * MS] * 3, [60.0 * MS] * 3]),
    )
    parts = {"forward": 30, "data_loading": 40, "other": 30}
    finding = findings(tracked(parts=parts, gaps=gaps))["time_between_operations"]
    assert finding.cost_ms_per_step == 30
    assert [(one["line"], one["total_ns"]) for one in finding.evidence] == [
        ("train.py:11", 30 * MS)
    ]
    assert "time_between_operations" not in findings(
        tracked(parts={"forward": 55, "data_loading": 40}, gaps=gaps)
    )


def looped(count: int, *, modules: int, ms: float = 40) -> Tracked:
    """Return a run with `count` cells and slices of `ms` in total at one line, and a product."""
    each = ms / count / 2
    names = ("lstm_cell", "getitem") * count
    run = tracked(*((name, "net.py:9", each) for name in names), ("linear", "net.py:12", 30))
    module = [f"cells.{number // 2 % modules}" for number in range(2 * count)]
    own = run.calls.labels.numbers([*module, "head"])
    return structs.replace(run, calls=structs.replace(run.calls, module=own))


def test_loop_over_cells_costs_what_a_fused_one_saves() -> None:
    """Without uprof, 64 steps of nn.LSTMCell and of nn.LSTM take, with backward passes:

    10.0 and 1.1 ms with 16 hidden units, 27.6 and 10.3 ms with 128; uprof measures 10.1 and 24.5.
    """

    def cost_ms(ms: float) -> float:
        run = tracked(*[("lstm_cell", "net.py:9", ms / 64)] * 64)
        modules = run.calls.labels.numbers(["cell"] * 64)
        found = findings(replace(run, calls=replace(run.calls, module=modules)))["loops"]
        return found.cost_ms_per_step

    assert cost_ms(20.0) == pytest.approx(27.6 - 10.3, rel=0.15)
    assert cost_ms(24.5) == pytest.approx(27.6 - 10.3, rel=0.15)
    assert cost_ms(80.0) == cost_ms(24.5)


@pytest.mark.parametrize("passes", ["[1000, 2000]", "[3000, 4000]"])
def test_costs_of_one_iteration_do_not_add_up_to_more_than_it_takes(passes: str) -> None:
    """Operations of a loop in double precision on padded batches, in passes that repeat."""
    facts = {
        "weight_types": '{"float64": 4096}',
        "padding": passes,
        "repeated_backward_ns": str(70 * MS),
        "growing_sequence": f"[{60 * MS}, 40]",
    }
    run = tracked(
        *[("getitem", "net.py:9", 1.0)] * 64,
        parts={"forward": 40, "backward": 55},
        facts=facts,
    )
    run = replace(run, calls=replace(run.calls, module=run.calls.labels.numbers(["net"] * 64)))
    found = advise(run).findings
    assert {"double_precision", "padding", "no_kv_cache", "loops"} <= {one.kind for one in found}
    assert sum(one.cost_ms_per_step for one in found) == pytest.approx(ITERATION_MS)
    assert [one.cost_ms_per_step for one in found] == sorted(
        (one.cost_ms_per_step for one in found), reverse=True
    )


def test_line_that_repeats_operations_of_one_module_is_a_loop() -> None:
    finding = findings(looped(40, modules=1))["loops"]
    # Each cell takes 500 us, of which a fused one saves 300; each slice 500 us.
    assert finding.cost_ms_per_step == pytest.approx(40 * (0.3 + 0.5))
    assert "loop at net.py:9" in finding.text
    assert "runs 40 times in each iteration" in finding.text
    assert {row["name"]: row["count"] for row in finding.evidence} == {
        "lstm_cell": 40,
        "getitem": 40,
    }
    # Layers of their own at one line, a few repetitions, or little of the time.
    assert "loops" not in findings(looped(40, modules=20))
    assert "loops" not in findings(looped(20, modules=1))
    assert "loops" not in findings(looped(40, modules=1, ms=10))


def test_model_in_double_precision_costs_half_of_its_operations() -> None:
    def run(types: str) -> Tracked:
        return tracked(("linear", "net.py:3", 60), facts={"weight_types": types})

    finding = findings(run('{"float64": 900, "float32": 100}'))["double_precision"]
    assert finding.cost_ms_per_step == 30
    assert "90 % of the weights are float64" in finding.text
    assert "60 % of an iteration" in finding.text
    for others in ('{"float32": 900, "float64": 100}', "{}", '{"float64": "x"}', "[", "3"):
        assert "double_precision" not in findings(run(others))
    few = tracked(("linear", "net.py:3", 10), facts={"weight_types": '{"float64": 1}'})
    assert "double_precision" not in findings(few)


@pytest.mark.parametrize(
    "damaged", ["[", "3", "[1]", '["x"]', '{"optimizer": 3}', '[{"class": ["SGD"]}]', "[" * 9999]
)
def test_damaged_facts_are_unknown(damaged: str) -> None:
    names = ("part_lines", "optimizers", "weight_types")
    run = tracked(("linear", "net.py:3", 60), parts={"optimizer": 30, "data_loading": 20})
    found = findings(structs.replace(run, facts=dict.fromkeys(names, damaged)))
    assert " at " not in found["data_loading"].text
    assert not {"unfused_optimizer", "double_precision"} & set(found)


@pytest.mark.parametrize("damaged", ["x", "5.5", "1e999", "-3", "9" * 30, "[", "null", ""])
def test_damaged_numbers_of_a_run_are_unknown(damaged: str) -> None:
    busy = tracked(("linear", "net.py:3", 40), parts={"waiting_for_cpu": 60})
    waited = tuple(replace(one, waited_ns=60 * MS) for one in busy.steps)
    for name in ("processors", "torch_threads"):
        facts = {"device": "cpu: a", "processors": "2", "torch_threads": "1", name: damaged}
        found = findings(structs.replace(busy, steps=waited, facts=facts))
        assert "waiting_for_processor" in found
        assert name != "torch_threads" or "single_thread" not in found


@pytest.mark.parametrize("command", ["report", "advise", "diff"])
def test_damaged_facts_of_a_report_are_unknown(tmp_path: Path, command: str) -> None:
    facts = dict.fromkeys(("part_lines", "optimizers", "source_hashes", "command"), "[{")
    iterations = [(number, 1.0, 0.4, 0.5, None, 1) for number in range(3)]
    path = run_time_report(tmp_path / "run_time.sqlite", iterations=iterations, facts=facts)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE UPROF_ITERATION_PARTS (iteration, part, ms)")
        db.execute("INSERT INTO UPROF_ITERATION_PARTS VALUES (0, 'optimizer', 0.1)")
    done = CliRunner().invoke(app, [command, *[str(path)] * (1 + (command == "diff"))])
    assert done.exit_code == 0, done.output


def known(**counts: int) -> dict[str, str]:
    """Return the fact that calls of `unique` at one line compute known values."""
    return {"repeated_work": json.dumps([{"name": "unique", "line": "gnn.py:4", **counts}])}


def test_known_values_cost_the_time_of_their_operations() -> None:
    operations = [("unique", "gnn.py:4", 30)] * 2 + [("linear", "gnn.py:9", 20)]
    found = findings(tracked(*operations, facts=known(calls=2, earlier=2)))["repeated_work"]
    assert found.cost_ms_per_step == 60
    assert "an earlier iteration" in found.text
    assert "mostly at gnn.py:4" in found.text
    both = findings(tracked(*operations, facts=known(calls=2, same=1, new=1)))
    assert "costly_operation" in both
    found = both["repeated_work"]
    assert found.cost_ms_per_step == 30
    assert "the same iteration" in found.text
    few = [("unique", "gnn.py:4", 3), ("linear", "gnn.py:9", 20)]
    assert "repeated_work" not in findings(tracked(*few, facts=known(calls=1, earlier=1)))
    # A benchmark whose inputs never change.
    whole = tracked(("unique", "gnn.py:4", 80), facts=known(calls=1, earlier=1))
    assert "repeated_work" not in findings(whole)


def test_repeated_backward_passes_cost_their_time() -> None:
    facts = {"repeated_backward_ns": str(20 * MS), "part_lines": '{"backward": "gan.py:7"}'}
    found = findings(tracked(parts={"backward": 60}, facts=facts))["repeated_backward"]
    assert found.cost_ms_per_step == 20
    assert "20 % of an iteration at gan.py:7" in found.text
    few = {"repeated_backward_ns": str(2 * MS)}
    assert findings(tracked(parts={"backward": 60}, facts=few)) == {}


def test_repeated_backward_passes_cost_no_more_than_the_backward_pass() -> None:
    run = tracked(parts={"backward": 60}, facts={"repeated_backward_ns": str(120 * MS)})
    calls = structs.replace(run.calls, backward_ns=np.array([150 * MS], np.int64))
    found = findings(structs.replace(run, calls=calls))["repeated_backward"]
    assert found.cost_ms_per_step == 48


@pytest.mark.parametrize(
    ("fact", "value", "kind", "cost_ms", "others"),
    [
        ("untrained_backward", "[{ms}, 'kd.py:3']", "untrained_gradients", 40, ["[{few}, 'a']"]),
        ("growing_sequence", "[{ms}, 48]", "no_kv_cache", 40, ["[{few}, 48]", "[{ms}]", "{{}}"]),
        ("largest_batch", "1", "batch_of_one", 80, ["2", "0", "[]"]),
        ("kept_activation_bytes", "2000000", "kept_graph", 0, ["1000000", "[]"]),
    ],
)
def test_a_fact_with_its_own_finding(
    fact: str, value: str, kind: str, cost_ms: int, others: list[str]
) -> None:
    def found(text: str) -> dict[str, Finding]:
        text = text.format(ms=40 * MS, few=2 * MS).replace("'", '"')
        facts = {fact: text, "most_saved_bytes_at_once": "15000000"}
        operation = "linear", "a.py:3", 20 + tracked_module.CALL_NS / MS
        return findings(tracked(operation, facts=facts))

    assert found(value).keys() == {kind}
    assert found(value)[kind].cost_ms_per_step == pytest.approx(cost_ms)
    assert [*map(found, others)] == [{}] * len(others)


def passes(name: str, facts: dict[str, str], **parts: int) -> dict[str, Finding]:
    """Return the findings of one operation of 10 ms forward and 20 ms backward."""
    run = tracked((name, "a.py:3", 30), facts=facts, parts=parts)
    forward_ns, backward_ns = np.array([10 * MS]), np.array([20 * MS])
    calls = structs.replace(run.calls, forward_ns=forward_ns, backward_ns=backward_ns)
    return findings(structs.replace(run, calls=calls))


def test_dense_gradients_of_an_embedding_cost_their_unused_rows() -> None:
    facts = {"dense_embeddings": "[[100, 20, 600]]", "weight_types": '{"float32": 800}'}
    parts = {"optimizer": 32, "zero_grad": 8}
    found = passes("embedding", facts, **parts)["dense_embedding"]
    assert found.cost_ms_per_step == pytest.approx(0.8 * (20 + 0.75 * 40))
    few = facts | {"weight_types": '{"float32": 30000}'}
    assert "dense_embedding" not in passes("linear", few, **parts)
    for none in ("[]", "[3]", "[[0, 0, 0]]", "[[9, 1, -8]]", "{}"):
        assert "dense_embedding" not in passes("embedding", {"dense_embeddings": none}, **parts)


@pytest.mark.parametrize(
    ("noted", "cost_ms"), [(["backward"], 20), (["forward", "backward"], 30), ([], None)]
)
def test_python_in_an_autograd_function_costs_its_passes(
    noted: list[str], cost_ms: int | None
) -> None:
    facts = {"python_functions": json.dumps({"Spike": noted})}
    found = passes("Spike", facts).get("python_in_autograd")
    assert (found and found.cost_ms_per_step) == cost_ms
    assert "python_in_autograd" not in passes("linear", facts)
    for none in ('{"Spike": 3}', '{"Spike": null}', '{"Spike": {"forward": 1}}', "[3]"):
        assert "python_in_autograd" not in passes("Spike", {"python_functions": none})


def test_padding_costs_its_share_of_the_passes() -> None:
    parts = {"forward": 30, "backward": 50, "other": 5}
    found = findings(tracked(parts=parts, facts={"padding": "[192, 256]"}))["padding"]
    assert found.cost_ms_per_step == 60
    for none in ("[0, 256]", "[9, 256]", "[3]", '["a", 2]', "{}"):
        assert findings(tracked(parts=parts, facts={"padding": none})) == {}


@pytest.mark.parametrize("name", ["sort", "argsort", "tensor", "as_tensor", "unique", "one_hot"])
def test_operation_with_a_cheaper_alternative_is_found(name: str) -> None:
    found = findings(tracked((name, "a.py:3", 30), (name, "a.py:9", 4), parts={"other": 35}))
    assert found.keys() == {"costly_operation"}  # which is not other code, too
    assert found["costly_operation"].cost_ms_per_step == 30
    run = tracked((name, "a.py:3", 30))
    in_backward = structs.replace(run, calls=structs.replace(run.calls, backward_ns=np.array([MS])))
    assert findings(in_backward) == {}


def test_many_embedding_tables_at_one_line_are_a_loop() -> None:
    run = tracked(*[("embedding", "net.py:9", 1.0)] * 40)
    modules = run.calls.labels.numbers([f"tables.{number}" for number in range(40)])
    found = findings(structs.replace(run, calls=structs.replace(run.calls, module=modules)))[
        "loops"
    ]
    assert "embedding runs 40 times" in found.text


def outside(*rows: tuple[str, str, int, float]) -> dict[str, str]:
    """Return the fact of operations outside of the report: name, line, calls, ms."""
    listed = [(name, line, calls, round(ms * MS)) for name, line, calls, ms in rows]
    return {"operations_outside": json.dumps(listed)}


def test_operations_outside_of_the_report_explain_other_code() -> None:
    facts = outside(("norm", "clip.py:5", 150, 15), ("clamp_", "clip.py:9", 150, 10))
    found = findings(tracked(parts={"other": 26}, facts=facts))
    assert found.keys() == {"loops"}
    facts = outside(("sort", "top.py:5", 1, 30))
    found = findings(tracked(parts={"other": 35}, facts=facts))
    assert found.keys() == {"costly_operation"}
    facts = outside(("cumsum", "a.py:5", 1, 30))
    found = findings(tracked(parts={"other": 35}, facts=facts))
    assert "mostly in operations at a.py:5" in found["other_code"].text
    damaged = {"operations_outside": '[["sort", 3], 4, ["sort", "a.py:1", "x", 5]]'}
    assert findings(tracked(parts={"other": 5}, facts=damaged)) == {}


def test_workers_that_start_every_epoch_are_kept() -> None:
    facts = {"data_loader_workers": "2", "batches_per_worker_start": "4"}
    found = findings(tracked(parts={"data_loading": 40}, facts=facts))["data_loading"]
    assert "with 2 workers that start again every 4 batches" in found.text
    assert "persistent_workers=True" in found.advice
    del facts["batches_per_worker_start"]
    found = findings(tracked(parts={"data_loading": 40}, facts=facts))["data_loading"]
    assert "persistent_workers" not in found.advice
