"""The null: the same network with fresh parameters, measured in the same way."""

from dataclasses import replace

from layerlaw.capture import Batches
from layerlaw.capture.network import recalibrating, untrained
from layerlaw.probing.run import Run, Split


def measure_untrained(run: Run, data: Batches) -> Split:
    """Draw fresh parameters, recalibrate BatchNorm on the data, measure. The network must be in its probing state."""
    fresh = untrained(run.network, seed=run.options.seed)
    if run.options.batchnorm == "running":  # in train mode the running statistics are not used
        run.randomness.rewind()
        with recalibrating(fresh):
            for batch in run.options.progress(data, "untrained, calibration", data.length):
                if len(batch.labels) > 1:  # one sample has no statistics
                    here = batch.to(run.device).copy()
                    fresh(*here.args, **here.kwargs)
    return replace(run, network=fresh).measure(data, "untrained")
