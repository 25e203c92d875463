"""The rows of well-known networks, as their papers count them, whichever library they come from (random weights)."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import layerlaw as ll

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the libraries, while they build a network
    pytest.mark.timeout(120),
]


def library(name: str) -> Any:
    """A library that may not be installed; torchvision also where its compiled operators do not fit this torch."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if name != "torchvision" and importlib.util.find_spec("torchvision") is not None:
        library("torchvision")  # the others import it where it is installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except RuntimeError as error:  # "operator torchvision::nms does not exist"
            if name != "torchvision" or "torchvision::" not in str(error):
                raise
        for module in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        OPERATORS.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            OPERATORS[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module(name)


OPERATORS: list[torch.library.Library] = []  # what is defined lasts as long as these
Made = tuple[nn.Module, Any]


def images(size: int) -> torch.Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def vision(name: str, size: int = 64, **how: Any) -> Callable[[], Made]:
    return lambda: (getattr(library("torchvision").models, name)(weights=None, num_classes=5, **how), images(size))


def timm(name: str, size: int = 64, **how: Any) -> Callable[[], Made]:
    return lambda: (library("timm").create_model(name, pretrained=False, num_classes=5, **how), images(size))


def hugging(name: str, data: str, **config: Any) -> Callable[[], Made]:
    """A classifier of transformers; `data` are "tokens", "sound" or the size of images."""

    def make() -> Made:
        transformers = library("transformers")
        config_class = getattr(transformers, f"{name}Config")
        task = "ImageClassification" if data.isdigit() else "SequenceClassification"
        model = getattr(transformers, f"{name}For{task}")(config_class(num_labels=5, **config))
        if data == "tokens":
            ids = torch.arange(36).reshape(3, 12) % 90 + 5
            return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if data == "sound":
            return model, {"input_values": torch.randn(3, 4000, generator=torch.Generator().manual_seed(0))}
        return model, {"pixel_values": images(int(data))}

    return make


def small_maxvit() -> Made:
    MaxVit = library("torchvision").models.maxvit.MaxVit
    sizes = {"input_size": (64, 64), "partition_size": 2, "head_dim": 8, "stem_channels": 8}
    stages = {"block_channels": [8, 16, 24, 32], "block_layers": [2, 2, 5, 2], "stochastic_depth_prob": 0.0}
    return MaxVit(**sizes, **stages, num_classes=5), images(64)


def small_vit() -> Made:
    return library("torchvision").models.VisionTransformer(32, 8, 12, 2, 16, 32, num_classes=5), images(32)


WIDTH = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
BERT = {"num_hidden_layers": 6, "vocab_size": 100, **WIDTH}
GRID = {"image_size": 32, "patch_size": 8, "num_hidden_layers": 12, **WIDTH}
TINY_VIT = {"img_size": 32, "embed_dim": 16, "num_heads": 2}


class Rows(NamedTuple):
    blocks: int  # as the paper counts them; 0: the network has none
    layers: int
    on_trunk: int  # of the layers: what they read is on the trunk


# A residual network of B blocks has B + 2 layers on its trunk (stem, blocks, classifier), one with attention and
# feed-forward part two for each block; inverted bottlenecks without a shortcut have all of theirs but the gate.
FAMILIES: dict[str, tuple[Callable[[], Made], Rows]] = {
    "ResNet-18, torchvision": (vision("resnet18"), Rows(8, 18, 10)),
    "ResNet-18, timm": (timm("resnet18"), Rows(8, 18, 10)),
    "ResNet-50, torchvision": (vision("resnet50"), Rows(16, 50, 18)),
    "ResNet-50, timm": (timm("resnet50"), Rows(16, 50, 18)),
    "ResNet-50, transformers": (
        hugging("ResNet", "64", embedding_size=8, hidden_sizes=[8, 16, 24, 32]), Rows(16, 50, 18)
    ),
    "ResNeXt-50, torchvision": (vision("resnext50_32x4d"), Rows(16, 50, 18)),
    "Wide ResNet-50, torchvision": (vision("wide_resnet50_2"), Rows(16, 50, 18)),
    "SE-ResNet-50, timm": (timm("seresnet50"), Rows(16, 82, 18)),
    "EfficientNet-B0 with same padding, timm": (timm("tf_efficientnet_b0"), Rows(16, 82, 32)),
    "EfficientNet-B0, timm": (timm("efficientnet_b0"), Rows(16, 82, 32)),
    "EfficientNet-B0, torchvision": (vision("efficientnet_b0"), Rows(16, 82, 32)),
    "EfficientNetV2-S, timm": (timm("efficientnetv2_s"), Rows(40, 171, 51)),
    "EfficientNetV2-S, torchvision": (vision("efficientnet_v2_s"), Rows(40, 171, 51)),
    "MobileNetV2, timm": (timm("mobilenetv2_100"), Rows(17, 53, 33)),
    "MobileNetV2, torchvision": (vision("mobilenet_v2"), Rows(17, 53, 33)),
    "MobileNetV3-Large, timm": (timm("mobilenetv3_large_100"), Rows(15, 64, 29)),
    "MobileNetV3-Large, torchvision": (vision("mobilenet_v3_large"), Rows(15, 64, 29)),
    "MobileNetV3-Small, timm": (timm("mobilenetv3_small_100"), Rows(11, 54, 24)),
    "MobileNetV3-Small, torchvision": (vision("mobilenet_v3_small"), Rows(11, 54, 24)),
    "ConvNeXt-T, timm": (timm("convnext_tiny"), Rows(18, 59, 23)),
    "ConvNeXt-T, torchvision": (vision("convnext_tiny"), Rows(18, 59, 23)),
    "ConvNeXt-T, transformers": (hugging("ConvNext", "64", hidden_sizes=[8, 16, 24, 32]), Rows(18, 59, 23)),
    "Swin-T, timm": (
        timm("swin_tiny_patch4_window7_224", img_size=64, window_size=2, embed_dim=24), Rows(12, 53, 29)
    ),
    "Swin-T, torchvision": (vision("swin_t"), Rows(12, 41, 29)),  # its attention is one layer
    "Swin-T, transformers": (
        hugging("Swin", "64", image_size=64, patch_size=2, embed_dim=12, window_size=4), Rows(12, 53, 29)
    ),
    "ViT-S, timm": (timm("vit_tiny_patch16_224", 32, **TINY_VIT), Rows(12, 50, 26)),
    "ViT, torchvision": (small_vit, Rows(12, 38, 26)),
    "ViT, transformers": (hugging("ViT", "32", **GRID), Rows(12, 50, 26)),
    "DeiT, timm": (timm("deit_tiny_patch16_224", 32, **TINY_VIT), Rows(12, 50, 26)),
    "DeiT with two heads, timm": (timm("deit_tiny_distilled_patch16_224", 32, **TINY_VIT), Rows(12, 51, 25)),
    "BEiT, timm": (timm("beit_base_patch16_224", 32, **TINY_VIT), Rows(12, 38, 26)),
    "BEiT, transformers": (hugging("Beit", "32", **GRID), Rows(12, 50, 26)),
    "PVTv2-B0, timm": (timm("pvt_v2_b0"), Rows(8, 57, 21)),
    "MaxViT-T, timm": (timm("maxvit_tiny_rw_224", img_size=64), Rows(11, 149, 58)),
    "MaxViT-T, torchvision": (small_maxvit, Rows(11, 151, 59)),
    "RegNetY-400MF, timm": (timm("regnety_004"), Rows(16, 82, 18)),
    "RegNetY-400MF, torchvision": (vision("regnet_y_400mf"), Rows(16, 82, 18)),
    "DenseNet-121, timm": (timm("densenet121"), Rows(58, 121, 63)),
    "DenseNet-121, torchvision": (vision("densenet121"), Rows(58, 121, 63)),
    "Inception v3, timm": (timm("inception_v3", 96), Rows(11, 71, 17)),
    "Inception v3, torchvision": (vision("inception_v3", 96, init_weights=False), Rows(11, 71, 17)),
    "GoogLeNet, torchvision": (vision("googlenet", init_weights=False), Rows(9, 40, 13)),
    "VGG-11, torchvision": (vision("vgg11"), Rows(0, 11, 11)),
    "AlexNet, torchvision": (vision("alexnet"), Rows(0, 8, 8)),
    "MLP-Mixer, timm": (timm("mixer_s32_224", img_size=64), Rows(8, 34, 18)),
    "ResMLP-12, timm": (timm("resmlp_12_224", 32, img_size=32), Rows(12, 38, 26)),
    "PoolFormer-S12, timm": (timm("poolformer_s12"), Rows(12, 29, 17)),
    "ShuffleNetV2, torchvision": (vision("shufflenet_v2_x0_5"), Rows(16, 54, 6)),
    "BERT, transformers": (hugging("Bert", "tokens", **BERT), Rows(6, 26, 14)),
    "RoBERTa, transformers": (hugging("Roberta", "tokens", **BERT), Rows(6, 26, 14)),
    "ELECTRA, transformers": (hugging("Electra", "tokens", embedding_size=8, **BERT), Rows(6, 27, 15)),
    "DeBERTa, transformers": (hugging("DebertaV2", "tokens", **BERT), Rows(6, 26, 14)),
    "ALBERT, one block called six times, transformers": (
        hugging("Albert", "tokens", embedding_size=8, **BERT), Rows(6, 27, 15)
    ),
    "DistilBERT, transformers": (
        hugging("DistilBert", "tokens", dim=16, n_heads=2, hidden_dim=32, vocab_size=100), Rows(6, 26, 14)
    ),
    "GPT-2, transformers": (
        hugging("GPT2", "tokens", n_embd=16, n_head=2, n_layer=6, vocab_size=100, pad_token_id=0,
                bos_token_id=1, eos_token_id=1), Rows(6, 25, 13)
    ),
    "Llama, transformers": (hugging("Llama", "tokens", pad_token_id=0, **BERT), Rows(6, 25, 13)),
    "Wav2Vec2, transformers": (
        hugging("Wav2Vec2", "sound", num_hidden_layers=4, conv_dim=[8] * 7, num_conv_pos_embeddings=4,
                num_conv_pos_embedding_groups=2, **WIDTH), Rows(4, 27, 19)
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_blocks_of_its_paper_and_its_trunk(family: str) -> None:
    make, expected = FAMILIES[family]
    torch.manual_seed(0)
    network, example = make()
    layers = ll.sites(network, example, sites="layers")
    assert layers.no_trunk == ""
    assert sum(not site.branch for site in layers.sites) == expected.on_trunk
    assert len(layers.sites) == expected.layers
    if not expected.blocks:
        assert not any(site.branch for site in layers.sites)
        assert ll.sites(network, example).rule == "layers"
        with pytest.raises(ll.LayerlawError, match="sites='blocks': no repeated module class"):
            ll.sites(network, example, sites="blocks")
        return
    plan = ll.sites(network, example)
    assert plan.rule == "blocks"
    assert plan.why.startswith(f"auto: {expected.blocks} blocks of type ")
    assert "by repeated classes" not in plan.why
    opening, *rows = plan.sites
    ends = [site for site in rows if site.module == plan.classifier]
    assert opening.name in ("input", "embedded input")
    assert len(rows) - len(ends) == expected.blocks
    assert not any(site.branch for site in plan.sites)


def test_the_table_has_twenty_five_families() -> None:
    assert len({name.split(",")[0] for name in FAMILIES}) >= 25
