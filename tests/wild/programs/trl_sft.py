"""Supervised fine-tuning by TRL's trainer with its defaults, which checkpoint each layer."""

import tempfile

from datasets import Dataset
from ending import begin, finish
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

begin()
WORDS = "the a small large model step loss learns runs reads writes and".split()
vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
base = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
base.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=base, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
)
sentences = [" ".join(WORDS[(n + k * k) % len(WORDS)] for k in range(4 + n % 5)) for n in range(48)]
with tempfile.TemporaryDirectory() as folder:
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=2,
            max_steps=24,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"text": sentences}),
        processing_class=tokenizer,
    )
    result = trainer.train()
finish(model, losses=[result.training_loss])
