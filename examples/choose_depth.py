"""Which depth? Train several, compare the last layer's D over paired seeds, and see what speaks against the choice."""

import layerlaw as ll
from layerlaw.advice import choose_depth, robustness
from layerlaw.lab import Recipe, Shape, train
from layerlaw.verdict import UntilLaw

images = ll.data.load().balanced(40).resized(10)  # tensors, a data set's name or a folder of pictures work too
test = ll.data.load(split="test").resized(10)
choice = choose_depth(images, depths=(3, 5, 7), rates=(1e-3, 3e-3), recipe=Recipe(epochs=30), test=test)
print(choice)  # the recommendation in one sentence, then the caveats
for candidate in choice.candidates:
    print(candidate.label, candidate.trial.rate, candidate.trial.separation, candidate.trial.accuracy)
choice.save("choice.json")
choice.plot().savefig("choice.png")

# A deeper network, trained on all images until the law has held at three probes in a row.
x, y = images.tensors(flat=True)
shape = Shape(100, (100,) * 6)
network, rule = shape.build(), UntilLaw(patience=3, every=5)
recipe = Recipe(shape, learning_rate=(choice.recommended or choice.best).trial.rate, epochs=60)
train(
    network,
    x,
    y,
    recipe,
    at_epochs=range(0, 61, rule.every),
    visit=lambda epoch: rule.update(epoch, ll.probe(network, (x, y), batchnorm="batch", progress=False)),
)
print("the law has held since epoch", rule.since, "and training stopped at", rule.stopped)
print(robustness(network, (x, y), scales=(0.003, 0.03)))
