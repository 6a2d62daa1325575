"""Examples for the help of every command."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("uprof run train.py --epochs 1", "profile a training script"),
        ("uprof report RUN", "show its time and memory"),
    ),
    "run": (
        ("uprof run train.py --epochs 1", "a script and its arguments"),
        ("uprof run -o out -m pkg.train", "run a module, reports in out/"),
        ("uprof run --report timeline train.py", "record a device timeline"),
        ("uprof run --dry-run --backend npu train.py", "only print the msprof command"),
    ),
    "build": (
        ("uprof build PROF_000001_20260101", "write into the directory"),
        ("uprof build recordings/ -o databases/ --jobs 4", "convert all PROF_* below"),
    ),
    "import": (
        ("uprof import trace.json.gz", "write trace.db"),
        ("uprof import rank*/trace.json.gz -o reports/", "one report per trace"),
        ("uprof import - -o run.db", "read from a pipe"),
    ),
    "report": (
        ("uprof report RUN", "most expensive operations first"),
        ("uprof report RUN --by module --top 10", "group by module"),
        ("uprof report RUN -o report.html", "write a self-contained HTML page"),
        ("uprof report --convert trace.json.gz", "read another profiler's trace"),
    ),
    "advise": (
        ("uprof advise RUN", "list findings by cost"),
        ("uprof advise --convert trace.json.gz --json", "read another profiler's trace"),
    ),
    "what-if": (
        ("uprof what-if RUN", "find what is worth optimizing"),
        ("uprof what-if RUN --faster aten::mm=2", "make matmuls twice as fast"),
        ("uprof what-if RUN --without communication", "nothing to wait for"),
    ),
    "trace": (
        ("uprof trace run.db -o run.perfetto-trace", "for ui.perfetto.dev"),
        ("uprof trace run.db -o run.json", "for chrome://tracing"),
    ),
    "view": (
        ("uprof view RUN", "the page, in the browser"),
        ("uprof view RUN --perfetto", "the timeline, in ui.perfetto.dev"),
        ("uprof view RUN --no-open --port 8123", "on a machine that you reach by SSH"),
    ),
    "export": (
        ("uprof export msprof_20260101.db -o files/", "op_summary and its like"),
        ("uprof export PROF_000001_20260101 -o files/", "with what only raw data has"),
        ("uprof export RUN -o run.speedscope.json", "or .collapsed, .pb.gz"),
    ),
    "cluster": (("uprof cluster report run.cluster", "who is slow, and what it costs"),),
    "cluster build": (
        ("uprof cluster build ranks/ -o run.cluster", "a folder of all ranks"),
        ("uprof cluster build ranks/ --dask local:8", "by Dask on this machine"),
        ("uprof cluster build s3://job --scheduler dask.json", "elsewhere"),
    ),
    "cluster report": (
        ("uprof cluster report run.cluster", "who is slow, and what it costs"),
        ("uprof cluster report run.cluster --rank 137", "one rank"),
        ("uprof cluster report run.cluster -o run.html", "write a self-contained HTML page"),
    ),
    "cluster diff": (("uprof cluster diff old.cluster new.cluster", "by pipeline stage"),),
    "cluster gate": (("uprof cluster gate old.cluster new.cluster --metric imbalance", "in CI"),),
    "diff": (
        ("uprof diff base new", "operation by operation"),
        ("uprof diff base new --by line --top 10", "by source line"),
    ),
    "gate": (
        ("uprof gate base new --max-regress 5%", "fail when 5 % slower"),
        ("uprof gate --baseline main new", "against a saved run"),
        ("uprof gate base/ new/ --until-sure train.py", "run both in turn"),
        ("uprof gate --self-test train.py", "how small a change is seen"),
        ("uprof gate base new --metric peak-memory", "by peak memory"),
    ),
    "time": (("uprof time model.py -o time.sqlite", "one run time report"),),
    "memory": (("uprof memory model.py -o memory.sqlite", "one memory report"),),
    "baseline": (("uprof baseline save main RUN", "then: uprof gate --baseline main NEW"),),
    "baseline save": (("uprof baseline save main RUN", "main@1, then main@2 and so on"),),
    "baseline list": (("uprof baseline list", "newest version of each"),),
    "baseline show": (("uprof baseline show main", "all versions of main"),),
    "baseline history": (
        ("uprof baseline history main", "chart with changes marked"),
        ("uprof baseline history main -o h.html", "the chart as a page"),
    ),
    "db": (("uprof db current run.db", "identify a file"),),
    "db current": (("uprof db current *.db", "revision and producer of each"),),
    "db history": (("uprof db history", "revisions and their changes"),),
    "db check": (("uprof db check run.db", "exits with 1 if a check fails"),),
    "db upgrade": (
        ("uprof db upgrade run.db", "to the newest revision"),
        ("uprof db upgrade run.db --schema documented -o new.db", "keep run.db"),
    ),
    "db create": (("uprof db create empty.db --schema latest", "tables without rows"),),
    "recover": (("uprof recover RUN", "partial reports of a killed run"),),
    "doctor": (("uprof doctor --json", "for a bug report"),),
}
"""Command path without `uprof` -> examples."""
