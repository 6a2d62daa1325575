"""The callbacks in the real trainers write reports and do not change the training.

Run where the packages are installed: `python -m pytest -m clients tests/integrations`.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

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


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )


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
def test_lightning_training_is_measured_and_unchanged(
    package: str, how: str, tmp_path: Path
) -> None:
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
