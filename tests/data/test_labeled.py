from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from layerlaw.data import Labeled
from layerlaw.data.labeled import MOMENTS
from layerlaw.errors import DataError, LabelError, MissingExtraError


def toy(labels: list[int], K: int = 3, shape: tuple[int, int, int] = (1, 4, 4), name: str = "toy") -> Labeled:
    n = len(labels)
    images = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Labeled(images, torch.tensor(labels, dtype=torch.int64), tuple("abcdefghij"[:K]), name)


def test_balanced_keeps_the_first_of_each_class_in_file_order() -> None:
    data = toy([2, 0, 1, 0, 1, 2, 0, 2])
    chosen = data.balanced(2)
    assert chosen.labels.tolist() == [2, 0, 1, 0, 1, 2]
    assert torch.equal(chosen.images, data.images[:6])
    assert chosen.name == "toy"


def test_one_seed_makes_one_choice_and_another_seed_another() -> None:
    data = toy([0, 1, 2] * 40)
    assert data.balanced(10, seed=1).checksum() == data.balanced(10, seed=1).checksum()
    assert data.balanced(10, seed=1).checksum() != data.balanced(10, seed=2).checksum()
    assert data.balanced(10, seed=1).checksum() != data.balanced(10).checksum()


def test_a_smaller_random_choice_is_part_of_a_larger_one() -> None:
    data = toy([0, 1, 2] * 40)
    small, large = ({image.numpy().tobytes() for image in data.balanced(count, seed=3).images} for count in (5, 20))
    assert len(small) == 15
    assert small < large


@given(st.lists(st.integers(1, 5), min_size=3, max_size=3), st.one_of(st.none(), st.integers(0, 9)))
def test_imbalanced_gives_exactly_the_counts_asked_for(counts: list[int], seed: int | None) -> None:
    assert toy([0, 1, 2] * 5).imbalanced(counts, seed=seed).counts() == tuple(counts)


def test_more_samples_than_there_are_says_how_many_for_which_class() -> None:
    with pytest.raises(DataError, match=r"toy: .*class 1 \('b'\) has 1, 2 were requested; request at most 1 per class"):
        toy([0, 0, 1, 2, 2]).balanced(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: data.imbalanced([1, 1]), "expected 3 counts, one per class, got 2"),
        (lambda data: data.imbalanced([1, 0, 1]), r"at least 1 image per class, got 0; use classes\(ids\)"),
        (
            lambda data: data.classes([0, 3]),
            r"class ids from 0 to 2, got \[0, 3\]; the classes are 0 'a', 1 'b', 2 'c'",
        ),
        (lambda data: data.classes([1, 1]), "different class ids"),
        (lambda data: data.classes([]), "different class ids"),
        (lambda data: data.resized(0), "expected a size"),
        (lambda data: data.tensors("halb"), "'half', 'dataset', 'imagenet', 'none' or a pair"),
        (lambda data: data.tensors((0.5, 0.5, 0.5)), "'half', 'dataset', 'imagenet', 'none' or a pair"),
        (lambda data: data.tensors("dataset"), r"toy: no published mean .*pass normalize=\(mean, std\)"),
        (lambda data: data.tensors((0.5, 0.0)), "a deviation above 0"),
        (lambda data: data.tensors(((0.5, 0.4), 0.1)), "expected 1 number for the only channel, got 2"),
        (lambda data: data.tensors(channel=1), "expected a channel from 0 to 0, got 1"),
    ],
)
def test_what_cannot_be_done_is_answered(call: Callable[[Labeled], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call(toy([0, 1, 2]))


def test_images_and_labels_of_the_wrong_kind_are_refused() -> None:
    images, labels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    with pytest.raises(DataError, match=r"expected uint8 images of shape \(n, c, h, w\), got torch.float32"):
        Labeled(images.float(), labels, ("a", "b"), "toy")
    with pytest.raises(LabelError, match=r"expected int64 labels of shape \(2,\)"):
        Labeled(images, labels[:1], ("a", "b"), "toy")
    with pytest.raises(LabelError, match=r"expected labels 0..0 for 1 class names, got labels from 0 to 1"):
        Labeled(images, labels, ("a",), "toy")


def test_classes_relabels_in_the_order_given() -> None:
    data = toy([0, 1, 2, 1]).classes([2, 1])
    assert data.labels.tolist() == [1, 0, 1]
    assert data.class_names == ("c", "b")


def test_checksum_is_the_sha256_of_image_and_label_bytes() -> None:
    import hashlib

    data = toy([0, 1, 2])
    raw = data.images.numpy().tobytes() + np.array([0, 1, 2], "<i8").tobytes()
    assert data.checksum() == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_resizing_equals_pillow_on_the_whole_picture(shape: tuple[int, int, int]) -> None:
    data = toy([0, 1, 2], shape=shape)
    small = data.resized((10, 12))
    assert small.images.shape == (3, shape[0], 10, 12)
    for old, new in zip(data.images, small.images, strict=True):
        array = old.permute(1, 2, 0).numpy()
        picture = Image.fromarray(array[..., 0] if shape[0] == 1 else array)
        expected = np.asarray(picture.resize((12, 10), Image.Resampling.BILINEAR)).reshape(10, 12, shape[0])
        assert np.array_equal(new.permute(1, 2, 0).numpy(), expected)


def test_resizing_to_the_same_size_changes_nothing_and_needs_no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    data = toy([0, 1, 2])
    assert data.resized(4).images is data.images
    with pytest.raises(
        MissingExtraError, match=r"resizing images needs the package 'pillow': pip install 'layerlaw\[data\]'"
    ):
        data.resized(2)


@pytest.mark.parametrize(
    ("name", "channels"), [("fashion_mnist", 1), ("fashion_mnist_sample", 1), ("mnist", 1), ("cifar10", 3)]
)
def test_published_moments_are_applied_per_channel(name: str, channels: int) -> None:
    data = toy([0, 1, 2], shape=(channels, 4, 4), name=name)
    mean, std = (np.array(m, np.float64).reshape(1, -1, 1, 1) for m in MOMENTS[name])
    x, y = data.tensors("dataset")
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    np.testing.assert_allclose(x.numpy(), (data.images.numpy() / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_published_moments_are_those_of_the_papers() -> None:
    assert MOMENTS["fashion_mnist"] == ((0.2860,), (0.3530,))
    assert MOMENTS["cifar10"] == ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261))
    assert MOMENTS["mnist"] == ((0.1307,), (0.3081,))


def test_half_scales_to_minus_one_to_one_and_none_to_zero_to_one() -> None:
    data = Labeled(torch.tensor([0, 255], dtype=torch.uint8).reshape(1, 1, 1, 2), torch.tensor([0]), ("a",), "toy")
    assert data.tensors()[0].flatten().tolist() == [-1, 1]
    assert data.tensors("none")[0].flatten().tolist() == [0, 1]
    assert data.images.dtype == torch.uint8


def test_one_channel_is_kept_after_normalization() -> None:
    data = toy([0, 1, 2], shape=(3, 4, 4), name="cifar10")
    x, _ = data.tensors("dataset", flat=True, channel=1)
    assert x.shape == (3, 16)
    assert torch.equal(x, data.tensors("dataset")[0][:, 1].flatten(1))
    assert data.tensors(flat=True)[0].shape == (3, 48)


def test_colors_become_gray_as_pillow_does_it_and_gray_keeps_its_pixels() -> None:
    images = torch.randint(0, 256, (20, 3, 5, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = Labeled(images, torch.zeros(20, dtype=torch.int64), ("a",), "toy")
    by_pillow = [np.asarray(Image.fromarray(i.permute(1, 2, 0).numpy()).convert("L")) for i in images]
    gray = data.with_channels(1)
    assert (gray.images[:, 0].numpy() == np.stack(by_pillow)).all()
    assert gray.gray
    assert not data.gray
    assert gray.with_channels(3).with_channels(1).checksum() == gray.checksum()
    assert gray.with_channels(3).images.shape == (20, 3, 5, 6)
    assert data.with_channels(3) is data
