"""LoRA adapters of PEFT in a Llama of transformers whose other weights are frozen."""

import torch
from ending import begin, finish
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

begin()
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
)
model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
trained = [one for one in model.parameters() if one.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
losses = []
for _ in range(24):
    tokens = torch.randint(0, 50, (2, 12))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
finish(model, losses=losses)
