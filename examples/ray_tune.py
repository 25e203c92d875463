"""Ray Tune trains a grid in processes of its own; its scheduler ends trials by the held-out D that each one reports."""

import math
import os

from matplotlib.figure import Figure
from ray import init, tune
from ray.tune.schedulers import ASHAScheduler

import layerlaw as ll
from layerlaw.lab import Recipe, Shape, train


def trial(config):
    images, held_out = ll.data.load().balanced(40).resized(10), ll.data.load(split="test").balanced(20).resized(10)
    (x, y), network = images.tensors(flat=True), Shape.even(config["depth"]).build()

    def measure(epoch):
        record = ll.probe(network, (x, y), test=held_out.tensors(flat=True), progress=False)
        law, d = record.law(), record.sites[-1].values["test_separation"]
        tune.report({"epoch": epoch, "D": d, "evenness": law.evenness, "accuracy": record.test_accuracy})

    recipe = Recipe(learning_rate=config["rate"], epochs=20)
    train(network, x, y, recipe, at_epochs=(5, 10, 15, 20), visit=measure, progress=False)


init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
space = {"rate": tune.grid_search([3e-5, 3e-4, 3e-3]), "depth": tune.grid_search([4, 6])}
scheduler = ASHAScheduler(time_attr="epoch", max_t=20, grace_period=5, reduction_factor=2)
how = tune.TuneConfig(metric="D", mode="min", scheduler=scheduler, max_concurrent_trials=2)
kept = tune.RunConfig(storage_path=os.path.abspath("tune"), verbose=0)
results = tune.Tuner(trial, param_space=space, tune_config=how, run_config=kept).fit()
print("best:", results.get_best_result().config)

figure = Figure(figsize=(4.8, 3.4), layout="constrained")
axes = figure.add_subplot(xlabel="log10 of the learning rate", ylabel="D of held-out images, last layer")
for result in results:
    axes.plot(math.log10(result.config["rate"]), result.metrics["D"], "oxs^v"[result.metrics["epoch"] // 5], color="C0")
figure.savefig("tune.png")
