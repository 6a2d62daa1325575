"""Inference only: a GPT-2 of two layers that generates text from random words."""

import torch
from ending import begin, finish
from transformers import GPT2Config, GPT2LMHeadModel

begin()
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=50,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
).eval()
words = model.generate(torch.randint(1, 50, (2, 4)), max_new_tokens=30, do_sample=True)
finish(model, losses=[float(words.sum())])
