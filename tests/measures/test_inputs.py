"""What goes in: every kind of array, and errors that say what to do."""

import warnings

import numpy as np
import pytest
import torch

import oracle
from layerlaw.errors import FeatureError, InputError, LabelError
from layerlaw.measures import cdnv, measure, nc1, ncc_accuracy, separation_fuzziness
from layerlaw.measures.columns import MEASURES

FUNCTIONS = [separation_fuzziness, nc1, ncc_accuracy, cdnv, measure]


@pytest.fixture
def problem() -> tuple[torch.Tensor, torch.Tensor]:
    return oracle.blobs([20, 12, 8], 6, seed=2)


def test_numpy_in_equals_torch_in(problem) -> None:
    x, y = problem
    for dtype in (np.float64, np.float32, np.float16):
        a = measure(x.numpy().astype(dtype), y.numpy(), decision=y.numpy(), classifier=x.numpy()[:3])
        b = measure(torch.from_numpy(x.numpy().astype(dtype)), y, decision=y, classifier=x[:3])
        assert all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for name in b)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_labels_of_every_whole_number_type(problem, kind: type) -> None:
    x, y = problem
    assert separation_fuzziness(x, y.numpy().astype(kind)) == separation_fuzziness(x, y)


def test_lists_are_fine(problem) -> None:
    x, y = problem
    x = x.float()  # a list of Python numbers becomes the default dtype
    assert float(separation_fuzziness(x.tolist(), y.tolist())) == pytest.approx(float(separation_fuzziness(x, y)))


def test_read_only_numpy_arrays_give_no_warning(problem) -> None:
    """Memory-mapped and frozen arrays are common; nothing is written to them."""
    x, y = (a.numpy().copy() for a in problem)
    x.setflags(write=False)
    y.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        separation_fuzziness(x, y)


def test_numpy_arrays_with_negative_strides_are_measured(problem) -> None:
    x, y = (a.numpy() for a in problem)
    assert float(separation_fuzziness(x[::-1], y[::-1])) == pytest.approx(float(separation_fuzziness(x, y)), rel=1e-9)


def test_layout_in_memory_does_not_matter(problem) -> None:
    x, y = problem
    expected = float(separation_fuzziness(x, y))
    wide = torch.zeros(x.shape[0] * 2, x.shape[1] * 3, dtype=x.dtype)
    wide[::2, ::3] = x
    for view in (wide[::2, ::3], x.t().contiguous().t(), x.unsqueeze(0).expand(2, -1, -1)[1]):
        assert float(separation_fuzziness(view, y)) == pytest.approx(expected, rel=1e-12)
    column = torch.stack([y, y], 1)[:, 0]
    assert not column.is_contiguous()
    assert float(separation_fuzziness(x, column)) == pytest.approx(expected, rel=1e-12)


def test_no_graph_leaks_out(problem) -> None:
    x, y = problem
    x = x.clone().requires_grad_()
    weight = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    stacked = torch.stack([x * 1, x * 2])
    for found in (measure(x * 1, y, decision=y, classifier=weight * 1), measure(stacked, torch.stack([y, y]))):
        for name, value in found.items():
            assert not (isinstance(value, torch.Tensor) and (value.requires_grad or value.grad_fn)), name
    assert torch.is_grad_enabled()
    assert x.grad is None


def test_inputs_are_left_as_they_were(problem) -> None:
    x, y = problem
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        features = x.to(dtype)
        before = features.clone(), y.clone()
        measure(features, y, decision=y)
        assert torch.equal(features, before[0])
        assert torch.equal(y, before[1])


def test_autocast_does_not_touch_the_numbers(problem) -> None:
    x, y = problem[0].float(), problem[1]
    expected = measure(x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = measure(x, y)
    assert all(torch.equal(torch.as_tensor(found[name]), torch.as_tensor(expected[name])) for name in expected)


KINDS = {"rank": int, "full_rank": bool, "separation_classes": torch.Tensor}


def test_answers_are_plain_numbers_and_tensors_where_there_are_several(problem) -> None:
    x, y = problem
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for name, value in measure(x.to(dtype), y, decision=y, classifier=x[:3]).items():
            assert type(value) is KINDS.get(name, float), name
        for name, value in measure(x.to(dtype).expand(2, -1, -1), y, decision=y).items():
            assert isinstance(value, torch.Tensor), name
            assert value.dtype == torch.float64 or name in ("rank", "full_rank")
    for function in FUNCTIONS:
        if function is not measure:
            assert type(function(x.numpy(), y.numpy())) is float
            assert function(torch.stack([x, x]), y).tolist() == pytest.approx([function(x, y)] * 2, rel=1e-12)


def test_where_class_means_coincide_nothing_looks_like_collapse(problem) -> None:
    y = torch.arange(60) % 3
    x = torch.zeros(60, 4)
    x[:, 0] = torch.arange(60) // 3 % 2  # the same in every class
    found = measure(x, y)
    assert (found["rank"], found["full_rank"]) == (0, False)
    assert {found[name] for name in ("separation", "separation_classes", "nc1", "cdnv", "nc2_norms")} == {None}
    for function in (separation_fuzziness, nc1, cdnv):
        with pytest.raises(FeatureError, match=r"features: class means coincide, so .* is not defined"):
            function(x, y)
    assert ncc_accuracy(x, y) == pytest.approx(1 / 3)
    assert separation_fuzziness(torch.stack([x, x + y[:, None]]), y).isnan().tolist() == [True, False]


def test_measure_returns_everything(problem) -> None:
    x, y = problem
    rows = {needs: {c.name for c in MEASURES if c.compute and c.needs == needs} for needs in ("classes", "classifier")}
    always, classifier = rows["classes"] | {"separation_classes"}, rows["classifier"]
    assert {"separation", "rank", "nc1", "nc2_norms", "ncc_accuracy", "cdnv"} < always
    assert {"nc2_norms_classifier", "nc2_angles_classifier", "nc3"} <= classifier
    assert set(measure(x, y)) == always
    assert set(measure(x, y, decision=y)) == always | {"ncc_mismatch"}
    assert set(measure(x, y, decision=y, classifier=x[:3])) == always | {"ncc_mismatch"} | classifier


@pytest.mark.parametrize("shape", [(6, 3), (4, 6), (3, 5), (6,)])
def test_a_classifier_of_the_wrong_shape_is_refused(problem, shape: tuple[int, ...]) -> None:
    with pytest.raises(FeatureError, match=r"classifier: expected a weight of shape \(K, d\) = \(3, 6\), got"):
        measure(*problem, classifier=torch.zeros(shape))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_features_that_are_not_finite_are_refused(problem, function, bad: float, dtype: torch.dtype) -> None:
    x, y = problem[0].to(dtype), problem[1]
    for row in (0, 7, -1):
        spoilt = x.clone()
        spoilt[row, 2] = bad
        with pytest.raises(FeatureError, match="expected finite numbers, got NaN or infinity"):
            function(spoilt, y)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_features_of_the_wrong_kind_are_refused(problem, function) -> None:
    x, y = problem
    with pytest.raises(FeatureError, match=r"shape \(n, d\), got torch.int64 of shape \(40, 6\)"):
        function(x.long(), y)
    with pytest.raises(FeatureError, match=r"shape \(n, d\), got torch.float64 of shape \(40,\)"):
        function(x[:, 0], y)
    with pytest.raises(FeatureError, match=r"got torch.complex128"):
        function(x.to(torch.complex128), y)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_label_for_every_row(problem, function) -> None:
    x, y = problem
    with pytest.raises(LabelError, match="expected one for each of the 40 rows of features, got 39"):
        function(x, y[:-1])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_labels_are_checked(problem, function) -> None:
    x, y = problem
    with pytest.raises(LabelError, match=r"expected whole-number class labels \(int64\), got torch.float64"):
        function(x, y.double())
    with pytest.raises(LabelError, match=r"labels in 0 … 2 \(3 classes\), got -1"):
        function(x, torch.where(torch.arange(40) == 3, -1, y))
    with pytest.raises(LabelError, match=r"labels in 0 … 1 \(2 classes\), got 2"):
        function(x, y, classes=2)
    with pytest.raises(LabelError, match=r"all 5 classes, got none of class 3, 4 \(2 empty\)"):
        function(x, y, classes=5)
    with pytest.raises(LabelError, match="at least 2 classes, got 1"):
        function(x, torch.zeros_like(y))
    with pytest.raises(LabelError, match="expected at least one label, got none"):
        function(x[:0], y[:0])


def test_leading_dimensions_that_do_not_fit_are_refused_in_words(problem) -> None:
    x, y = problem
    with pytest.raises(InputError):
        separation_fuzziness(x.expand(3, -1, -1), y.expand(2, -1))
    with pytest.raises(InputError):
        separation_fuzziness(x, y.expand(2, -1))


def test_decisions_of_another_shape_are_refused_in_words(problem) -> None:
    x, y = problem
    with pytest.raises(InputError):
        measure(x, y, decision=y[:-1])
    with pytest.raises(InputError):
        measure(x, y, decision=torch.randn(40, 3))  # logits


def test_a_decision_for_none_of_the_classes_is_a_mismatch_or_refused_in_words(problem) -> None:
    """A network may have more outputs than the labels have classes."""
    x, y = problem
    try:
        found = measure(x, y, decision=torch.full_like(y, 3))
    except InputError:
        return
    assert float(found["ncc_mismatch"]) == 1.0


def test_an_unknown_weighting_is_refused(problem) -> None:
    with pytest.raises(FeatureError, match="expected one of samples, classes, got 'equal'"):
        separation_fuzziness(*problem, weighting="equal")


def test_errors_of_inputs_are_value_errors(problem) -> None:
    with pytest.raises(ValueError, match="expected"):
        separation_fuzziness(problem[0], problem[1].double())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_masked_numbers_are_refused(problem, function) -> None:
    x, y = (a.numpy() for a in problem)
    with pytest.raises(
        InputError, match=r"features: expected numbers everywhere, got 2 that are masked\. Fill them in"
    ):
        function(np.ma.masked_array(x, mask=np.arange(x.size).reshape(x.shape) < 2), y)
    with pytest.raises(InputError, match="labels: expected numbers everywhere, got 8 that are masked"):
        function(x, np.ma.masked_array(y, mask=y == 2))
    assert separation_fuzziness(np.ma.masked_array(x), y) == separation_fuzziness(x, y)


@pytest.mark.parametrize("kind", [str, object, "datetime64[D]", [("a", float)]], ids=str)
def test_features_that_are_no_numbers_are_no_matter_of_labels(problem, kind) -> None:
    x, y = (a.numpy() for a in problem)
    with pytest.raises(FeatureError, match=r"features: expected numbers, got an array of .*features\.astype\(float\)"):
        separation_fuzziness(np.zeros(x.shape).astype("i8").astype(kind), y)
    with pytest.raises(LabelError, match=r"labels: expected numbers, got an array of .*Number the classes from 0"):
        separation_fuzziness(x, y.astype(str))


def test_labels_beyond_int64_are_shown_as_they_are(problem) -> None:
    x, y = (a.numpy() for a in problem)
    with pytest.raises(LabelError, match="expected class numbers below 2⁶³, got 9223372036854775808"):
        separation_fuzziness(x, y.astype(np.uint64) + np.uint64(2**63))
    assert separation_fuzziness(x, y.astype(np.uint64)) == separation_fuzziness(x, y)


@pytest.mark.parametrize(
    ("kind", "cure"),
    [(torch.int64, "features.double()"), (torch.bool, "features.double()"), (torch.complex64, "torch.view_as_real")],
)
def test_features_of_the_right_shape_are_not_to_be_flattened(problem, kind: torch.dtype, cure: str) -> None:
    x, y = problem
    with pytest.raises(FeatureError) as error:
        separation_fuzziness(x.to(kind), y)
    assert cure in str(error.value)
    assert "one row" not in str(error.value)


def test_finite_features_that_are_too_large_are_not_called_infinite(problem) -> None:
    x, y = problem
    with pytest.raises(
        FeatureError, match=r"finite numbers, up to .*e\+38, are too large .*: divide them by a constant"
    ) as error:
        separation_fuzziness((x / x.abs().max() * 3e38).float(), y)
    assert "NaN" not in str(error.value)


@pytest.mark.parametrize("linear", ["yes", 1, None])
def test_linear_is_true_or_false(problem, linear) -> None:
    with pytest.raises(InputError, match="linear: expected True or False"):
        measure(*problem, linear=linear)
