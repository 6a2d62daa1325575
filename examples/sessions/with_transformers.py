"""A small GPT-2, trained by the Trainer of transformers."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, number):
        tokens = torch.randint(0, 5000, (64,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


config = GPT2Config(vocab_size=5000, n_embd=128, n_layer=2, n_head=4, n_positions=64)
arguments = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=4,
    max_steps=16,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts()).train()
