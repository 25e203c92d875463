"""The registry of every number per site: what it is, how it is written and drawn, how it is computed.

To add a measure: its function in this folder, its row in `MEASURES`, its test (with an oracle in tests/oracle.py). It then
is in `ll.measure`, in every record, table, page, and in docs/measures.md. Numbers of the same kind (on test data, of an
untrained network, held out, standard errors) have names made from these: `describe` knows them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from layerlaw.measures.collapse import mean_cosine, mean_norm, mean_square, self_duality, used_budget
from layerlaw.measures.residual import carried_over, target_residuals
from layerlaw.measures.separation import equal_separation, jackknifed
from layerlaw.measures.site import Needs, SiteStatistics, number
from layerlaw.measures.variability import class_distance_variance, compression
from layerlaw.stats.regression import SiteRegression
from layerlaw.wording import number as in_words
from layerlaw.wording import percent, residual

Columns = dict[str, float | None]

Compute = Callable[[SiteStatistics], Tensor | float | None]
ROW_NEEDS: set[Needs] = {"classifier", "network", "imbalance", "small"}  # rows of the classifier beside the features


@dataclass(frozen=True)
class Column:
    """One number per site: what it is, how it is written and drawn, and how it is computed.

    `law`: positive and 0 at collapse, so that a law can be fitted; `symbol` is what sentences call it. `needs`: from which
    statistics it comes. `compute` is `None` where it is no function of one site's statistics. `head` is its heading in
    tables (none: in no table), the higher `yields` the sooner it gives way in a narrow terminal (`None`: never there), and
    `test_yields` the same for its value on test data. `panel` is the chart of the page it is drawn in, `card` the words
    under it where it exists at the classifier alone. `kind` is its type in Python and in tables of pandas.
    """

    name: str
    label: str = ""
    meaning: str = ""
    formula: str = ""
    at_collapse: str = ""
    better: Literal["lower", "higher", ""] = ""
    format: Literal["number", "percent", "residual"] = "number"
    log: bool = True
    law: bool = True
    symbol: str = ""
    needs: Needs = "classes"
    compute: Compute | None = None
    by_class: Compute | None = None
    head: str = ""
    yields: int | None = None
    test_yields: int | None = None
    panel: str = ""
    card: str = ""
    kind: type[float] | type[int] | type[bool] = float

    @property
    def quantity(self) -> str:
        """What a sentence about its law calls it."""
        return self.symbol or self.name

    def plain(self, value: Tensor | float | None) -> Any:
        """A number of its kind, or `None`; tensors with leading dimensions stay."""
        if isinstance(value, Tensor) and value.dim():
            return value
        return None if (known := number(value)) is None else self.kind(known)

    def text(self, value: float | None) -> str:
        """A value in words."""
        return {"number": in_words, "percent": percent, "residual": residual}[self.format](value)


def _equal_separation(s: SiteStatistics) -> Tensor:
    return s.separation if s.centers.balanced else equal_separation(s.centers, s.scatter)


def _share(hits: Tensor | None, s: SiteStatistics) -> Tensor | None:
    return None if hits is None else hits.sum(-1) / s.samples


MEASURES = (
    Column("separation", "separation fuzziness D",
           "how far samples lie from their class mean against how far class means lie apart (He & Su, Eq. 1)",
           "Tr(SS_w SS_b⁺), SS_b = Σ n_k/n (x̄_k−x̄)(x̄_k−x̄)ᵀ, SS_w = (1/n) Σ (x_ki−x̄_k)(x_ki−x̄_k)ᵀ; "
           "`weighting='classes'` replaces n_k/n by 1/K in both", "0", "lower", symbol="D", head="D", yields=0,
           test_yields=2, compute=lambda s: s.unless_undefined(s.separation),
           by_class=lambda s: s.unless_undefined(s.class_separation)),
    Column("separation_log_se", "standard error of ln D", "delete-group jackknife of ln D (10 stratified groups)",
           "√((g−1)/g Σ (ln D_(−i) − mean)²)", log=False, law=False, needs="groups",
           compute=lambda s: s.jackknife.standard_error),
    Column("separation_corrected", "separation fuzziness D (corrected)",
           "D corrected for finitely many samples; none beyond a bias of 30 %",
           "ln D_J = g ln D − (g−1) mean ln D_(−i)", "0", "lower", needs="groups",
           compute=lambda s: s.jackknife.corrected),
    Column("separation_permuted", "separation fuzziness D (permuted labels)",
           "chance level: D with permuted labels, the median of 5 permutations", "about n(K−1)/d_eff", needs="permuted",
           compute=lambda s: s.floor.median(-1).values),
    Column("separation_permuted_low", "separation fuzziness D (permuted labels, least)", "the least of the 5",
           needs="permuted", law=False, compute=lambda s: s.floor.amin(-1)),
    Column("separation_permuted_high", "separation fuzziness D (permuted labels, largest)", "the largest of the 5",
           needs="permuted", law=False, compute=lambda s: s.floor.amax(-1)),
    Column("separation_linear", "least D of a linear map",
           "D_lin: the least D that a linear map of the features could reach (`linear=True`, where n ≥ d + K); unlike D no "
           "invertible linear map changes it; biased low unless n ≫ d",
           "Σ 1/λ_i over the nonzero eigenvalues of SS_w⁻¹ SS_b, no shrinkage", "0", "lower", symbol="D_lin",
           head="D_lin", yields=2, test_yields=7, needs="within", compute=lambda s: s.linear_separation),
    Column("rank", "dimensions of the class means",
           "dimensions that the class means span (or what is fitted to targets); of a language model's features, the "
           "directions they span",
           at_collapse="K−1", log=False, law=False, kind=int, compute=lambda s: s.centers.rank),
    Column("full_rank", "class means span K−1 dimensions",
           "1 where the class means span K−1 dimensions, else 0: D jumps at such sites", at_collapse="1", log=False,
           law=False, kind=bool, compute=lambda s: s.centers.full_rank),
    Column("nc1", "NC1", "within- over between-class variability, classes weighted equally",
           "Tr(Σ_W Σ_B⁺)/K; D/K when classes are balanced", "0", "lower", head="NC1", yields=4, panel="collapse",
           compute=lambda s: s.unless_undefined(_equal_separation(s) / s.K)),
    Column("nc2_norms", "NC2 norms", "how unequal the norms of the centered class means are",
           "std/mean of ‖μ_k−μ‖, μ weighted as D is",
           "0", "lower", panel="collapse", compute=lambda s: s.geometry[0]),
    Column("nc2_angles", "NC2 angles", "how unequal the angles of the centered class means are",
           "mean of abs(cos + 1/(K−1))", "0", "lower", panel="collapse", compute=lambda s: s.geometry[1]),
    Column("nc2_equiangularity", "NC2 equiangularity",
           "how much the angles of the centered class means differ (Papyan et al.)",
           "std of cos(μ_k−μ, μ_k'−μ) over pairs", "0", "lower", compute=lambda s: s.geometry[2]),
    Column("ncc_accuracy", "nearest-class-center accuracy",
           "nearest class center against the label (a tie of t centers counts 1/t)", "share of samples that agree", "1",
           "higher", "percent", log=False, law=False, head="NCC", yields=1, test_yields=3,
           compute=lambda s: _share(s.near.hits, s), by_class=lambda s: s.near.hits / s.near.counts),
    Column("ncc_mismatch", "nearest-class-center mismatch",
           "nearest class center against the network's own decision (Ben-Shaul & Dekel)",
           "share of samples that differ", "0", "lower", "percent", log=False, needs="decision", head="mismatch",
           yields=6, compute=lambda s: _share(s.near.mismatches, s)),
    Column("cdnv", "CDNV", "class-distance normalized variance (Galanti et al.)",
           "mean over pairs of (Var_c+Var_c')/(2‖μ_c−μ_c'‖²)", "0", "lower", head="CDNV", panel="collapse",
           compute=lambda s: class_distance_variance(s.centers, s.variances)),
    Column("compression", "compression", "within- over between-class scatter (Wang et al. 2023)", "Tr SS_w / Tr SS_b",
           "0", "lower", panel="collapse", compute=lambda s: compression(s.centers, s.variances)),
    Column("discrimination", "discrimination",
           "how far the two most similar class means point apart (Wang et al. 2023)", "1 − max cos(μ_k, μ_k')",
           better="higher", log=False, law=False, compute=lambda s: s.discrimination),
    Column("nc2_norms_classifier", "NC2 norms", "NC2 norms of the classifier's rows, where it reads",
           "std/mean of ‖w_k‖", "0", "lower", needs="classifier", card="of the classifier’s rows",
           compute=lambda s: s.classifier_geometry[0]),
    Column("nc2_angles_classifier", "NC2 angles", "NC2 angles of the classifier's rows", "mean of abs(cos + 1/(K−1))",
           "0", "lower", needs="classifier", card="of the classifier’s rows",
           compute=lambda s: s.classifier_geometry[1]),
    Column("nc3", "NC3", "self-duality: classifier against class means", "‖W/‖W‖ − M/‖M‖‖²", "0", "lower",
           needs="classifier", card="classifier against class means",
           compute=lambda s: self_duality(s.centers.means - s.centers.mean.unsqueeze(-2), s.weight)),
    Column("nc4", "NC4", "classifier (with bias) against nearest center, where it reads",
           "share of samples that differ", "0", "lower", log=False, needs="network",
           card="nearest center against network", compute=lambda s: _share(s.near.mismatches, s)),
    Column("classifier_cosine", "cosine", "mean cosine over pairs of the classifier's rows",
           "2/(K(K−1)) Σ cos(w_k, w_j)", "−1/(K−1)", law=False, needs="network",
           card="mean, between the classifier’s rows", compute=lambda s: mean_cosine(s.weight)),
    Column("classifier_norm", "norm of rows", "mean norm of the classifier's rows", "(1/K) Σ‖w_k‖", law=False,
           needs="network", compute=lambda s: mean_norm(s.weight), by_class=lambda s: s.weight.norm(dim=-1)),
    Column("classifier_cosine_majority", "frequent cosine",
           "mean cosine of the rows of frequent classes: above the geometric middle of the smallest and largest count",
           law=False, needs="imbalance", compute=lambda s: mean_cosine(s.majority)),
    Column("classifier_norm_majority", "frequent norm", "mean norm of the rows of frequent classes", law=False,
           needs="imbalance", card="mean, of rows of frequent classes", compute=lambda s: mean_norm(s.majority)),
    Column("classifier_cosine_minority", "rare cosine", "mean cosine of the rows of rare classes; 1: minority collapse",
           law=False, needs="imbalance", card="mean, between rows of rare classes",
           compute=lambda s: mean_cosine(s.minority)),
    Column("classifier_norm_minority", "rare norm", "mean norm of the rows of rare classes", law=False,
           needs="imbalance", card="mean, of rows of rare classes", compute=lambda s: mean_norm(s.minority)),
    Column("classifier_square", "E_W", "squared norms of the classifier's rows, in the Layer-Peeled Model's terms",
           "E_W = (1/K) Σ‖w_k‖²", law=False, needs="network", compute=lambda s: mean_square(s.weight)),
    Column("feature_square", "E_H", "squared norms of the features, where the classifier reads",
           "E_H = (1/K) Σ_k (1/n_k) Σ_i ‖x_ki‖²", law=False, needs="network",
           compute=lambda s: (s.centers.means.square().sum(-1) + s.variances).mean(-1)),
    Column("classifier_budget", "budget",
           "the least √(E_W E_H) that gives the class means their logits (not beyond 2,048 classes and features)",
           "‖M Wᵀ‖_*/K, M and W centered", law=False, needs="small",
           compute=lambda s: used_budget(s.centers.means, s.weight)),
    Column("separation_untrained", "separation fuzziness D (untrained)",
           "D of the same network with fresh parameters (`null=True`), BatchNorm recalibrated on the data",
           better="lower", needs="untrained"),
    Column("target_separation", "separation fuzziness D_reg",
           "of a regression or of several labels at once: how far samples lie from what a linear regression of the features "
           "on the targets expects, against how far that moves; of one-hot targets, D",
           "Tr(SS_w SS_b⁺), SS_b the scatter of the fitted features, SS_w of the residuals", "0", "lower", symbol="D_reg",
           needs="targets", head="D_reg", yields=0, test_yields=2),
    Column("residual", "prediction residual",
           "share of the target's variance that a linear regression on the features leaves unexplained; of a "
           "language model, its next token's id (He & Su 2024); of several targets, the mean",
           "Σ‖y − ŷ‖² / Σ‖y − ȳ‖² = 1 − R²", "0", "lower",
           "residual", symbol="PR", needs="tokens", head="PR"),
    Column("lens_loss", "logit-lens loss",
           "loss of the token that is predicted, where the model's final norm and head read this block's state; "
           "`linear_lens_…` (`lens='linear'`): after a least-squares map to the last block, fitted on other documents",
           "mean of −ln p, in nats", better="lower", log=False, law=False, needs="lens", head="lens loss"),
    Column("lens_accuracy", "logit-lens accuracy", "share of tokens that are the most probable one there", better="higher",
           format="percent", log=False, law=False, needs="lens"),
    Column("lens_agreement", "predictions already made",
           "share of tokens whose most probable token there is that of the last block", "1 at the last block",
           better="higher", format="percent", log=False, law=False, needs="lens", head="made"),
    Column("lens_settled", "predictions made for good", "the same at this block and at every later one",
           "1 at the last block", better="higher", format="percent", log=False, law=False, needs="lens"),
    Column("lens_excess_se", "standard error of the lens's excess loss",
           "of the loss there less that of the last block, tokens of a piece of text taken together",
           "√(C/(C−1) Σ_c (e_c − n_c ē)²)/n over C pieces", log=False, law=False, needs="lens"),
)  # fmt: skip
REGISTRY: dict[str, Column] = {column.name: column for column in MEASURES}
OURS = frozenset(map(id, MEASURES))  # what a measure of somebody else uses is not known


@contextmanager
def registered(column: Column) -> Iterator[Column]:
    """A measure for a while: inside the block it is computed, recorded and shown like all others."""
    REGISTRY[column.name] = column
    try:
        yield column
    finally:
        del REGISTRY[column.name]


_ENDINGS = re.compile(r"_(log_se|untrained|held_out|adjusted|corrected|permuted(?:_low|_high)?)$")


def describe(name: str) -> Column:
    """What a column of a record is, also where its name is made from another: `test_…`, `residual_<target>`, `…_held_out`.

    >>> describe("test_separation").label, describe("residual_onehot_held_out").label, describe("cdnv_log_se").law
    ('separation fuzziness D (test)', 'prediction residual (onehot, held out)', False)
    """
    if name in REGISTRY:
        return REGISTRY[name]
    if name.startswith("test_"):
        base = describe(name.removeprefix("test_"))
        head = f"test {base.head}" if base.test_yields is not None else ""
        meaning = base.meaning and f"{base.meaning}, on test data"
        derived = replace(_derived(base, name, "test"), meaning=meaning, head=head)
        return replace(derived, yields=base.test_yields, test_yields=None)
    if name.startswith("linear_lens_"):
        return _derived(describe(name.removeprefix("linear_")), name, "after a linear map")
    if found := _ENDINGS.search(name):
        base = _derived(describe(name[: found.start()]), name, found[1].replace("_", " "))
        if found[1] == "log_se":
            return replace(base, label=f"standard error of the log of {name[: found.start()]}", law=False, log=False)
        return base
    if name.startswith("residual_"):
        return _derived(REGISTRY["residual"], name, name.removeprefix("residual_").replace("_", " "))
    return Column(name, label=name)


def _derived(base: Column, name: str, how: str) -> Column:
    """The same number otherwise measured."""
    label = f"{base.label[:-1]}, {how})" if base.label.endswith(")") else f"{base.label} ({how})"
    return replace(base, name=name, label=label, compute=None, by_class=None, head="", yields=None, panel="", card="")


def target_columns(
    site: SiteRegression, where: str, reference: SiteRegression | None = None
) -> tuple[Columns, dict[str, list[float | None]]]:
    """Numbers of one site and one split about targets, and the residuals of each target.

    `reference`: of the training data, whose regression then predicts the targets of these.
    """
    undefined = int(site.fit.rank) == 0 or site.doubt is not None
    D = None if undefined else float(site.separation)
    values: Columns = {"target_separation": D}
    if site.left_out is not None and D is not None:
        found = jackknifed(D, site.left_out)
        values["target_separation_log_se"] = None if found is None else found.standard_error
        values["target_separation_corrected"] = None if found is None else found.corrected
    if site.permuted is not None:
        low, median, high = (
            float(value) for value in (site.permuted.min(), site.permuted.median(), site.permuted.max())
        )
        values |= {"target_separation_permuted": median}
        values |= {"target_separation_permuted_low": low, "target_separation_permuted_high": high}
    values["rank"], values["full_rank"] = float(site.fit.rank), float(site.fit.rank == site.fit.targets.rank)
    by_target: dict[str, list[float | None]] = {}
    if reference is not None and _enough(reference) and site.moments is not None:
        assert reference.moments is not None
        each = carried_over(reference.moments, reference.targets, site.moments, site.targets)
        by_target["residual"] = [number(value) for value in each]
        known = [value for value in by_target["residual"] if value is not None]
        values["residual"] = sum(known) / len(known) if known else None
    elif reference is None and _enough(site):
        assert site.moments is not None
        whole, single = target_residuals(site.moments, site.targets, where)
        values |= {"residual": whole.in_sample, "residual_log_se": whole.log_error}
        values |= {"residual_held_out": whole.held_out, "residual_held_out_log_se": whole.held_out_log_error}
        by_target["residual"] = [None if one is None else one.in_sample for one in single]
        by_target["residual_held_out"] = [None if one is None else one.held_out for one in single]
    return {name: number(value) for name, value in values.items()}, by_target


def _enough(site: SiteRegression) -> bool:
    """Whether a regression on the features is determined, also without any one group of samples."""
    counts = site.targets.counts
    return site.moments is not None and float(counts.sum() - counts.max()) > site.moments.features + 1


def measured(site: SiteStatistics, needs: set[Needs]) -> dict[str, Any]:
    """Every number that these needs allow: plain numbers of one set of features (`None` where one does not exist), tensors
    where there are leading dimensions; those per class, as tensors, under `<name>_classes`."""
    values: dict[str, Any] = {}
    for name, column in REGISTRY.items():
        if column.compute is not None and column.needs in needs:
            values[name] = column.plain(column.compute(site))
            if name == "separation":
                values["separation_classes"] = site.unless_undefined(site.class_separation)
    return values
