"""The Hugging Face Trainer: a small language model is measured block by block while it is trained. Needs transformers."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from layerlaw.integrations.transformers import LawCallback

torch.manual_seed(0)
text = " ".join(f"the {a} sees the {b} and the {b} sees the {c}." for a in "abcdef" for b in "ghijk" for c in "lmnop")
ids = torch.tensor([ord(letter) for letter in text * 2])[: 64 * 120].reshape(-1, 64)
data = [{"input_ids": row, "labels": row} for row in ids]

sizes = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
}
model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64))
arguments = TrainingArguments(
    "run", num_train_epochs=4, per_device_train_batch_size=16, learning_rate=3e-3, logging_strategy="epoch",
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=data)
watch = LawCallback(trainer, every_n_epochs=1, folder="trainer-records")
trainer.add_callback(watch)
trainer.train()
for record in watch.records:
    print(record.name, "PR of the blocks:", [round(value, 3) for value in record.column("residual_held_out")[1:]])
