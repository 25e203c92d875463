"""A grid of learning rates and seeds, trained as one fleet: how much of the law is the choice of the learning rate?"""

from matplotlib.figure import Figure

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

figure = Figure(figsize=(4.2, 3.4), layout="constrained")
axes = figure.add_subplot(xlabel="layer", ylabel="D", yscale="log")
for run in runs:
    if (law := run.law()) is not None:
        label = f"learning rate {run.recipe.learning_rate:g}" if run.recipe.seed == 0 else None
        axes.plot(law.values, "o-", label=label, color=f"C{(3e-4, 1e-3, 3e-3).index(run.recipe.learning_rate)}")
axes.legend()
figure.savefig("fleet.png")
