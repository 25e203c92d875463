"""No model needed: measures of features you already have, in torch, NumPy, JAX or files."""

import numpy as np
from matplotlib.figure import Figure

import layerlaw as ll

rng = np.random.default_rng(0)
labels = np.repeat(np.arange(5), 200)
centers = rng.normal(size=(5, 64))
features = rng.normal(size=(1000, 64)) + centers[labels]

print("separation fuzziness", ll.separation_fuzziness(features, labels))
print("NC1                 ", ll.nc1(features, labels))
print("nearest class center", ll.ncc_accuracy(features, labels))
print("CDNV                ", ll.cdnv(features, labels))
print("all of them         ", sorted(ll.measure(features, labels)))

# Several layers: the record of a probe, with standard errors, the law and a page. A folder of .npy files does too:
# ll.record_of("folder"), or `layerlaw probe features:folder`.
layers = {f"layer{i}": rng.normal(size=(1000, 64)) / 2**i + centers[labels] for i in range(5)}
record = ll.record_of(layers, labels, progress=False)
print(record)
print(record.law())
ll.report(record, "features.html")

fit = ll.fit_law([36.8, 15.5, 9.5, 5.6, 3.2, 1.7, 0.74, 0.47])  # one number per layer
print(fit)
print(
    "half-life", fit.half_life, "evenness", fit.evenness, "trend", fit.trend, "p", fit.greenwood_p, "holds", fit.holds
)

figure = Figure(figsize=(4.2, 3.4), layout="constrained")
axes = figure.add_subplot(xlabel="layer", ylabel="D", yscale="log")
axes.plot(fit.values, "o")
axes.plot(fit.line, "--")
figure.savefig("fit.png")
