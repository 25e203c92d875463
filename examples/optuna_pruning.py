"""Optuna ends trials early whose last layer separates held-out images worse than the median trial did at the same epoch."""

import optuna
import torch
from matplotlib.figure import Figure

import layerlaw as ll
from layerlaw.lab import Recipe, Shape, train

images, held_out = ll.data.load().balanced(40).resized(10), ll.data.load(split="test").balanced(20).resized(10)
(x, y), validation = images.tensors(flat=True), held_out.tensors(flat=True)


def objective(trial):
    recipe = Recipe(learning_rate=trial.suggest_float("rate", 1e-5, 1e-2, log=True), epochs=20)
    network, measured = Shape.even(trial.suggest_int("depth", 3, 7)).build(), []

    def measure(epoch):
        last = ll.probe(network, (x, y), test=validation, progress=False).sites[-1]
        measured.append(last.values["test_separation"])
        trial.report(measured[-1], epoch)
        if epoch < 20 and trial.should_prune():
            raise optuna.TrialPruned

    train(network, x, y, recipe, at_epochs=(5, 10, 15, 20), visit=measure, progress=False)
    return measured[-1]


optuna.logging.disable_default_handler()
torch.manual_seed(0)
pruner, sampler = optuna.pruners.MedianPruner(n_startup_trials=3), optuna.samplers.RandomSampler(seed=0)
study = optuna.create_study(pruner=pruner, sampler=sampler)  # the least D is the best
study.optimize(objective, n_trials=10)
print("best:", study.best_params, "with D =", study.best_value)
figure = Figure(figsize=(4.8, 3.4), layout="constrained")
axes = figure.add_subplot(xlabel="epoch", ylabel="D of held-out images, last layer")
for trial in study.trials:
    style = "x:C1" if trial.state.name == "PRUNED" else "o-C0"
    axes.plot([*trial.intermediate_values], [*trial.intermediate_values.values()], style)
figure.savefig("trials.png")
