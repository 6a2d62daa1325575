"""Examples for the help of every command."""

from __future__ import annotations

# Command path without `uprof` -> (command line, purpose).
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
    "watch": (
        ("uprof watch -o out train.py --epochs 90", "one row per step in out/"),
        ("uprof watch --export prometheus train.py", "also for node_exporter"),
    ),
    "capture": (
        ("uprof capture out", "a timeline of 5 steps, all ranks"),
        ("uprof capture out --ranks 0,8 --steps 2", "of some ranks"),
    ),
    "convert": (
        ("uprof convert trace.json.gz", "write trace.db"),
        ("uprof convert PROF_000001_20260101", "write into the directory"),
        ("uprof convert recordings/ -o databases/ --jobs 4", "all in a directory"),
        ("uprof convert - -o run.db", "read from a pipe"),
    ),
    "check": (
        ("uprof check PROF_000001_20260101", "is anything skipped?"),
        ("uprof check PROF_000001_20260101 --against x.db", "compare msprof's database"),
    ),
    "anonymize": (
        ("uprof anonymize trace.json.gz -o shared.json.gz", "replace its names"),
        ("uprof anonymize runs/ -o shared/", "all recordings of a directory"),
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
        ("uprof advise RUN --what-if", "find what to optimize first"),
        ("uprof advise RUN --faster aten::mm=2", "make matmuls twice as fast"),
        ("uprof advise RUN --without communication", "without communication"),
    ),
    "view": (
        ("uprof view RUN", "page in the browser"),
        ("uprof view RUN --perfetto", "timeline in ui.perfetto.dev"),
        ("uprof view RUN --no-open --port 8123", "on a remote machine (SSH)"),
    ),
    "export": (
        ("uprof export RUN -o run.perfetto-trace", "timeline; .json for Chrome"),
        ("uprof export RUN -o run.speedscope.json", "flame graph; or .pb.gz"),
        ("uprof export RUN -o tables/ --layout parquet", "a file per table"),
        ("uprof export PROF_000001_2026 -o files/", "op_summary and others"),
    ),
    "cluster": (("uprof cluster report run.cluster", "stragglers and their cost"),),
    "cluster build": (
        ("uprof cluster build ranks/ -o run.cluster", "a directory of all ranks"),
        ("uprof cluster build ranks/ --dask local:8", "Dask on this machine"),
        ("uprof cluster build s3://job --scheduler dask.json", "Dask on a cluster"),
    ),
    "cluster report": (
        ("uprof cluster report run.cluster", "stragglers and their cost"),
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
        ("uprof gate --self-test train.py", "smallest detectable change"),
    ),
    "baseline": (("uprof baseline save main RUN", "then: uprof gate --baseline main NEW"),),
    "baseline save": (("uprof baseline save main RUN", "main@1, then main@2 and so on"),),
    "baseline show": (
        ("uprof baseline show", "newest version of each"),
        ("uprof baseline show main", "all versions of main"),
        ("uprof baseline show main --history", "chart with changes marked"),
        ("uprof baseline show main -o h.html", "chart as an HTML page"),
    ),
    "db": (("uprof db info run.db", "identify a file"),),
    "db info": (
        ("uprof db info *.db", "revision and producer of each"),
        ("uprof db info", "revisions and their changes"),
    ),
    "db check": (("uprof db check run.db", "exits with 1 if a check fails"),),
    "db upgrade": (
        ("uprof db upgrade run.db", "newest revision"),
        ("uprof db upgrade run.db --schema documented -o new.db", "keep run.db"),
    ),
    "db create": (("uprof db create empty.db --schema latest", "tables without rows"),),
    "db recover": (("uprof db recover RUN", "partial reports of a killed run"),),
    "mcp": (
        ("uprof mcp --root runs/", "read-only, one directory"),
        ("uprof mcp --root . --allow-run", "may profile scripts, too"),
    ),
    "lsp": (("uprof lsp --run uprof_train_20260101_120000", "costs of this run"),),
    "schema": (("uprof schema report", "of `uprof report --format json`"),),
    "doctor": (("uprof doctor --json", "for a bug report"),),
}
