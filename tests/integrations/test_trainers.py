"""The callbacks in the real trainers write reports and do not change the training.

Run where the packages are installed: `python -m pytest -m clients tests/integrations`.
"""

import importlib.util
import sqlite3
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.processes import python
from unified_prof.sqlite.watch_file import read_folder

pytestmark = pytest.mark.clients

LIGHTNING = """
import sys, torch
import {package} as pl
from unified_prof.integrations.lightning import UprofCallback, UprofProfiler

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch, index):
        if {fails} and index == 9:
            raise ZeroDivisionError("the user's own")
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 16))
data = torch.utils.data.DataLoader(data, batch_size=4)
how = dict({how})
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False, **how)
model = Model()
trainer.fit(model, data)
print("digest", sum(float(p.double().sum()) for p in model.parameters()))
"""

TRANSFORMERS = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from unified_prof.integrations.transformers import UprofCallback

torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=16))
data = [dict(input_ids=torch.arange(8), labels=torch.tensor(i % 2)) for i in range(32)]
callback = UprofCallback("out", iterations=4)
trainer = Trainer(
    model=model, train_dataset=data, callbacks=[callback],
    args=TrainingArguments("hf", max_steps=12, per_device_train_batch_size=2, report_to=[],
                           use_cpu=True, save_strategy="no", logging_strategy="no",
                           disable_tqdm=True))
trainer.train()
assert callback.measurement.failure is None, callback.measurement.failure
"""


ACCELERATE = """
import torch, unified_prof
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(16, 1)
model, optimizer, data = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.01),
    torch.utils.data.DataLoader(torch.randn(160, 16), batch_size=4))
with unified_prof.watch("out"):
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
"""


SLOW_DATA = """
class Slow(list):
    def __getitem__(self, index):
        __import__("time").sleep(1.0)
        return super().__getitem__(index)

"""


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script, encoding="utf-8")
    return python("train.py", cwd=folder, env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})


def operations(folder: Path) -> set[str]:
    report = sqlite3.connect(folder / "out" / "run_time.sqlite")
    return {name for (name,) in report.execute("SELECT operation_name FROM run_time_entries")}


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
@pytest.mark.parametrize(
    "how",
    [
        "callbacks=[UprofCallback('out', iterations=4)]",
        "profiler=UprofProfiler('out', iterations=4)",
    ],
)
def test_lightning_training_is_measured_as_it_is(package: str, how: str, tmp_path: Path) -> None:
    needs(package.partition(".")[0])
    done = run(LIGHTNING.format(package=package, how=how, fails=False), tmp_path / "with")
    assert done.returncode == 0, done.stderr
    assert {"linear", "relu"} <= operations(tmp_path / "with")
    plain = run(LIGHTNING.format(package=package, how="", fails=False), tmp_path / "without")
    digests = [one.stdout[one.stdout.index("digest") :] for one in (done, plain)]
    assert digests[0] == digests[1]


def test_training_error_is_raised_and_measurements_are_kept(tmp_path: Path) -> None:
    needs("lightning")
    how = "callbacks=[UprofCallback('out', warmup=1, iterations=3)]"
    done = run(LIGHTNING.format(package="lightning.pytorch", how=how, fails=True), tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError: the user's own" in done.stderr
    assert "linear" in operations(tmp_path)


def test_transformers_training_is_measured(tmp_path: Path) -> None:
    needs("transformers")
    done = run(TRANSFORMERS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "uprof: iteration " in done.stdout
    assert {"linear", "layer_norm"} <= operations(tmp_path)


def check_watched(folder: Path, steps: int, samples: int) -> None:
    one = read_folder(folder / "out")[0]
    assert abs(len(one) - steps) <= 1
    known = one.values("samples")
    assert np.nanmedian(known) == samples
    assert not one.is_running


def test_lightning_training_is_watched(tmp_path: Path) -> None:
    needs("lightning")
    how = "callbacks=[UprofCallback('out', watch=True)], accumulate_grad_batches=2"
    script = LIGHTNING.format(package="lightning.pytorch", how=how, fails=False)
    done = run(script.replace("max_epochs=1", "max_epochs=4"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "see uprof report" in done.stdout
    check_watched(tmp_path, 4 * 8 - 1, 8)


def test_transformers_training_is_watched_without_its_evaluations(tmp_path: Path) -> None:
    needs("transformers")
    script = (
        TRANSFORMERS.replace("iterations=4", "watch=True")
        .replace(
            "max_steps=12",
            "max_steps=40, gradient_accumulation_steps=2, eval_strategy='steps', eval_steps=10",
        )
        .replace("train_dataset=data", "train_dataset=data, eval_dataset=Slow(data[:1])")
        .replace("callback =", SLOW_DATA + "callback =")
    )
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "see uprof report" in done.stdout
    check_watched(tmp_path, 39, 4)
    one = read_folder(tmp_path / "out")[0]
    starts_ns, ends_ns = one.columns["start_ns"], one.columns["start_ns"] + one.columns["length_ns"]
    assert sum(starts_ns[1:] - ends_ns[:-1] > 0.9e9) == 3  # evaluations, which belong to no step


def test_accelerate_loop_is_watched(tmp_path: Path) -> None:
    needs("accelerate")
    done = run(ACCELERATE, tmp_path)
    assert done.returncode == 0, done.stderr
    check_watched(tmp_path, 19, 8)
