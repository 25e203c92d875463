"""The null: the same network with fresh parameters, measured in the same way."""

from dataclasses import replace

from layerlaw.capture import Batches
from layerlaw.capture.network import probing_state, recalibrating, untrained
from layerlaw.probing.run import Run, Split


def measure_untrained(run: Run, data: Batches) -> Split:
    """Draw fresh parameters, recalibrate BatchNorm on the data, measure."""
    fresh = untrained(run.network, seed=run.options.seed)
    run.randomness.rewind()
    with probing_state(fresh, "eval"), recalibrating(fresh):
        for batch in run.options.progress(data, "untrained, calibration", data.length):
            here = batch.to(run.device)
            fresh(*here.args, **here.kwargs)
    with probing_state(fresh, run.options.mode):
        return replace(run, network=fresh).measure(data, "untrained")
