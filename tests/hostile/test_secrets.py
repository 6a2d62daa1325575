"""Secrets in everything that commands are given are in nothing that they write."""

import gzip
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import stand_in_msprof
from tests.cluster import ranks
from tests.conftest import ROOT
from tests.decoders.kineto.builders import operation
from tests.decoders.kineto.builders import write as write_trace
from tests.faults.commands import ON_NPU, TRAINING
from tests.hostile.secret_forms import PIECE, Form, all_forms
from tests.prof_generator import Recipe, generate

pytestmark = pytest.mark.forks_of_commands

SEEDS = range(8)
_NOT_PASSED_ON = "import os, pathlib; pathlib.Path('config.yaml').read_text(); os.environ\n"

# Commands in the order in which they run. {forms} are the arguments with all secrets, {url} and
# {value} single ones. After the colon: exit codes, 0 if there are none.
COMMANDS = """
run --backend cpu -v -o out/run train.py {forms}
run --backend cpu --json -o out/second -m train {forms}
run --backend cpu --report timeline --timeline-detail stacks -q -o out/timeline train.py {forms}
run --backend npu -o out/npu npu.py {forms}
run --backend npu --dry-run train.py {forms}
run --backend cpu --dry-run train.py {forms}: 2
run --backend cpu -o out/crash crash.py {forms}: 1
run --backend cpu --token {value} train.py: 2
run --backend cpu --password={value} train.py: 2
run --backend {value} train.py: 2
run -o out/missing {url}: 2
convert trace.json -o out/trace.db
convert prof -o out/prof.db
convert {url} -o out/x.db: 2 6
report out/run -o out/report.html
report out/run -o out/report.json
report out/run -o out/report.csv
report out/run -o out/report.md
report out/run -o out/report.parquet
report out/run -o out/report.arrow
report out/run --full-names --top 500
report out/crash --json
report out/npu -o out/npu.html
report out/timeline -o out/timeline.html --embed-source
report out/timeline --by stack
report out/trace.db --json
report out/run --by {value}: 2
baseline show --history main: 2 7
report {url}: 2 7
advise out/timeline -o out/advice.json
advise out/timeline --faster {value}=2: 2
export out/timeline -o out/t.perfetto-trace
export out/timeline -o out/t.json
export out/prof.db -o out/files
export out/timeline/timeline.db -o out/tables --layout parquet
export out/run/run_time.sqlite -o out/tables-of-run --layout arrow
export out/run -o out/t.pb.gz
export out/run -o out/t.speedscope.json
export out/run -o out/t.collapsed
diff out/run out/second -o out/diff.json
diff out/run out/second -o out/diff.md
diff out/npu out/npu -o out/diff.html: 0 2
gate out/run out/second -o out/gate.xml --noise 2%: 0 1 3
gate out/run out/second --json --noise 2%: 0 1 3
gate . . --until-sure {command} --rounds 3 --keep out/kept -o out/sure.xml: 0 1 3
gate . . --until-sure {wrong}: 2 5
gate --self-test {command} --rounds 3: 0 1 3
baseline save main out/run
baseline save main out/run --store {url}: 2 7
baseline save {value} out/run --store postgresql://u:{value}@127.0.0.1:1/d: 2 7
baseline show main
baseline list --json
cluster build ranks -o out/run.cluster --verbose --jobs 1
cluster build ranks -o {url}: 2 7 9
cluster build ranks -o out/x.cluster --scheduler tls://u:{value}@127.0.0.1:1: 2 10
cluster report out/run.cluster -o out/cluster.html
cluster report out/run.cluster --json
export out/run.cluster --ranks 0,1 -o out/cluster.json
db info out/run/run_time.sqlite
db check out/run/run_time.sqlite
db upgrade out/trace.db
doctor
"""


class Site:
    """A project, its surroundings with secrets, and everything that commands write."""

    def __init__(self, root: Path) -> None:
        self.forms = [form for seed in SEEDS for form in all_forms(seed)]
        self.root = root
        self.project, self.home, self.streams = (root / n for n in ("project", "home", "streams"))
        for folder in (self.project, self.home, self.streams, root / "tmp"):
            folder.mkdir()
        self.number = 0
        self._write_project()
        self.environment = {
            **{name: value for name, value in os.environ.items() if "UPROF" not in name},
            "HOME": str(self.home),
            "TMPDIR": str(root / "tmp"),
            "PYTHONPATH": str(ROOT),
            **{f"XDG_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "STATE")},
            "PATH": os.pathsep.join([str(root / "bin"), os.environ["PATH"]]),
            "UPROF_BASELINE_HISTORY_STORE": f"postgresql://u:{self._secret(1)}@127.0.0.1:1/d",
            "HF_TOKEN": self._secret(1),
            "DATABASE_URL": f"postgresql://u:{self._secret(1)}@h/d",
            "PLAIN": self._secret(1),
        }

    def _of(self, seed: int) -> list[Form]:
        count = len(self.forms) // len(SEEDS)
        return self.forms[seed * count : (seed + 1) * count]

    def _secret(self, seed: int) -> str:
        return self._of(seed)[-1].secret

    def _write_project(self) -> None:
        text = _NOT_PASSED_ON + TRAINING
        annotated = text.replace(
            "    optimizer.step()",
            "    with torch.profiler.record_function(open('config.yaml').read()"
            ".replace('\\n', ' ')):\n"
            "        optimizer.step()",
        )
        assert annotated != text
        (self.project / "train.py").write_text(annotated)
        (self.project / "long.py").write_text(text.replace("16", "200"))
        lines = [" ".join(form.arguments) for form in self._of(2)]
        (self.project / "config.yaml").write_text("\n".join(lines))
        message = " ".join(word for form in self._of(3) for word in form.arguments)
        (self.project / "crash.py").write_text(f"{text}raise RuntimeError({message!r})\n")
        (self.project / "npu.py").write_text(ON_NPU)
        (self.home / ".netrc").write_text(f"machine h login me password {self._secret(4)}\n")
        stand_in_msprof.install(self.root / "bin")
        for words in (
            ("init", "-q"),
            ("remote", "add", "origin", f"https://oauth2:{self._secret(4)}@gitlab.com/g/r.git"),
            ("add", "."),
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", self._secret(4)),
        ):
            subprocess.run(["git", *words], cwd=self.project, check=True)
        everything = [word for form in self._of(5) for word in form.arguments]
        variables = {f"VARIABLE_{n}": word for n, word in enumerate(everything)}
        write_trace(
            self.project / "trace.json",
            [
                operation("aten::mm", 1, 2),
                *(
                    operation(" ".join(form.arguments), 10 * number, 5, category=category)
                    for number, form in enumerate(self._of(5))
                    for category in ("cpu_op", "user_annotation", "python_function")
                ),
            ],
            host_name=everything[0],
            environment=variables,
            command=everything,
            INFO=everything,
            deviceProperties=[{"id": 0, "name": everything[3]}],
            distributedInfo={"rank": 0, "world_size": 1, "pg_config": everything},
            HF_TOKEN=everything[1],
            my_version=everything[2],
        )
        ranks.databases(self.project / "ranks", 2)
        generate(self.project / "prof", Recipe(operators=2))

    def uprof(self, line: str) -> str:
        """Run a command; return why its exit code is wrong, or an empty string."""
        line, _, codes = line.partition(": ")
        forms = [word for form in self._of(0) for word in form.arguments]
        token = next(one.secret for one in self._of(7) if one.secret.startswith("hf_"))
        url = f"postgresql://user:{self._secret(6)}@127.0.0.1:1/x"
        # A line is a workload.
        to_gate = [word for word in forms if "\n" not in word]
        places = {
            "{forms}": forms,
            "{command}": [shlex.join(["--backend", "cpu", "long.py", *to_gate])],
            "{wrong}": [shlex.join(["--backend", "cpu", "crash.py", *to_gate])],
        }
        words = [
            part.replace("{url}", url).replace("{value}", token)
            for word in line.split()
            for part in places.get(word, [word])
        ]
        self.number += 1
        outputs = [self.streams / f"{self.number}.{name}" for name in ("stdout", "stderr")]
        with outputs[0].open("wb") as out, outputs[1].open("wb") as err:
            done = subprocess.run(
                [sys.executable, "-m", "unified_prof", *words],
                cwd=self.project,
                env=self.environment,
                stdout=out,
                stderr=err,
                timeout=400,
                check=False,
            )
        if "crash.py" in line or "{wrong}" in line:  # The traceback is the script's own output.
            lines = outputs[1].read_bytes().splitlines()
            outputs[1].write_bytes(b"\n".join(one for one in lines if one.startswith(b"uprof")))
        expected = [int(code) for code in (codes or "0").split()]
        return "" if done.returncode in expected else f"{line}: {done.returncode} {outputs[1]}"

    def view(self) -> None:
        """Keep the page that `uprof view` serves."""
        words = ["view", "out/run", "--no-open"]
        command = [sys.executable, "-u", "-m", "unified_prof", *words]
        with subprocess.Popen(
            command, cwd=self.project, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            with urllib.request.urlopen(line.strip()) as answer:
                (self.streams / "view.html").write_bytes(answer.read() + line.encode())
            process.terminate()

    def written(self) -> Iterator[Path]:
        """Yield all files that commands wrote, except the trace that is kept as torch wrote it."""
        inputs = ("project/.git", "home/.netrc", "project/config.yaml", "project/crash.py")
        of_torch = "project/out/timeline/timeline.json.gz"
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_file() and not name.startswith((*inputs, of_torch, "project/trace.json")):
                yield path


def texts_of(path: Path) -> list[bytes]:
    """Return the bytes of a file as they are and unpacked."""
    found = [data := path.read_bytes()]
    if data.startswith(b"\x1f\x8b"):
        found.append(gzip.decompress(data))
    if path.suffix in (".parquet", ".arrow", ".feather"):
        pyarrow = pytest.importorskip("pyarrow")
        if path.suffix == ".parquet":
            table = pytest.importorskip("pyarrow.parquet").read_table(path)
        else:
            table = pyarrow.ipc.open_file(path).read_all()
        found.append(str(table.to_pydict()).encode() + str(table.schema.metadata).encode())
    return found


def pieces_of(text: bytes) -> Iterator[bytes]:
    """Yield every part of a text as long as pieces of secrets: a pattern of all takes 20 s."""
    return (text[at : at + PIECE] for at in range(len(text)))


def test_packed_files_are_searched_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"secret " * 9))
    assert [b"secret secret" in text for text in texts_of(path)] == [False, True]


def test_a_piece_of_a_secret_is_found_anywhere() -> None:
    secret = all_forms(0)[-1].pieces[0]
    for text in (secret, b"a" + secret, secret + b"a", b"a\n" + secret + b"\0"):
        assert secret in pieces_of(text)
    assert secret not in pieces_of(secret[:-1] + b"-")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 63 commands, each in a process
def test_no_secret_is_in_any_file_or_stream(tmp_path: Path) -> None:
    site = Site(tmp_path)
    wrong = [found for line in COMMANDS.strip().splitlines() if (found := site.uprof(line))]
    site.view()
    pieces = {piece: form for form in site.forms for piece in form.pieces}
    leaks = {
        (path.relative_to(tmp_path).as_posix(), " ".join(pieces[found].arguments))
        for path in site.written()
        for text in texts_of(path)
        for found in pieces_of(text)
        if found in pieces
    }
    assert wrong == []
    assert sorted(leaks) == []
