"""Programs built on other packages compute the same under uprof and are reported.

Each trains (or runs) a small random model through a library and writes a digest of every
parameter, of its losses and of torch's random state. It runs plain and under `uprof run`: same
exit code, same digest to the bit, all iterations found, and a report that names the operations and
the lines of code and in which the parts of an iteration add up to it.
Run by `make compat TORCH=2.14.1 WILD=1`, or where the packages are installed:

    HF_HUB_OFFLINE=1 python -m pytest -m clients tests/wild
"""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.clients

PROGRAMS = Path(__file__).with_name("programs")


@dataclass(frozen=True)
class Program:
    """A program of the directory, and the required content of its report."""

    name: str
    packages: str
    operations: frozenset[str]
    files: frozenset[str]
    """Ends of file names, each of which must occur in the frames."""
    iterations: int
    """Optimizer steps that end an iteration; without an optimizer, calls of the model."""
    has_optimizer: bool = True

    @property
    def samples(self) -> int:
        """Complete samples of two iterations each, in all iterations of the program.

        The warm-up, the memory and the peak take four iterations. Without an optimizer, the first
        iterations end before the third call of the model, and the last one has no end.
        """
        return (self.iterations - (4 if self.has_optimizer else 6)) // 2


def program(
    name: str,
    packages: str,
    operations: str,
    files: str,
    iterations: int,
    has_optimizer: bool = True,
) -> Program:
    wanted = frozenset(operations.split()), frozenset(files.split())
    return Program(name, packages, *wanted, iterations, has_optimizer)


ALL = [
    program(
        "transformers_llama_loop",
        "transformers",
        "linear embedding silu scaled_dot_product_attention cross_entropy",
        "modeling_llama.py transformers_llama_loop.py",
        18,
    ),
    program(
        "transformers_trainer",
        "transformers accelerate",
        "addmm layer_norm embedding scaled_dot_product_attention",
        "modeling_gpt2.py transformers_trainer.py",
        18,
    ),
    program(
        "transformers_bert_accumulate",
        "transformers",
        "linear layer_norm gelu",
        "modeling_bert.py transformers_bert_accumulate.py",
        16,
    ),
    program(
        "transformers_generate",
        "transformers",
        "addmm layer_norm",
        "modeling_gpt2.py transformers_generate.py",
        30,
        has_optimizer=False,
    ),
    program(
        "diffusers_unet", "diffusers", "conv2d group_norm silu", "resnet.py diffusers_unet.py", 16
    ),
    program(
        "diffusers_autoencoder",
        "diffusers",
        "conv2d group_norm",
        "autoencoder_kl.py diffusers_autoencoder.py",
        16,
    ),
    program(
        "timm_vit",
        "timm torchvision",
        "linear layer_norm conv2d",
        "vision_transformer.py timm_vit.py",
        16,
    ),
    program(
        "torchvision_resnet",
        "torchvision",
        "conv2d batch_norm relu linear",
        "resnet.py torchvision_resnet.py",
        16,
    ),
    program(
        "torchvision_detector",
        "torchvision",
        "conv2d batch_norm",
        "ssd.py torchvision_detector.py",
        15,
    ),
    program(
        "lightning_trainer",
        "lightning",
        "linear relu dropout cross_entropy",
        "lightning_trainer.py",
        20,
    ),
    program("lightning_gan", "lightning", "linear leaky_relu softplus", "lightning_gan.py", 20),
    program("accelerate_loop", "accelerate", "linear layer_norm gelu", "accelerate_loop.py", 20),
    program("geometric_gcn", "torch_geometric", "linear relu dropout", "geometric_gcn.py", 16),
    program("trl_sft", "trl", "linear embedding silu sum", "modeling_llama.py", 24),
    program("peft_lora", "peft transformers", "linear silu embedding", "peft_lora.py", 24),
    program(
        "diffusers_pipeline", "diffusers", "conv2d group_norm", "diffusers_pipeline.py", 24, False
    ),
    program("inference_only", "", "linear mean argmax", "inference_only.py", 24, False),
    program(
        "optimizer_in_backward", "", "linear gelu cross_entropy", "optimizer_in_backward.py", 24
    ),
    program("lbfgs_closure", "", "linear tanh pow mean", "lbfgs_closure.py", 24),
    program("functional_gradients", "", "linear relu einsum", "functional_gradients.py", 24, False),
    program("maml", "", "linear tanh mse_loss", "maml.py", 24),
    program("gradient_scaler", "", "conv2d batch_norm relu linear", "gradient_scaler.py", 24),
]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, HF_HUB_OFFLINE="1", PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def rows(report: Path, query: str) -> set[str]:
    connection = sqlite3.connect(f"file:{report}?mode=ro", uri=True)
    try:
        return {str(row[0]) for row in connection.execute(query)}
    finally:
        connection.close()


def assert_parts_add_up(folder: Path, samples: int) -> None:
    """Check the number of samples, and that the parts of an iteration are all of its time.

    Some samples may be left out of the average: those in which the program saves or evaluates.
    """
    command = [sys.executable, "-m", "unified_prof", "report", "--format", "json", str(folder)]
    shown = run(command, folder)
    assert shown.returncode == 0, shown.stderr
    totals = json.loads(shown.stdout)["reports"][0]["totals"]
    (recorded,) = rows(folder / "run_time.sqlite", "SELECT count(*) FROM UPROF_ITERATIONS")
    assert int(recorded) == samples
    assert samples * 3 // 4 <= totals["iterations"] <= samples
    parts_ns = totals["iteration_parts_ns"]
    assert sum(parts_ns.values()) == totals["iteration_ns"]
    assert min(parts_ns.values()) >= 0


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_program_computes_the_same_and_is_reported(program: Program, tmp_path: Path) -> None:
    for package in program.packages.split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = str(PROGRAMS / f"{program.name}.py")
    plain = run([sys.executable, script, "plain.json"], tmp_path)
    options = ["--backend", "cpu", "-o", "out", "--project-root", str(PROGRAMS)]
    counts = ["--warmup", "1", "--iterations", "1000"]
    uprof = [sys.executable, "-m", "unified_prof", "run", *options, *counts]
    under = run([*uprof, script, "uprof.json"], tmp_path)
    assert plain.returncode == 0, plain.stderr[-3000:]
    assert under.returncode == 0, under.stderr[-3000:]
    assert "Traceback" not in under.stderr
    results = [json.loads((tmp_path / name).read_text()) for name in ("plain.json", "uprof.json")]
    assert results[0] == results[1]

    report = tmp_path / "out" / "run_time.sqlite"
    names = rows(report, "SELECT DISTINCT operation_name FROM run_time_entries")
    assert program.operations <= names
    files = rows(report, "SELECT DISTINCT file_path FROM stack_frames")
    missing = {end for end in program.files if not any(file.endswith(end) for file in files)}
    assert not missing, sorted(files)
    assert_parts_add_up(tmp_path / "out", program.samples)
    backward = rows(report, "SELECT backward_ms FROM run_time_entries WHERE backward_ms > 0")
    if program.has_optimizer:
        assert backward, "no operation has a backward time"
        memory = tmp_path / "out" / "memory.sqlite"
        assert rows(memory, "SELECT size_bytes FROM weight_entries"), "no weights"
        assert rows(memory, "SELECT size_bytes FROM activation_entries"), "no activations"
