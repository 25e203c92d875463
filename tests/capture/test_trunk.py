"""The graph of the data: what every path from the input to the scores passes, whatever way it was computed."""

import random
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from capture_networks import FNN, DenseNet, Encoder, InPlaceResNet, ResNet20, clouds, seeded
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import layerlaw as ll
from layerlaw.capture.trunk import DataFlow, Trunk

IMAGES = clouds(6, 3, 8, 8)[0]
VECTORS = clouds(6, 6)[0]


def trunk_rows(network: nn.Module, example: object, **how: object) -> list[str]:
    plan = ll.sites(network, example, sites="layers", **how)
    assert plan.no_trunk == ""
    assert all(site.in_fit is not site.branch for site in plan.sites)
    return [site.name for site in plan.sites if not site.branch]


class Steps(nn.Module):
    """Layers a, b, c … of width 6, put together by a function, and a head."""

    def __init__(self, work, letters: str = "abc") -> None:
        super().__init__()
        for letter in letters:
            self.add_module(letter, nn.Linear(6, 6))
        self.head, self.work = nn.Linear(6, 3), work

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.work(self, x))


@pytest.mark.parametrize("seed", range(30))
def test_the_points_are_those_whose_removal_cuts_every_path(seed: int) -> None:
    draw = random.Random(seed)
    reads: list[list[int]] = [[]]
    for node in range(1, 14):
        near = [n for n in range(node) if node - n <= draw.choice([1, 2, 4])]
        reads.append(draw.sample(near, draw.randint(1, min(2, len(near)))))

    def reached(without: int | None) -> bool:
        ahead = {0} - {without}
        for node in range(1, len(reads)):
            if node != without and ahead & set(reads[node]):
                ahead.add(node)
        return len(reads) - 1 in ahead

    values = [torch.ones(4)]
    flow = DataFlow(nn.Linear(2, 2), values[0])
    with flow:
        for parts in reads[1:]:
            values.append(values[parts[0]] + 1 if len(parts) == 1 else values[parts[0]] + values[parts[1]])
    found = flow.trunk(flow.node(values[-1]))
    assert isinstance(found, Trunk)
    on_trunk = {i for i, value in enumerate(values) if found.position(flow.node(value)) is not None}
    assert on_trunk == {i for i in range(len(reads)) if not reached(without=i)}


@pytest.mark.parametrize(
    ("network", "example", "on_trunk"),
    [
        (FNN(), clouds(6, 12)[0], 4),
        (InPlaceResNet(), IMAGES, 6),  # stem, four blocks, classifier
        (ResNet20("free"), IMAGES, 11),
        (ResNet20("conv"), IMAGES, 11),
        (DenseNet(), IMAGES, 5),
        (Encoder(batch_first=True), clouds(6, 5, 8)[0], 7),  # what attention and feed-forward part read, and the head
        (Encoder(batch_first=False), clouds(6, 5, 8)[0].transpose(0, 1).contiguous(), 7),
    ],
    ids=["plain", "in place", "padded shortcut", "convolved shortcut", "dense", "tokens", "sequence first"],
)
def test_networks_of_every_kind_have_their_trunk(network: nn.Module, example: Tensor, on_trunk: int) -> None:
    data = (example, torch.arange(6) % 3)
    plan = ll.sites(network, [data], sites="layers")
    assert plan.no_trunk == ""
    assert sum(not site.branch for site in plan.sites) == on_trunk


@pytest.mark.parametrize(
    ("work", "on_trunk"),
    [
        (lambda m, x: m.c(m.b(m.a(x).relu()).relu()), "abc"),
        (lambda m, x: x + m.b(m.a(x).relu()), "a"),
        (lambda m, x: m.c(x + m.b(m.a(x).relu_())), "ac"),
        (lambda m, x: m.c(m.a(x).add_(x)), "ac"),
        (lambda m, x: m.c(torch.stack([m.a(x), m.b(x)]).sum(0)), "ac"),  # b reads what a reads
        (lambda m, x: m.c(F.dropout(m.b(x.clone().reshape(-1, 2, 3).flatten(1)), 0.5, False)), "bc"),
        (lambda m, x: m.c(torch.cat([x[:, :3], m.a(x)[:, 3:]], 1)), "ac"),
        (lambda m, x: m.c(torch.where(m.a(x) > 0, x, x + 1)), "ac"),  # a condition is no path, but a reads the input
        (lambda m, x: m.c(m.b(x * torch.sigmoid(m.a(x.mean(1, keepdim=True).expand(-1, 6))))), "bc"),
    ],
)
def test_plain_functions_between_layers_are_followed(work, on_trunk: str) -> None:
    assert trunk_rows(Steps(work), VECTORS) == [*on_trunk, "head"]


def test_a_norm_in_front_of_a_branch_shows_the_trunk_and_a_pooled_gate_does_not() -> None:
    class Norm(nn.Module):
        def forward(self, x):  # many operations, in two paths
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    assert trunk_rows(Steps(lambda m, x: m.c(x + m.b(m.a(Norm()(x)).relu()))), VECTORS) == ["a", "c", "head"]

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
            self.squeeze, self.excite, self.head = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Linear(4, 3)

        def forward(self, x):
            x = self.stem(x)
            x = x * self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
            return self.head(self.last(x).mean((2, 3)))

    plan = ll.sites(Gated(), IMAGES, sites="layers")
    assert {site.name: site.branch for site in plan.sites} == {
        "stem": False, "squeeze": True, "excite": True, "last": False, "head": False,
    }  # fmt: skip


def test_where_a_layer_reads_the_trunk_itself_what_else_is_made_of_it_is_a_branch() -> None:
    def work(m, x):
        return m.c(m.a(x) + m.b(F.avg_pool1d(x, 3, 1, 1)))  # as many numbers, but pooled

    assert trunk_rows(Steps(work), VECTORS) == ["a", "c", "head"]


def test_halves_of_a_tensor_are_no_points_of_the_trunk() -> None:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x):
            kept, changed = x.chunk(2, 1)
            return self.head(self.b(torch.cat([kept, self.a(changed)], 1)))

    assert trunk_rows(Shuffled(), VECTORS) == ["b", "head"]


def test_memory_that_is_used_again_makes_no_path() -> None:
    def work(m, x):
        for layer in (m.a, m.b, m.c):
            mask = x.new_zeros(6, 6)
            for i in range(6):
                mask[i : i + 1, i:] = i  # numbers from Python are tensors that no operation has given
            scores = torch.softmax(x @ layer(x).T @ x, -1)
            x = x + layer(scores) + 0 * (mask - mask.T).masked_fill(mask > 2, 1.0).sum()
        return x

    plan = ll.sites(Steps(work), VECTORS, sites="layers")
    assert [site.name for site in plan.sites if not site.branch] == ["a", "b", "c", "head"]


def test_weights_that_need_no_gradient_and_models_in_inference_mode_are_followed() -> None:
    class Inference(InPlaceResNet):
        def forward(self, x):
            with torch.inference_mode():
                return super().forward(x)

    frozen = InPlaceResNet().requires_grad_(False)
    for network in (frozen, Inference()):
        assert len(trunk_rows(network, IMAGES)) == 6


def test_a_function_that_hides_its_gradient_is_followed() -> None:
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.detach().sign()

    assert trunk_rows(Steps(lambda m, x: m.c(x + m.b(Straight.apply(m.a(x))))), VECTORS) == ["a", "c", "head"]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_of_memory_changes_no_row(layout: torch.memory_format) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*(InPlaceResNet().layer1 for _ in range(2)))
            self.stem, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)

        def forward(self, x):
            return self.fc(torch.flatten(self.net(self.stem(x)), 1))

    network = seeded(Deep).to(memory_format=layout)
    plan = ll.sites(network, IMAGES.contiguous(memory_format=layout))
    assert [site.name for site in plan.sites] == ["input", *(f"net.{i}.{j}" for i in (0, 1) for j in (0, 1))]
    assert plan.reads == "net.1.1"  # the flattened copy that the classifier reads is no other point


def test_token_ids_become_data_at_the_embedding_and_a_mask_made_of_them_is_no_path() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(9, 6), nn.Embedding(5, 6)
            self.a, self.b, self.c, self.head = (nn.Linear(6, n) for n in (6, 6, 6, 3))

        def forward(self, input_ids, attention_mask=None):
            real = (input_ids > 0).float().unsqueeze(-1)
            x = self.words(input_ids) + self.places(input_ids.cumsum(1) % 5)
            for layer in (self.a, self.b, self.c):
                x = x + layer(x) * real
            last = (input_ids > 0).sum(1) - 1
            return self.head(x[torch.arange(len(x)), last])

    ids = torch.arange(30).reshape(6, 5) % 8 + 1
    assert trunk_rows(Tokens(), {"input_ids": ids}) == ["a", "b", "c", "head"]
    mask = torch.ones(6, 5)
    assert trunk_rows(Tokens(), {"attention_mask": mask, "input_ids": ids}) == ["a", "b", "c", "head"]

    class OneHot(Steps):
        def forward(self, x):
            return super().forward(F.one_hot(x, 6).float())

    ids = torch.arange(6)
    assert trunk_rows(OneHot(lambda m, x: m.c(x + m.a(x))), ids) == ["a", "c", "head"]


def test_scores_among_other_outputs_are_the_end_of_the_trunk() -> None:
    class Many(Steps):
        def forward(self, x):
            hidden = x + self.b(self.a(x).relu())
            return {"attentions": (self.a(x),), "logits": self.head(self.c(hidden)), "hidden": hidden}

    assert trunk_rows(Many(None), VECTORS) == ["a", "c", "head"]


def test_arrays_inside_a_model_cannot_be_followed_and_the_plan_says_so() -> None:
    class Arrays(ResNet20):
        def forward(self, x):
            return super().forward(torch.from_numpy(np.tanh(x.numpy())))

    plan = ll.sites(Arrays(), IMAGES)
    why = "the output does not come from the input by operations of torch alone"
    assert plan.no_trunk == why
    assert plan.why == f"auto: 9 blocks of type ShortcutBlock, by repeated classes, since {why}"
    assert f"side branches are not told apart: {why}" in str(plan)
    assert not any(site.branch for site in ll.sites(Arrays(), IMAGES, sites="layers").sites)


def test_streams_side_by_side_are_no_trunk() -> None:
    class TwoStreams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.ModuleList(nn.Linear(6, 6) for _ in range(6)) for _ in range(2))
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            left = right = x
            for a, b in zip(self.a, self.b, strict=True):
                left, right = a(left + right).relu(), b(left).relu()
            return self.head(torch.cat([left, right], 1))

    plan = ll.sites(TwoStreams(), VECTORS, sites="layers")
    assert plan.no_trunk == "12 of 13 layers lie between two neighboring points that every path passes"
    assert not any(site.branch for site in plan.sites)


def test_an_operation_that_cannot_be_watched_leaves_the_old_rule() -> None:
    class Refuses(ResNet20):
        def forward(self, x):
            if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
                raise NotImplementedError("no rule for this mode")
            return super().forward(x)

    plan = ll.sites(Refuses(), IMAGES)
    assert plan.no_trunk == "the model does not run while its data are followed: no rule for this mode"
    assert len(plan.sites) == 11


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_attention_that_is_a_function_of_functions_is_followed() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.head = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x):
            q, k, v = self.qkv(x).reshape(len(x), 4, 3, 1, 16).permute(2, 0, 3, 1, 4)
            return self.head((x + self.out(flex_attention(q, k, v)[:, 0]))[:, 0])

    assert trunk_rows(Flex(), clouds(6, 4, 16)[0]) == ["qkv", "head"]


def test_wrapped_compiled_and_graph_modules_have_the_same_rows() -> None:
    network = seeded(InPlaceResNet).eval()
    expected = trunk_rows(network, IMAGES)
    for wrap in (nn.DataParallel, partial(torch.compile, backend="eager"), torch.fx.symbolic_trace):
        assert trunk_rows(wrap(network), IMAGES) == expected


def test_the_dry_run_is_two_forwards() -> None:
    class Counts(InPlaceResNet):
        forwards = 0

        def forward(self, x):
            Counts.forwards += 1
            return super().forward(x)

    ll.sites(Counts(), IMAGES)
    assert Counts.forwards == 2


def test_sites_that_the_user_names_are_points_of_the_law_and_marked() -> None:
    plan = ll.sites(InPlaceResNet(), IMAGES, sites=["layer1.0.conv1", "layer1.0", "layer1.1"])
    assert [site.branch for site in plan.sites] == [True, False, False]
    assert all(site.in_fit for site in plan.sites)


@pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "_should_skip_dynamo"), reason="this torch always loads its compiler"
)
def test_a_dry_run_does_not_load_the_compiler() -> None:
    code = """
import sys, torch, layerlaw as ll
network = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
ll.probe(network, (torch.randn(12, 4), torch.arange(12) % 3), progress=False)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_flow_knows_what_depends_on_numbers() -> None:
    x = torch.randn(4, 3)
    ways = {
        "a condition": (lambda: bool(x.sum() > 0), True),
        "a comparison": (lambda: torch.equal(x, x), True),
        "a mask": (lambda: x[x > 0], True),
        "an index": (lambda: x[torch.tensor([0, 1])], False),
        "a choice of numbers": (lambda: torch.where(x > 0, x, 0.0).max(), False),
    }
    for name, (way, by_numbers) in ways.items():
        with DataFlow(nn.Identity(), x) as flow:
            way()
        assert flow.by_numbers == by_numbers, name
