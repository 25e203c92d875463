"""A grid of learning rates and seeds, trained as one fleet: how much of the law is the choice of the learning rate?"""

from layerlaw.data import load
from layerlaw.lab import Recipe, Samples, Schedule, Shape, sweep

images, held_out = load().balanced(50).resized(10), load(split="test").balanced(50).resized(10)
samples = Samples.of(images.tensors(flat=True), held_out.tensors(flat=True))
recipes = Recipe(Shape.even(6), epochs=30).grid(learning_rate=(3e-4, 1e-3, 3e-3), seed=(0, 1))
runs = sweep(recipes, samples, schedule=Schedule(test=True), folder="sweep")

for run in runs:
    law, test = run.law(), run.measurement(batchnorm="running", split="test")
    print(f"lr {run.recipe.learning_rate:g}, seed {run.recipe.seed}: ", end="")
    print(f"diverged in epoch {run.diverged}" if law is None else f"{law.verdict} Test accuracy {test.accuracy:.3f}.")
