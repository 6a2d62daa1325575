"""A BERT classifier with four backward passes and a validation per optimizer step."""

import torch
from ending import begin, finish
from transformers import BertConfig, BertForSequenceClassification

begin()
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=40,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
        num_labels=3,
    )
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for _ in range(16):
    model.train()
    for _ in range(4):
        tokens, labels = torch.randint(0, 40, (2, 10)), torch.randint(0, 3, (2,))
        loss = model(input_ids=tokens, labels=labels).loss / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    model.eval()
    with torch.no_grad():
        tokens, labels = torch.randint(0, 40, (2, 10)), torch.randint(0, 3, (2,))
        losses.append(model(input_ids=tokens, labels=labels).loss.item())
finish(model, losses=losses)
