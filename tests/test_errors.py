"""Renamed arguments are answered with their new names."""

import pytest

from layerlaw.errors import renamed

NEW = {"mode": "batchnorm ('train' → 'batch')", "epochs": "recipe (Recipe(epochs=…))"}


def test_nothing_given_is_fine() -> None:
    renamed("probe", {}, NEW)


def test_every_old_name_is_answered_with_its_new_one() -> None:
    with pytest.raises(TypeError) as caught:
        renamed("probe", {"mode": "train", "epochs": 3}, NEW)
    assert str(caught.value) == (
        "probe: 'mode' is now 'batchnorm' ('train' → 'batch'); 'epochs' is now 'recipe' (Recipe(epochs=…))."
    )


def test_an_argument_that_never_was_is_answered_as_python_does() -> None:
    with pytest.raises(TypeError, match=r"probe\(\) got an unexpected keyword argument 'speed'"):
        renamed("probe", {"mode": "train", "speed": 1}, NEW)
