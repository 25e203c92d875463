"""A small language model, trained for a moment on random walks: how much nearer does every block bring the next token?"""

import torch

import layerlaw as ll
from layerlaw.lab import GPT, TextRecipe, train_text

# A text in which each of 60 words is followed by one of three.
generator = torch.Generator().manual_seed(0)
followers = torch.randint(0, 60, (60, 3), generator=generator)
text = torch.zeros(300, 64, dtype=torch.long)
for t in range(1, 64):
    text[:, t] = followers[text[:, t - 1], torch.randint(0, 3, (300,), generator=generator)]

torch.manual_seed(0)
model = GPT(vocabulary=60, width=32, depth=6, heads=4, context=64)
recipe = TextRecipe(steps=150, batch_size=16, context=64, learning_rate=3e-3, warmup=10)
losses = train_text(model, text[:200].reshape(-1), recipe, progress=False)
print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")

record = ll.probe_lm(
    model, text[200:], null=True, targets="embedding", progress=False
)  # or: a folder, a name, a .gguf file
print(record)
print(record.law("residual_held_out"))
print(record.law_errors("residual_held_out").rho_interval)  # 95 %, over documents
ll.plot(record).savefig("residual.png")
