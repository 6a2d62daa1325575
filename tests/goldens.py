"""Outputs of commands on small generated recordings, as text in `tests/data/goldens`.

Each text is a list of commands, which run in one directory, and their outputs. After an intended
change, `python -m tests.goldens [NAME...]` runs the commands again and rewrites the outputs. `dump`
shows the rows of a database.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import sqlite3
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest

from tests.analysis.builders import Device, memory_report, run_time_report, training_step
from tests.cli.test_compare import write_run
from tests.cli.test_report import uprof
from tests.cluster.ranks import incomplete_runs
from tests.cluster.simulated_run import Plan, simulate, write_database
from tests.decoders.ascend_pt.test_damaged import all_kinds
from tests.decoders.ascend_text import builders as text_export
from tests.decoders.kineto import builders as kineto_builders
from tests.decoders.memory_snapshot import builders as snapshot
from tests.decoders.nsys import builders as nsys
from tests.decoders.prof import snapshots
from tests.decoders.rocm import builders as rocm
from tests.export import builders as exports
from tests.migrate.databases import make_msmonitor
from tests.pipeline.test_flight_recorder import Group, call, dump, waits
from tests.pipeline.test_flight_recorder import write as write_dumps
from tests.pipeline.test_rounds import write as write_iterations
from tests.records import run_with_regions
from tests.simulated.machine import Machine, Settings
from tests.simulated.models import Model, run_step
from tests.watch import runs as watch
from unified_prof.base.run_spec import Frame
from unified_prof.cli.app import app
from unified_prof.cli.command import _NumberType
from unified_prof.explain.advice import registry
from unified_prof.explain.roofline import ascend, serving_formulas
from unified_prof.explain.roofline.arguments import Arguments, UnknownCostError, parsed
from unified_prof.explain.roofline.costs import Cost
from unified_prof.recording.model import Advice
from unified_prof.recording.recording import Recording
from unified_prof.sqlite import skyline_writer
from unified_prof.version import VERSION

FOLDER = Path(__file__).parent / "data" / "goldens"
VARIABLES = {
    "XDG_CACHE_HOME": "cache",
    "XDG_STATE_HOME": "state",
    "UPROF_GATE_NOISE": "1%",
    "GITHUB_STEP_SUMMARY": "",
}
NOT_PACKED = ("device", "host", "title")  # texts beside packed columns of pages
COMMAND = "$ uprof "
WIDTH = 320  # JSON values that fit are on one line.
OF_RULES = ("judged", "not_judged")
VARYING = (
    (r"\((\d+) rules\)", "(N rules)"),
    (r"\nskipped: .*", ""),
    (r"\n  CPU time .*", ""),
    (r"(cpu_seconds: ).*", r"\1SECONDS"),
    (r"(: html), .* bytes", r"\1"),
    (r"_20\d{12}\.", "_TIME."),
    (r"\b(\d{5})-[0-9a-f]{20}-", r"\1-HASH-"),
)


def skyline() -> None:
    """Write reports: of two runs, the second with a slower line; of modules; of regions."""
    write_run(Path("base"), parts_ms={"data": 0.5})
    write_run(Path("new"), slow_line=1.5, seed=1, parts_ms={"data": 0.75})
    Path("modules").mkdir()
    paths = [("encoder.layers.0", "Linear"), ("encoder", "Encoder"), ("head", "Linear")]
    run_time_report(
        Path("modules/run_time.sqlite"),
        modules=paths,
        facts={"torch": "2.0"},
        anomalies=[("iterations_unmatched", 2, "iteration 3 has 2 operations instead of 3")],
    )
    memory_report(
        Path("modules/memory.sqlite"), modules={"weight": paths[:2], "activation": paths[:1]}
    )
    Path("tracked").mkdir()
    run, frames = run_with_regions(), (Frame("net.py", 12), Frame("net.py", 30))
    run = replace(run, activations=(replace(run.activations[0], frames=frames),))
    facts = {"command": '["uprof"]'}
    skyline_writer.write_run_time(Path("tracked/run_time.sqlite"), run, facts)
    skyline_writer.write_memory(Path("tracked/memory.sqlite"), run, facts)


def msprof() -> None:
    """Write databases of one training step, two of them in a directory, and one of six steps."""
    Path("two").mkdir()
    for path in ("step.db", "two/a.db", "two/b.db"):
        training_step(Path(path))
    with Device(Path("run.db")) as device:
        for step in range(6):
            begin = 100_000 * step
            device.step(step, begin, begin + 95_000)
            for number in range(5):
                at, connection = begin + 10_000 * number, 10 * step + number
                inputs = ("1024,1024;1024,1024", "float;float")
                device.call(at, at + 3_000, "aten::mul", inputs=inputs)
                device.runtime(at + 1_000, at + 2_000, "launch", connection)
                end, kernel = at + 9_000 + 500 * number, ("mul_kernel", "Mul")
                device.task(at + 8_000, end, connection=connection, kernel=kernel)
            device.task(begin + 60_000, begin + 70_000, "MEMCPY_ASYNC", copy=1 << 20)
            device.collective(
                begin + 70_000, begin + 80_000, "hcom_allReduce__1", "hcom_allReduce_"
            )
            device.memory(begin, "PTA", 1 << 30)
            device.memory(begin + 50_000, "PTA", 3 << 29)


def simulated(
    path: str,
    always: Mapping[str, str] = {},
    sometimes: Mapping[int, Mapping[str, str]] = {},
    run: Mapping[str, Any] = {},
    **model: Any,
) -> None:
    """Write the trace of six steps of a small program, with faults in all or single steps."""
    small = {"layers": 2, "width": 256, "tokens": 512, "vocabulary": 1024, **model}
    machine = Machine(Settings(**{"batch_us": 300.0, **run}))
    for number in range(8):
        if number == 2:
            machine.begin_recording()
        with machine.step(number):
            run_step(machine, Model(**small), {**always, **sometimes.get(number, {})})
    machine.write(Path(path))


def kineto() -> None:
    """Write traces of a program without and with faults."""
    simulated("base.json")
    faults: dict[str, Any] = {
        "input_copy": "pageable",
        "input_bytes": 1 << 24,
        "casts": 1,
        "dtype": "fp32",
    }
    simulated("faulty.json", {"middle": "item"}, optimizer="loop", **faults)


def kineto_events() -> None:
    """Write a trace with events of every kind."""
    kineto_builders.write(
        Path("run.json"),
        kineto_builders.all_kinds(),
        deviceProperties=[{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        distributedInfo={
            "rank": 5,
            "world_size": 8,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 3, 5]}],
        },
        host_name="node7",
    )


def memory_snapshot() -> None:
    """Write snapshots: a small one, one with more blocks, and one with fragmented memory."""
    for name, make in (("run", snapshot.small), ("new", snapshot.grown)):
        snapshot.write(Path(f"{name}.json"), make())
    snapshot.write(Path("fragmented.json"), snapshot.fragmented())


def mindstudio() -> None:
    """Write a database with rows of every kind that the layout of msprof has."""
    with exports.DatabaseBuilder(Path("msprof_1.db")) as database:
        exports.all_kinds(database)


def faults() -> None:
    """Write traces of programs with faults of kernels, of the host and of allocations."""
    kernels: dict[str, Any] = {"width": 2050, "tokens": 8192, "vocabulary": 50303, "casts": 2}
    kernels |= {"transposes": 2, "flash": False, "fused_activation": False, "optimizer": "loop"}
    simulated("kernels.json", **kernels)
    pauses = {5: {"middle": "item, compile"}, 6: {"middle": "collect", "end": "save"}}
    host = {"workers": 2, "batch_us": 9_000.0}
    simulated("host.json", {"end": "item, log", "start": "much memory"}, pauses, host)
    stalls = {"layer": "free, malloc", "middle": "retries", "end": "nonzero"}
    simulated("stalls.json", stalls, {4: {"layer": "two synchronizations"}}, input_host_us=900.0)


def ddp() -> None:
    """Write the trace of a rank whose all-reduces are at the end."""
    simulated("rank0.json", run={"ranks": 8, "late_us": 100.0}, reduction="at end")


def cluster() -> None:
    """Write the databases of four ranks of runs: without and with slow ranks, links, experts."""
    for name, plan in (
        ("base", Plan(tp=2, dp=2, pp=1, steps=6, per_host=2)),
        ("slow", Plan(tp=2, dp=2, pp=1, steps=6, per_host=2, slow={3: 1.4}, late={0: 400_000})),
        ("experts", Plan(tp=1, dp=4, pp=1, ep=4, steps=6, per_host=2, hot={1: 1.6})),
        ("stages", Plan(tp=1, dp=2, pp=2, steps=6, per_host=2, slow_links={(0, 2): 8.0})),
    ):
        Path(name).mkdir()
        run = simulate(plan)
        for rank in range(4):
            write_database(run, rank, Path(name, f"rank{rank}.db"))


def cluster_faults() -> None:
    """Write the databases of runs of four or eight ranks with one kind of fault each."""
    four, wide = Plan(tp=2, dp=2, pp=1, steps=6, per_host=2), Plan(tp=1, dp=4, pp=1, steps=6)
    experts = replace(wide, dp=8, ep=4, uneven=0.08)
    for name, plan in (
        ("slow_link", replace(wide, dp=2, pp=4, slow_links={(2, 4): 4.0})),
        ("slow_hosts", replace(wide, pp=2, per_host=2, slow_links={(2, 6): 4.0, (3, 7): 4.0})),
        ("slow_launches", replace(wide, per_host=2, slow_host=1)),
        ("tokens", replace(experts, hot={1: 2.0, 5: 1.8})),
        ("padded_tokens", replace(experts, hot={1: 2.0}, padded=True, steps=4)),
        ("moving_tokens", replace(experts, moving=3.0)),
        ("pauses", replace(four, stops={3: 3_000_000}, stop_where="kernels", only=(2, 4))),
        ("no_loader", replace(four, stops={1: 3_000_000}, loader=False)),
        ("in_turn", replace(wide, steps=8, batches=8, in_turn=1.3)),
        ("some_steps", replace(four, steps=8, slow={1: 1.3}, only=(3, 4), buckets=3)),
        ("late", replace(four, late=dict.fromkeys(range(4), 5_000_000), drift_ppm=20.0)),
    ):
        Path(name).mkdir()
        run = simulate(plan)
        for rank in range(plan.world):
            write_database(run, rank, Path(name, f"rank{rank}.db"))


def errors() -> None:
    """Write what commands refuse: damaged, empty and unknown files, and reports without data."""
    training_step(Path("step.db"))
    write_run(Path("run"))
    Path("empty").mkdir()
    trace = b'{"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 1'
    for name, content in (
        ("nothing.json", b""),
        ("words.txt", b"no recording"),
        ("list.json", b"[]"),
        ("other.json", b'{"a": 1}'),
        ("columns.json", b"PAR1\x15\x04PAR1"),
        ("cut.json", trace),
        ("nothing.json.gz", gzip.compress(b"")),
        ("words.json.gz", gzip.compress(b"no recording")),
        ("cut.json.gz", gzip.compress(trace * 100)[:60]),
        ("cut.db", Path("step.db").read_bytes()[:5000]),
        ("bytes.db", b"SQLite format 3\0" + bytes(99)),
        ("cluster.sqlite", b""),
        ("train.py", b"raise AssertionError\n"),
    ):
        Path(name).write_bytes(content)
    for name, statement in (
        ("table.db", "CREATE TABLE shopping (item TEXT)"),
        ("newer.db", "UPDATE META_DATA SET value = '9.9.9' WHERE name = 'SCHEMA_VERSION'"),
        ("more.db", "ALTER TABLE TASK ADD COLUMN taste TEXT"),
        ("renamed.db", "ALTER TABLE COMPUTE_TASK_INFO RENAME COLUMN opType TO kind"),
        ("views.db", "CREATE VIEW COMMUNICATION_OPS AS SELECT * FROM TASK"),
    ):
        if name != "table.db":
            Path(name).write_bytes(Path("step.db").read_bytes())
        with closing(sqlite3.connect(name)) as db, db:
            db.execute(statement)


def flight() -> None:
    """Write Flight Recorder dumps of a healthy run and of runs that hang in different ways."""
    usual, absent = dump([call(1), waits(2)]), dump([call(1)])
    other = dump([call(1), waits(2, "broadcast")])
    short = dump([call(1), waits(2, input_sizes=[[64, 9]], output_sizes=[[64, 9]])])
    world = range(4)
    unequal = {rank: dump([call(1, "all_to_all", input_sizes=[[rank]])]) for rank in world}
    overwritten = {rank: dump([call(one) for one in range(rank + 1, 9)]) for rank in world}
    pairs: tuple[Group, Group] = (("a", "tp", [0, 1]), ("b", "dp", [1, 3]))
    first = waits(1, process_group=("a", "tp"), time_created_ns=1)
    second = waits(1, process_group=("b", "dp"), time_created_ns=2)
    stages: dict[str, Any] = {"process_group": ("p", "pp"), "is_p2p": True}
    sends = [waits(number, "send 0->1", **stages) for number in (1, 2)]
    received = [waits(1, "recv 1<-0", **stages)]
    for name, dumps in (
        ("absent", dict.fromkeys(world, usual) | {2: absent}),
        ("other", dict.fromkeys(world, usual) | {2: other}),
        ("sizes", dict.fromkeys(world, usual) | {0: short}),
        ("unequal", unequal),
        ("overwritten", overwritten),
        ("entered", dict.fromkeys(world, usual)),
        ("killed", {0: usual, 1: usual}),
        ("chain", {0: dump([first], *pairs), 1: dump([second], *pairs), 3: dump([], *pairs)}),
        ("transfer", {4: dump(sends, ("p", "pp", [4, 6])), 6: dump(received, ("p", "pp", [4, 6]))}),
    ):
        Path(name).mkdir()
        write_dumps(Path(name), dumps)
    Path("killed/nccl_trace_rank_3").write_bytes(b"")
    Path("packed").mkdir()
    for rank, content in enumerate((absent, usual)):
        data = gzip.compress(json.dumps(content).encode())
        Path(f"packed/fr_{rank}.json.gz").write_bytes(data)


def watched() -> None:
    """Write watched runs: with events, of four ranks, without steps, damaged."""
    for name in ("run", "ranks", "empty", "cut", "device"):
        Path(name).mkdir()
    watch.write_run(Path("run"), change=watch.eventful, events=watch.CAPTURED)
    for rank in range(4):
        lengths = {number: {"length_ns": (10 + rank) * watch.MS} for number in range(200)}
        watch.write_run(Path("ranks"), 200, lengths.__getitem__, rank=rank)
    Path("ranks/watch_rank1.db").write_bytes(b"no database")
    watch.write_run(Path("empty"), 0)
    unknown = dict.fromkeys(("forward_ns", "backward_ns", "optimizer_ns"))
    watch.write_run(Path("device"), 1, lambda _: unknown, device="cuda")
    file = watch.write_run(Path("cut"))
    file.path.write_bytes(file.path.read_bytes()[:9000])


def workloads() -> None:
    """Write three runs per side of two workloads, one slower by a third."""
    for name, base, new in (("mlp", 10.0, 13.3), ("cnn", 40.0, 40.0)):
        for number in (1, 2, 3):
            write_iterations(Path(f"base/{name}-{number}"), base * (1 + number / 1000))
            write_iterations(Path(f"new/{name}-{number}"), new * (1 + number / 1000))


def ascend_pt() -> None:
    """Write a recording of torch_npu with the recording of its device."""
    folder = all_kinds().write(Path("host_7_20260101000000000_ascend_pt"), rank=0)
    snapshots.unpack("stars", folder)


def prof() -> None:
    """Unpack two recordings of an NPU."""
    for number, name in enumerate(("stars", "counters_v1")):
        snapshots.unpack(name, Path()).rename(f"PROF_{number}")


RECORDINGS: dict[str, Callable[[], Any]] = {
    "skyline": skyline,
    "msprof": msprof,
    "kineto": kineto,
    "kineto_events": kineto_events,
    "faults": faults,
    "ddp": ddp,
    "nsys": lambda: nsys.write(Path("run.sqlite"), nsys.all_kinds()),
    "rocm": lambda: rocm.write(Path("run.db"), rocm.small()),
    "memory_snapshot": memory_snapshot,
    "ascend_text": lambda: text_export.write(Path("host_8_20260101000000000_ascend_pt")),
    "ascend_pt": ascend_pt,
    "mindstudio": mindstudio,
    "prof": prof,
    "errors": errors,
    "flight": flight,
    "ranks": incomplete_runs,
    "watched": watched,
    "workloads": workloads,
    "cluster": cluster,
    "cluster_faults": cluster_faults,
    "formulas": lambda: None,
    "options": lambda: None,
    "migrate": lambda: make_msmonitor(Path("msmonitor_1_20260101000000000_0.db")),
}


def golden(name: str) -> str:
    """Return the stored text."""
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def transcript(name: str, folder: Path) -> str:
    """Return the commands of a text with their outputs in an empty directory."""
    lines = golden(name).splitlines()
    commands = [line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for variable, value in VARIABLES.items():
            patch.setenv(variable, value)
        patch.setattr(registry, "advise", advice_of_each_file())
        RECORDINGS[name]()
        outputs = (f"{COMMAND}{words}\n{output_of(words.split())}\n" for words in commands)
        return "".join(without_repetitions(clean(output, folder) for output in outputs))


def advice_of_each_file() -> Callable[..., Advice]:
    """Return a function that evaluates the rules once for a file: most commands repeat findings."""
    found: dict[tuple[Path, bool], Advice] = {}
    advise = registry.advise

    def once(recording: Recording, *, quick: bool = False) -> Advice:
        key = (recording.source.path, quick)
        if key not in found:
            found[key] = advise(recording, quick=quick)
        return found[key]

    return once


def output_of(words: list[str]) -> str:
    """Return the exit code, messages, output and files of a command."""
    if words[0] == "dump":
        with closing(sqlite3.connect(words[1])) as db:
            return snapshots.rows_text(db)
    if words[0] == "options":
        return "".join(options(app))
    if words[0] == "formulas":
        return "".join(formulas(words[1]))
    if words[0] == "formula":
        return cost_text(lambda: cost_of_operation(words[1], words[2]))
    if words[0] == "operator":
        return cost_text(lambda: cost_of_operator(*words[1:]))
    done = uprof(*words)
    code = f"exit code {done.returncode}\n" if done.returncode else ""
    parts = [code, done.stderr, readable(done.stdout)]
    is_written = "-o" in words and not done.returncode
    out = Path(words[words.index("-o") + 1]) if is_written else Path()
    if out.suffix == ".html":
        data = out.read_text(encoding="utf-8").partition('id="data">')[2].partition("</script>")[0]
        parts += [readable(json.dumps(json.loads(data, object_hook=unpacked)))]
    elif words[0] == "export" and is_written:
        for file in sorted(out.iterdir()) if out.is_dir() else [out]:
            parts += [f"--- {file.name}\n", readable(file.read_text(encoding="utf-8"))]
    return "".join(parts)


def options(command: click.Command, name: str = "uprof") -> Iterator[str]:
    """Yield the options of all commands that have a default or limits."""
    if isinstance(command, click.Group):
        for part, inner in sorted(command.commands.items()):
            yield from options(inner, f"{name} {part}")
        return
    for option in command.params:
        number = option.type if isinstance(option.type, _NumberType) else None
        limits = (number._low, number._high) if number else (None, None)
        default = option.default if isinstance(option.default, int | float | str) else None
        if default or limits != (None, None):
            kind = f"{option.opts[-1]} {option.type.name}"
            yield f"{name} {kind}: default {default}, limits {limits}\n"


def formulas(shape: str) -> Iterator[str]:
    """Yield the cost of each operation for tensors of a shape, and what an argument changes."""

    def given(left_out: int) -> tuple[Any, ...]:
        kept = [at < 7 and at != left_out for at in range(20)]
        shapes = ";".join(shape if one else "" for one in kept)
        types = ";".join("c10::BFloat16" if one else "Scalar" for one in kept)
        return parsed(shapes, types).given

    tensors = {left_out: given(left_out) for left_out in range(-1, 7)}

    def cost(name: str, left_out: int = -1, true: int = -1) -> str:
        values = tuple("True" if at == true else "False" for at in range(20))
        formula = serving_formulas.formula_of(name)
        assert formula is not None
        return cost_text(lambda: formula(Arguments(tensors[left_out], values)))

    for name in sorted(serving_formulas._FORMULAS):
        if not (usual := cost(name)).startswith("unit"):
            continue
        yield f"{name}: {usual}\n"
        changed = {f"without {at}": cost(name, left_out=at) for at in range(7)}
        changed |= {f"true {at}": cost(name, true=at) for at in range(20)}
        for text in sorted({text for text in changed.values() if text != usual}):
            yield f"  {', '.join(key for key, one in changed.items() if one == text)}: {text}\n"


def cost_text(cost: Callable[[], Cost]) -> str:
    """Return the figures of a cost, or why it is unknown."""
    try:
        found = {key: str(value) for key, value in asdict(cost()).items()}
    except UnknownCostError as error:
        return str(error)
    return ", ".join(f"{k} {v}" for k, v in found.items() if v not in ("None", "", "()", "False"))


def cost_of_operation(name: str, words: str) -> Cost:
    """Return the cost of an operation of torch.

    Its arguments are `dtype:sizes` of a tensor, bf16 by default, `dtype:sizes|sizes` of a list of
    tensors, whose dtype is that of the kernel, `=value`, or empty.
    """
    shapes, types, values = [], [], []
    for word in words.split(";"):
        dtype, _, sizes = word.rpartition(":")
        is_value = word.startswith("=")
        kind = "TensorList" if "|" in word else dtype or ("BFloat16" if word else "")
        shapes.append("" if is_value else sizes)
        types.append("Scalar" if is_value else kind)
        values.append(word[1:] if is_value else "")
    formula = serving_formulas.formula_of(name)
    assert formula is not None
    texts = ";".join(shapes), ";".join(types), None, json.dumps(values)
    return formula(parsed(*texts, kernel=words))


def cost_of_operator(name: str, inputs: str, outputs: str, launched_by: str = "") -> Cost:
    """Return the cost of an operator of CANN; its tensors are `dtype:sizes@layout`."""

    def tensors(words: str) -> tuple[ascend.StoredTensor, ...]:
        parts = [re.split("[:@]", f"{one}@ND") for one in words.split(";")]
        return ascend.stored_tensors(*(";".join(part[at] for part in parts) for at in (1, 0, 2)))

    operation, _, arguments = launched_by.partition("(")
    given = parsed(arguments, ";".join("BFloat16" for _ in arguments.split(";")))
    framework = ascend.Framework(operation, given) if operation else None
    return ascend.cost(ascend.Operator(name, tensors(inputs), tensors(outputs), framework))


def unpacked(value: dict[str, Any]) -> dict[str, Any]:
    """Return an object of a page; if it has packed columns, with their numbers."""
    if not any(isinstance(value.get(name), str) for name in ("duration", "src", "span_ns")):
        return value
    packed = [n for n, one in value.items() if isinstance(one, str) and n not in NOT_PACKED]
    return value | {name: numbers(value[name]) for name in packed}


def numbers(text: str) -> list[int]:
    """Return numbers in base64 with seven bits per byte, the lowest first."""
    result, shift = [0], 0
    for byte in base64.b64decode(text):
        result[-1] |= (byte & 127) << shift
        shift = shift + 7 if byte > 127 else 0
        result += [] if shift else [0]
    return result[:-1]


def readable(text: str) -> str:
    """Return JSON with a line for each value that fits, other text unchanged."""
    try:
        document = json.loads(text, parse_float=rounded, object_pairs_hook=members)
    except ValueError:
        return text
    return "\n".join(json_lines(document)) + "\n"


def rounded(number: str) -> float:
    """Return a number without its last bits, which depend on the processor; times are exact."""
    return float(number if len(number.partition(".")[0]) > 9 else f"{float(number):.10g}")


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object without nulls and without lists that every new rule extends."""
    return {name: one for name, one in pairs if one is not None and name not in OF_RULES}


def json_lines(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield a JSON value as lines."""
    line = prefix + json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and all(isinstance(one, int | float) for one in value):
        yield from textwrap.wrap(line, WIDTH)
        return
    if len(line) <= WIDTH + len(prefix) or not isinstance(value, dict | list):
        yield line
        return
    yield prefix + ("{" if isinstance(value, dict) else "[")
    indent = " " * (len(prefix) - len(prefix.lstrip()) + 1)
    for key in value if isinstance(value, dict) else range(len(value)):
        yield from json_lines(value[key], f"{indent}{key}: " if isinstance(key, str) else indent)


def without_repetitions(outputs: Iterable[str]) -> Iterator[str]:
    """Yield outputs; several lines that an earlier output has too are replaced by their number."""
    seen: set[str] = set()
    for output in outputs:
        lines = output.splitlines(keepends=True)
        for is_repeated, group in itertools.groupby(lines, lambda line: line.strip() in seen):
            same = [*group]
            few = not is_repeated or len(same) < 3
            yield "".join(same) if few else f"({len(same)} lines as above)\n"
        seen.update(line.strip() for line in lines)


def clean(text: str, folder: Path) -> str:
    """Replace what depends on directory, version, time, speed or processor."""
    text = text.replace(str(folder), "DIR").replace(VERSION, "VERSION")
    for pattern, new in VARYING:
        text = re.sub(pattern, new, text)
    return re.sub(r"(?<![\w.])\d+\.\d{6,}(?![\w.])", lambda found: str(rounded(found[0])), text)


def main() -> None:
    """Rewrite the texts."""
    for name in sys.argv[1:] or RECORDINGS:
        with tempfile.TemporaryDirectory() as folder:
            text = transcript(name, Path(folder))
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
