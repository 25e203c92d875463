"""From statistics to a record: rows, notes, settings, provenance."""

from __future__ import annotations

from torch import Tensor

from layerlaw.capture import Batches, classifier_weight, modules_of
from layerlaw.measures.columns import site_columns
from layerlaw.probing.memory import GROUPS
from layerlaw.probing.run import Prober, Split
from layerlaw.provenance import model_provenance, provenance
from layerlaw.record import Record, SiteRow
from layerlaw.stats.precision import full_precision
from layerlaw.stats.ranks import world_size


def assembled(run: Prober, data: Batches, train: Split, test: Split | None, null: Split | None) -> Record:
    """The record of a probe."""
    weight, options, around = _classifier(run), run.options, train.around.values()
    return Record(
        name=type(run.network).__name__,
        sites=_rows(run, train, test, null, weight),
        classes=list(run.classes.names),
        counts=train.counts,
        test_counts=test.counts if test else [],
        accuracy=train.accuracy,
        test_accuracy=test.accuracy if test else None,
        plane_labels=train.plane_labels,
        notes=_notes(run, train, weight),
        settings={
            "sites": run.plan.rule,
            "sites_why": run.plan.why,
            "reduce": options.reduce,
            "batchnorm": options.batchnorm,
            "batch_size": data.batch_size,
            "order": data.order,
            "weighting": options.weighting,
            "classes": list(run.classes.ids) if run.classes.lookup is not None else run.classes.K,
            "jackknife_groups": GROUPS if any(a.left_out is not None for a in around) else 0,
            "permuted_labels": any(a.permuted is not None for a in around),
            "one_forward": train.one_forward,
            "seed": options.seed,
        },
        provenance=provenance(
            run.device,
            processes=world_size(),
            **model_provenance(run.network),
            data_sha256=train.checksum,
            test_sha256=test.checksum if test else None,
        ),
    )


def _classifier(run: Prober) -> Tensor | str:
    """Rows of the classifier for the measured classes (K, d), or the reason why there are none."""
    plan, K = run.plan, run.classes.K
    if plan.classifier is None:
        return plan.classifier_why
    rows = classifier_weight(modules_of(run.network)[plan.classifier])
    if rows is None:
        return f"the last layer '{plan.classifier}' is not linear"
    if len(rows) <= max(run.classes.ids):
        return f"the classifier has {len(rows)} row{'s' * (len(rows) > 1)} for {K} classes"
    site = next((site for site in plan.sites if site.name == plan.reads), None)
    if site is None:
        return f"what the classifier '{plan.classifier}' reads is not among the sites"
    if rows.shape[1] != site.features:
        return f"the classifier '{plan.classifier}' reads {rows.shape[1]} of the {site.features} features at its site"
    return rows[list(run.classes.ids)]


def _rows(run: Prober, train: Split, test: Split | None, null: Split | None, weight: Tensor | str) -> list[SiteRow]:
    rows = []
    with full_precision():
        for site in run.plan.sites:
            rows_here = weight if site.name == run.plan.reads and isinstance(weight, Tensor) else None
            values, by_class = site_columns(train.around[site], train.scatters[site], weight=rows_here)
            if null is not None:
                values["separation_untrained"] = site_columns(null.around[site], null.scatters[site])[0]["separation"]
            if test is not None:
                columns, classwise = site_columns(test.around[site], test.scatters[site], test.near[site])
                values |= {f"test_{key}": value for key, value in columns.items()}
                by_class |= {f"test_{key}": value for key, value in classwise.items()}
            plane = train.planes.get(site, [])
            about = (site.name, site.type, site.shape, site.features, site.in_fit, site.at)
            rows.append(SiteRow(*about, values, by_class, plane))
    return rows


def _notes(run: Prober, train: Split, weight: Tensor | str) -> list[str]:
    notes = [f"Left out: {'; '.join(run.plan.dropped)}."] if run.plan.dropped else []
    if isinstance(weight, str):
        notes.append(f"No NC2 and NC3 of the classifier: {weight}.")
    tokens = [site for site in run.plan.sites if len(site.shape) == 2 and site.channels_last]
    last = next((site for site in reversed(run.plan.sites) if site.in_fit), None)
    if run.options.reduce == "flatten" and tokens and last is not None and last.shape == tokens[-1].shape[1:]:
        notes.append(
            "Tokens were flattened, while the classifier reads the width of one token: reduce='first' or 'mean' "
            "measures what it uses."
        )
    if train.no_extras_why:
        notes.append(f"No standard errors and permuted-label floor: {train.no_extras_why}.")
    short = [site.name for site, around in train.around.items() if not bool(around.centers.full_rank)]
    if short:
        notes.append(f"The class means span fewer than K−1 dimensions at: {', '.join(short)}.")
    return notes
