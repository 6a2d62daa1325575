"""GPT-2 of two layers under the Trainer, with gradient accumulation and an evaluation."""

import tempfile

import torch
from ending import begin, finish
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

begin()


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count):
        self.tokens = torch.randint(0, 50, (count, 12))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=18,
            logging_steps=6,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=7,
        ),
        train_dataset=Sentences(80),
        eval_dataset=Sentences(8),
    )
    result = trainer.train()
    scores = trainer.evaluate()
finish(model, losses=[result.training_loss, scores["eval_loss"]])
