"""A language model on a GPU, which is pretended: the residuals of the CPU."""

import pytest
from language_models import MASK, family, probed, walks
from transformers.utils import is_torch_cuda_available


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_residuals_are_those_of_the_cpu(name: str, request: pytest.FixtureRequest) -> None:
    is_torch_cuda_available()  # which it remembers: not to be asked first where a GPU is pretended
    model, ids, how = family(name), walks(30, 32), {"mask_id": MASK} if name == "bert" else {}
    here = probed(model, ids, **how)
    gpu = request.getfixturevalue("gpu")
    there = probed(model.cuda(), ids, **how)
    assert [site.name for site in there.sites] == [site.name for site in here.sites]
    for site, other in zip(there.sites, here.sites, strict=True):
        assert site.values["residual"] == pytest.approx(other.values["residual"], rel=1e-4)
    assert gpu.problems == []
