"""What a network goes on with of its tokens: the note names it, and rows behind it are no points beside all tokens."""

import pytest
import torch
from networks import separated
from torch import Tensor, nn

import layerlaw as ll
from layerlaw.record import Record

TAKES = {
    "first": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "mean": lambda x: x.mean(1),
    "max": lambda x: x.amax(1),
}
WORDS = {
    "first": "the first token alone",
    "last": "the last token alone",
    "mean": "the mean over tokens",
    "max": "the maximum over tokens",
}


class Tokens(nn.Module):
    """Patches of 4×4 pixels, a class token, four encoder blocks; `take` says what the head reads of the tokens."""

    def __init__(self, take: str = "first", *, norm_behind: bool = False, pooler: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        layer: dict = {"dim_feedforward": 48, "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(24, 2, **layer) for _ in range(4))
        self.norm, self.pooler, self.head = nn.LayerNorm(24), nn.Linear(24, 24), nn.Linear(24, 10)
        self.take, self.norm_behind, self.with_pooler = TAKES.get(take), norm_behind, pooler

    def tokens(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x)
        if self.take is None:  # patches without the class token: no reduction of ours
            return self.head(self.norm(x)[:, 1:].mean(1))
        x = self.norm(self.take(x)) if self.norm_behind else self.take(self.norm(x))
        return self.head(torch.tanh(self.pooler(x)) if self.with_pooler else x)


class Backbone(Tokens):
    """Gives an embedding made of the mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.pooler(self.tokens(x).mean(1)))


class Recurrent(nn.Module):
    """A stack of recurrent layers; the classifier reads the last step, or what both directions end with."""

    def __init__(self, *, both: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        wide = 2 if both else 1
        self.stack = nn.ModuleList(
            nn.LSTM(8 if i == 0 else 16 * wide, 16, batch_first=True, bidirectional=both) for i in range(4)
        )
        self.fc, self.both = nn.Linear(16 * wide, 10), both

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.stack:
            x, (h, _) = layer(x)
        return self.fc(torch.cat([h[0], h[1]], 1) if self.both else x[:, -1])


IMAGES, SEQUENCES = separated(200, 3, 8, 8), separated(200, 6, 8)


def probed(network: nn.Module, data: tuple[Tensor, Tensor] = IMAGES, **how: object) -> Record:
    return ll.probe(network.eval(), data, uncertainty=False, progress=False, **how)  # type: ignore[arg-type]


def said(record: Record) -> list[str]:
    return [note for note in record.notes if "measures what it uses" in note or "nearer to what it uses" in note]


@pytest.mark.parametrize("sites", ["blocks", "layers"])
@pytest.mark.parametrize("norm_behind", [False, True])
@pytest.mark.parametrize("take", TAKES)
def test_the_note_names_what_the_classifier_reads(take: str, norm_behind: bool, sites: str) -> None:
    network = Tokens(take, norm_behind=norm_behind)
    reads = f"while the classifier reads {WORDS[take]}: reduce='{take}' measures what it uses."
    assert said(probed(network, sites=sites)) == [f"Tokens were flattened, {reads}"]
    assert said(probed(network, sites=sites, reduce=take)) == []


def test_another_reduction_than_the_networks_own_is_noted() -> None:
    measured = {"mean": "The mean over tokens", "last": "The last token", "max": "The maximum over tokens"}
    for reduce, words in measured.items():
        reads = "while the classifier reads the first token alone: reduce='first' measures what it uses."
        assert said(probed(Tokens("first"), reduce=reduce)) == [f"{words} was measured, {reads}"]


def test_where_no_reduction_matches_the_words_are_general() -> None:
    reads = (
        "while the classifier reads as many numbers as one token has: reduce='first', 'last' or 'mean' may be nearer"
    )
    for record in (probed(Tokens("patches")), probed(Recurrent(both=True), SEQUENCES)):
        assert said(record) == [f"Tokens were flattened, {reads} to what it uses."]
    assert said(probed(Tokens("patches"), reduce="mean")) == []  # what it uses is not known


def test_the_last_step_of_recurrent_layers_is_named() -> None:
    record = probed(Recurrent(), SEQUENCES)
    reads = "while the classifier reads the last token alone: reduce='last' measures what it uses."
    assert said(record) == [f"Tokens were flattened, {reads}"]
    assert record.sites[-1].aside == "made of the last token, beside all tokens of other rows"
    assert probed(Recurrent(), SEQUENCES, reduce="last").sites[-1].in_fit


def test_a_layer_between_tokens_and_classifier_is_not_called_the_classifier() -> None:
    (note,) = said(probed(Tokens("first", pooler=True)))
    assert note.startswith("Tokens were flattened, while the network goes on with the first token alone: ")
    (note,) = said(probed(Backbone(), scores=None))
    assert note.startswith("Tokens were flattened, while the network goes on with the mean over tokens: ")
    assert not any("the classifier" in note for note in probed(Backbone(), scores=None).notes)


def test_a_network_that_uses_all_tokens_gets_no_note() -> None:
    class Whole(Tokens):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5 * 24, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.tokens(x).flatten(1))

    for sites in ("blocks", "layers"):
        record = probed(Whole(), sites=sites)
        assert said(record) == []
        assert record.sites[-1].in_fit
    embeds = Whole()
    embeds.forward = embeds.tokens  # type: ignore[method-assign]
    assert said(probed(embeds, scores=None)) == []


@pytest.mark.parametrize("take", ["first", "mean"])
def test_one_token_is_no_point_beside_all_tokens_by_layers(take: str) -> None:
    record = probed(Tokens(take), sites="layers")
    head = record.sites[-1]
    taken = {"first": "the first token", "mean": "the mean over tokens"}[take]
    assert (head.name, head.features, head.in_fit) == ("head", 24, False)
    assert head.aside == f"made of {taken}, beside all tokens of other rows"
    assert head.values["nc3"] is not None  # it stays in the table
    assert {site.features for site in record.points()[1:]} == {5 * 24}
    alike = probed(Tokens(take), sites="layers", reduce=take).sites[-1]
    assert (alike.in_fit, alike.aside) == (True, "")
    other = probed(Tokens("first"), sites="layers", reduce="mean").sites[-1]
    assert other.aside == "made of the first token, beside the mean over tokens of other rows"


def test_rows_further_behind_the_reduction_are_no_points_either() -> None:
    for sites, names in (("layers", ["pooler", "head"]), ("blocks", ["head"])):
        record = probed(Tokens("first", pooler=True), sites=sites)
        assert [site.name for site in record.sites if site.aside.startswith("made of")] == names
    assert all(site.in_fit for site in probed(Tokens("first"), sites=["blocks.*", "norm"]).sites if site.name == "norm")


def test_a_pooled_head_of_a_convolutional_network_stays_a_point_by_layers() -> None:
    torch.manual_seed(0)
    maps = [part for i in range(4) for part in (nn.Conv2d(3 if i == 0 else 12, 12, 3, padding=1), nn.ReLU())]
    network = nn.Sequential(*maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10))
    record = probed(network, sites="layers")
    assert record.sites[-1].features == 12
    assert all(site.in_fit for site in record.sites)
    assert said(record) == []
