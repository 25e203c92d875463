"""Where the class scores are in a model's output, and that nothing is said from scores that are not those of the labels."""

import collections
import dataclasses
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from capture_networks import clouds
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

import layerlaw as ll
from layerlaw.errors import CaptureError, InputError, LabelError
from layerlaw.verdict.steps import workers

K = 10
X, Y = clouds(300, 12, classes=K, spread=0.3)


def fitted(network: nn.Module, logits) -> nn.Module:
    """Trained until every decision is right; `logits` finds them in the output."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        F.cross_entropy(logits(network(X)), Y).backward()
        optimizer.step()
    assert float((logits(network(X)).argmax(1) == Y).double().mean()) == 1.0
    return network.eval()


class Several(nn.Module):
    """Features and logits, put together in some way; `width` features without a nonlinearity."""

    def __init__(self, made, width: int = K, classes: int = K) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two, self.fc = nn.Linear(12, 24), nn.Linear(24, width), nn.Linear(width, classes)
        self.other = nn.Linear(width, classes)
        self.made = made

    def forward(self, x: Tensor):
        features = self.two(self.one(x).relu())
        return self.made(self, features, self.fc(features))


@dataclasses.dataclass
class Output:
    states: Tensor
    result: Tensor


Named = collections.namedtuple("Named", "states result")

FORMS = {  # what is made of features f and logits z, and where z is
    "(f, z)": (lambda s, f, z: (f, z), lambda out: out[1]),
    "(z, f)": (lambda s, f, z: (z, f), lambda out: out[0]),
    "[f, z]": (lambda s, f, z: [f, z], lambda out: out[1]),
    "relu of f": (lambda s, f, z: (f.relu(), z), lambda out: out[1]),
    "detached f": (lambda s, f, z: (f.detach(), z), lambda out: out[1]),
    "dictionary": (lambda s, f, z: {"states": f, "result": z}, lambda out: out["result"]),
    "nested": (lambda s, f, z: {"aux": {"states": (f, f.relu())}, "out": [z]}, lambda out: out["out"][0]),
    "dataclass": (lambda s, f, z: Output(f, z), lambda out: out.result),
    "named tuple": (lambda s, f, z: Named(f, z), lambda out: out.result),
    "probabilities too": (lambda s, f, z: (f, z, z.softmax(1)), lambda out: out[1]),
    "probabilities first": (lambda s, f, z: (z.softmax(1), z, f), lambda out: out[1]),
    "scaled": (lambda s, f, z: (f, 3 * z), lambda out: out[1]),
    "called logits": (lambda s, f, z: {"other": s.other(f), "logits": z}, lambda out: out["logits"]),
    "map of features": (lambda s, f, z: (f.reshape(len(f), -1, 1, 1), z), lambda out: out[1]),
}


@pytest.mark.parametrize("width", [K, 32])
@pytest.mark.parametrize("form", FORMS)
def test_of_features_and_logits_the_logits_are_the_scores(form: str, width: int) -> None:
    made, logits = FORMS[form]
    network = fitted(Several(made, width), logits)
    for data in ((X, Y), DataLoader(TensorDataset(X, Y), batch_size=100)):
        for how in ({}, {"classes": K}):
            record = ll.probe(network, data, progress=False, **how)
            assert record.accuracy == 1.0
            assert record.sites[-1].values["ncc_mismatch"] < 0.05
            found = record.sites[-1].values.get("nc3")
            assert (found is None) == (form == "scaled")  # behind the classifier there is no classifier
    assert ll.sites(network, X).classes == K


def test_frozen_networks_are_left_frozen_and_without_gradients() -> None:
    made, logits = FORMS["(f, z)"]
    network = fitted(Several(made), logits)
    network.zero_grad()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    assert ll.probe(network, (X, Y), progress=False).accuracy == 1.0
    assert not any(p.requires_grad or p.grad is not None for p in network.parameters())


AMBIGUOUS = {
    "two heads": lambda s, f, z: (s.other(f), z),
    "halves of one layer": lambda s, f, z: z.expand(2, *z.shape).clone().unbind(0),
    "a head on the logits": lambda s, f, z: (z, z.mean(1, keepdim=True) * s.other.weight.sum()),
}


@pytest.mark.parametrize("form", AMBIGUOUS)
def test_where_it_is_not_clear_the_user_is_asked(form: str) -> None:
    network = Several(AMBIGUOUS[form])
    with pytest.raises(CaptureError, match=r"which output are the class scores\? The model returns \[0\] .*scores="):
        ll.probe(network, (X, Y), classes=K, progress=False)
    chosen = [ll.probe(network, (X, Y), classes=K, scores=i, progress=False).accuracy for i in (0, -2)]
    assert chosen[0] == chosen[1]
    record = ll.probe(network, (X, Y), scores=None, progress=False)
    assert record.accuracy is None
    assert record.column("ncc_mismatch") == [None] * len(record.sites)


def test_of_two_heads_the_one_with_as_many_columns_as_classes_are_the_scores() -> None:
    made, logits = (lambda s, f, z: (f @ s.other.weight[:3].T, z)), (lambda out: out[1])
    network = fitted(Several(made), logits)
    assert ll.probe(network, (X, Y), classes=K, progress=False).accuracy == 1.0
    with pytest.raises(CaptureError, match=r"\[0\] \(2, 3\), \[1\] \(2, 10\)"):  # how many classes, nobody said
        ll.probe(network, DataLoader(TensorDataset(X, Y), batch_size=50), progress=False)


def test_scores_are_an_index_a_key_or_a_function() -> None:
    network = fitted(Several(lambda s, f, z: {"a": s.other(f), "b": z}), lambda out: out["b"])
    for scores in ("b", 1, -1, lambda out: out["b"]):
        assert ll.probe(network, (X, Y), scores=scores, progress=False).accuracy == 1.0
    assert ll.probe(network, (X, Y), scores="a", progress=False).accuracy < 0.9
    there = r"The model returns \['a'\] \(2, 10\), \['b'\] \(2, 10\)"
    for wrong, came in (("c", "KeyError"), (2, "IndexError"), (lambda out: out["b"].argmax(1), "a tensor of shape"),
                        (lambda out: 3, "3"), (lambda out: out.c, "AttributeError")):  # fmt: skip
        with pytest.raises(InputError, match=rf"scores: expected class scores \(n, K\) at .*, got .*{came}.*{there}"):
            ll.probe(network, (X, Y), scores=wrong, progress=False)
    for wrong in (True, 1.5, ["a"]):
        with pytest.raises(InputError, match="scores: expected an index, a key, a function of the output, or None"):
            ll.probe(network, (X, Y), scores=wrong, progress=False)


def test_the_site_of_the_logits_is_that_of_the_scores() -> None:
    network = fitted(Several(FORMS["(f, z)"][0]), lambda out: out[1])
    record = ll.probe(network, (X, Y), sites=["layers", "logits"], progress=False)
    with torch.no_grad():
        expected = ll.separation_fuzziness(network(X)[1], Y)
    assert record.sites[-1].values["separation"] == pytest.approx(expected, rel=1e-5)  # float32 forwards in batches


def plain(classes: int, width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))


def says_nothing_of_decisions(record: ll.Record) -> None:
    assert record.accuracy is None
    assert record.test_accuracy is None
    for site in record.sites:
        assert site.values["separation"] is not None
        assert {site.values.get(c) for c in ("ncc_mismatch", "test_ncc_mismatch", "nc3", "nc4", "classifier_norm")} == {
            None
        }
        assert site.values["ncc_accuracy"] is not None
    assert sum(note.startswith("The network's decisions are not looked at (no accuracy") for note in record.notes) == 1
    assert not any(note.startswith("No NC2") for note in record.notes)


@pytest.mark.parametrize(
    "classes", [range(K), list(range(K)), K, [str(k) for k in range(K)], {k: str(k) for k in range(K)}]
)
@pytest.mark.parametrize("memory", [2.0, 1e-4])
def test_nothing_is_said_from_the_logits_of_another_data_set(classes: object, memory: float) -> None:
    how = {"classes": classes, "test": (X, Y), "memory_gib": memory, "uncertainty": False, "progress": False}
    record = ll.probe(plain(1000), (X, Y), **how)
    says_nothing_of_decisions(record)
    assert record.classes == [str(k) for k in range(K)]
    plainly = ll.probe(plain(1000), (X, Y), **{**how, "scores": None})
    says_nothing_of_decisions(plainly)
    assert plainly.column("separation") == pytest.approx(record.column("separation"))


def test_a_network_that_chooses_other_outputs_may_have_got_inputs_of_another_scale() -> None:
    (note,) = [
        note for note in ll.probe(plain(1000), (X, Y), classes=range(K), progress=False).notes if "of all" in note
    ]
    for cause in (
        "the labels are not its own classes",
        "inputs are scaled otherwise",
        "(--normalize)",
        "it is untrained",
    ):
        assert cause in note


def test_some_of_the_own_classes_of_a_trained_network_are_measured_with_its_decisions() -> None:
    network = fitted(plain(K), lambda out: out)
    for classes in ([2, 5, 7], {2: "two", 5: "five", 7: "seven"}, {"two": 2, "five": 5, "seven": 7}):
        record = ll.probe(network, (X, Y), classes=classes, progress=False)
        assert record.accuracy == 1.0
        assert record.sites[-1].values["nc3"] is not None
        assert record.notes == []
    assert record.classes == ["two", "five", "seven"]


def test_a_network_without_a_classifier_is_no_classifier() -> None:
    for record in (
        ll.probe(plain(32), (X, Y), classes=K, progress=False),
        ll.probe(plain(32), (X, Y), scores=None, progress=False),
        ll.probe(plain(5), (X, Y), classes=K, progress=False),
    ):
        says_nothing_of_decisions(record)
        assert len(record.classes) == K
    needs = r"got none of class 10, 11.*output was taken for the scores of 32 classes.* needs scores=None"
    with pytest.raises(LabelError, match=needs):
        ll.probe(plain(32), (X, Y), progress=False)
    with pytest.raises(LabelError, match=r"expected labels in 0 … 4 .* needs scores=None"):
        ll.probe(plain(5), (X, Y), progress=False)
    with pytest.raises(InputError, match=r"how many classes\? scores=None leaves them open, so pass classes=K"):
        ll.probe(plain(32), [(X, Y)], scores=None, progress=False)
    with pytest.raises(LabelError, match=r"below the model's 5 logits, got 9\. .* pass scores=None"):
        ll.probe(plain(5), (X, Y), classes=[8, 9], progress=False)
    assert ll.probe(plain(5), (X, Y), classes=[7, 8], scores=None, progress=False).counts == [30, 30]


def test_what_is_called_features_is_not_taken_for_scores() -> None:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(12, K), nn.Linear(K, K)

        def forward(self, x):
            return {"last_hidden_state": x, "pooler_output": self.two(self.one(x).relu()).tanh()}

    record = ll.probe(Backbone(), (X, Y), progress=False)
    assert record.accuracy is None
    assert record.notes[0].startswith(
        "No NC2 and NC3 of the classifier: the model's output is no tensor of class scores"
    )


class Folder(TensorDataset):
    classes = tuple(f"c{k}" for k in range(K))


class Numbered(TensorDataset):
    class_to_idx: ClassVar = {f"c{k}": k for k in reversed(range(K))}


class ByNumber(TensorDataset):
    class_names: ClassVar = {k: f"c{k}" for k in range(K)}


def test_names_are_found_inside_loaders_and_subsets() -> None:
    network, names = plain(K), list(Folder.classes)
    every = range(len(X))
    for data in (
        Folder(X, Y), Numbered(X, Y), ByNumber(X, Y), DataLoader(Folder(X, Y), batch_size=50), Subset(Folder(X, Y), every),
        DataLoader(Subset(Folder(X, Y), every), batch_size=50), DataLoader(Subset(Subset(ByNumber(X, Y), every), every), 50),
        random_split(Folder(X, Y), [len(X), 0])[0], ConcatDataset([Folder(X, Y), Folder(X, Y)]),
    ):  # fmt: skip
        assert ll.probe(network, data, progress=False).classes == names
    unlike = ConcatDataset([Folder(X, Y), TensorDataset(X, Y)])
    assert ll.probe(network, unlike, progress=False).classes == [str(k) for k in range(K)]


def test_data_that_name_fewer_classes_than_the_model_has_outputs_are_of_another_task() -> None:
    record = ll.probe(plain(1000), DataLoader(Folder(X, Y), batch_size=50), progress=False)
    assert record.classes == list(Folder.classes)
    says_nothing_of_decisions(record)
    with pytest.raises(LabelError, match="got none of class"):  # labels beyond the names: numbers of the model's own
        ll.probe(plain(1000), DataLoader(Folder(X, Y + 500), batch_size=50), progress=False)
    two = ll.probe(plain(2), DataLoader(Folder(X, Y % 2), batch_size=50), progress=False)  # relabeled on the way
    assert two.classes == ["c0", "c1"]
    assert two.accuracy is not None


def test_classes_of_the_wrong_kind_are_told() -> None:
    for wrong, words in (
        ("cat", "expected K, a list of names or of numbers"), (3.5, "expected K, names of all classes, numbers"),
        ({"a": 1, "b": 1}, "a number of its own for each name"), ([1, "a"], "expected K, names of all classes"),
        ([[0, 1], [2]], "expected K, names of all classes"), ([], "at least two different class numbers"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"classes: .*{words}"):
            ll.probe(plain(K), (X, Y), classes=wrong, progress=False)


def test_memory_of_the_dry_run_grows_with_the_number_of_classes() -> None:
    few, many = (ll.sites(plain(K), X, classes=c).rows()[0]["memory"] for c in (None, 1000))
    assert many == 100 * few
    assert ll.sites(plain(K), X, classes=["a", "b"]).rows()[0]["memory"] == few / 5
    assert ll.sites(plain(K), X, classes=[2, 3]).rows()[0]["memory"] == few / 5


@pytest.mark.parametrize(("old", "new"), [("train", "batch"), ("eval", "running")])
def test_old_values_of_batchnorm_name_the_new_ones(old: str, new: str) -> None:
    with pytest.raises(InputError, match=f"batchnorm: '{old}' is now '{new}'."):
        ll.probe(plain(K), (X, Y), batchnorm=old, progress=False)


def test_accuracy_among_chosen_classes_says_what_all_outputs_would_give() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    logits = torch.nn.functional.one_hot(y, 6).float()
    logits[:12, 5] = 2.0  # a fifth of the samples would be given to a class that was not chosen
    network = torch.nn.Linear(11, 6, bias=False)
    network.weight.data = torch.cat([torch.zeros(6, 5), torch.eye(6)], 1)
    record = ll.probe(network, (torch.cat([x, logits], 1), y), classes=[0, 1, 2], progress=False)
    assert record.accuracy == 1.0
    (note,) = [note for note in record.notes if note.startswith("Accuracy")]
    assert note.startswith("Accuracy (100.0%) is among the 3 chosen classes alone; of all its outputs")
    assert note.endswith("chooses that of the label for 80.0%.")


def test_scores_that_decide_badly_are_doubted() -> None:
    network = fitted(Several(lambda s, f, z: (f, z)), lambda out: out[1])

    def notes(**how) -> list[str]:
        record = ll.probe(network, (X, Y), progress=False, **how)
        return [note for note in record.notes if note.startswith("Accuracy is")]

    assert notes() == notes(scores=1) == notes(scores=None) == []
    (wrong,) = notes(scores=0)
    assert "with the scores read from [0], " in wrong
    assert "far below chance (10.0%)" in wrong or "is right on 100.0%: are these scores?" in wrong
    (near,) = notes(scores=lambda out: out[1].roll(1, 0))  # of another sample
    assert near.endswith("is right on 100.0%: are these scores?")
    (below,) = notes(scores=lambda out: -out[1])
    assert below.startswith("Accuracy is 0.0% with the scores read by a function, ")
    assert "far below chance (10.0%): these may be no class scores (scores=), or the labels be numbered" in below


def test_labels_numbered_in_another_order_than_the_outputs_are_doubted() -> None:
    network = fitted(Several(lambda s, f, z: z), lambda out: out)
    record = ll.probe(network, (X, (Y + 1) % K), progress=False)
    assert any(note.startswith("Accuracy is 0.0%") and "far below chance" in note for note in record.notes)
    untrained = ll.probe(Several(lambda s, f, z: z), (X, Y), progress=False)
    assert not [note for note in untrained.notes if note.startswith("Accuracy is")]


def test_the_whole_output_can_be_named_as_scores() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    x, y = torch.randn(60, 6), torch.arange(60) % 2
    alone = ll.probe(network, (x, y), classes=[0, 1], scores="output", progress=False)
    assert alone.accuracy == ll.probe(network, (x, y), classes=[0, 1], scores=lambda out: out, progress=False).accuracy
    assert alone.accuracy == pytest.approx((network(x)[:, :2].argmax(1) == y).float().mean().item())
    assert alone.settings["scores"] == "the output"


class Pooled(nn.Module):
    """A backbone: four convolutional blocks, averaged over space; with a head where that has a width."""

    def __init__(self, end: str = "pooled", head: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)) for _ in range(4)
        )
        self.last = nn.ReLU()
        self.head = nn.Linear(8, head) if head else None
        self.end = end

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        x = self.last(x)
        pooled = x.mean((2, 3))
        if self.end == "map":
            return x.sqrt()
        if self.end == "dictionary":
            return {"last_hidden_state": x, "pooler_output": pooled.tanh()}
        if self.end == "pair":
            return pooled, x
        if self.end == "normalized":
            return F.normalize(pooled)
        if self.end == "probabilities":
            return self.head(pooled).softmax(1)
        return pooled if self.head is None else self.head(pooled)


IMAGES = clouds(120, 36, classes=3, spread=0.3)[0].reshape(-1, 1, 6, 6)
KINDS = torch.arange(len(IMAGES)) % 3


@pytest.mark.parametrize(
    ("end", "read"),
    [
        ("pooled", lambda out: out),
        ("map", lambda out: out.flatten(1)),
        ("dictionary", lambda out: out["pooler_output"]),
        ("pair", lambda out: out[0]),
        ("normalized", lambda out: out),
    ],
)
@pytest.mark.parametrize("sites", ["blocks", "layers"])
def test_the_output_of_a_backbone_is_its_last_row(end, read, sites) -> None:
    network = Pooled(end)
    wanted = ll.measure(read(network(IMAGES)).detach(), KINDS)
    for memory in (2.0, 2e-4):  # kept features, streamed passes in groups
        record = ll.probe(
            network, (IMAGES, KINDS), sites=sites, scores=None, classes=3, memory_gib=memory, uncertainty=False,
            batch_size=16, progress=False,
        )  # fmt: skip
        assert record.settings["one_forward"] == (memory > 1)
        row = record.sites[-1]
        assert (row.name, row.type, row.at, row.branch) == ("output", "output", "output", False)
        assert row.in_fit is (sites == "layers")  # behind the last block there is no weight
        assert row.values["separation"] == pytest.approx(wanted["separation"], rel=1e-5)
        assert [site.name for site in record.sites].count("output") == 1
    plan = ll.sites(network, IMAGES[:4], sites=sites, scores=None)
    assert [site.name for site in plan.sites] == [site.name for site in record.sites]
    assert plan.rows()[-1]["features"] == row.features


def test_an_output_that_is_named_features_is_a_row_without_a_word_about_scores() -> None:
    for end in ("map", "dictionary"):
        record = ll.probe(Pooled(end), (IMAGES, KINDS), progress=False)
        assert record.sites[-1].name == "output"
        assert record.accuracy is None


def test_an_output_that_the_last_row_shows_already_is_none() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(36, 36), nn.ReLU(), nn.Linear(36, 36)) for _ in range(4)
            )

        def forward(self, x):
            x = x.flatten(1)
            for block in self.blocks:
                x = x + block(x)
            return x

    record = ll.probe(Blocks(), (IMAGES, KINDS), scores=None, classes=3, progress=False)
    assert [site.name for site in record.sites] == ["input", *(f"blocks.{i}" for i in range(4))]
    # Averaged over space the last block, behind its activation, is what the pooling gives.
    pooled = ll.probe(Pooled(), (IMAGES, KINDS), reduce="mean", scores=None, classes=3, progress=False)
    assert [site.name for site in pooled.sites] == ["input", *(f"blocks.{i}" for i in range(4)), "output"]
    plain = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    pooled = ll.probe(plain, (IMAGES, KINDS), sites=["0", "2"], reduce="mean", scores=None, classes=3, progress=False)
    assert [site.name for site in pooled.sites] == ["0", "2"]  # chosen sites are those that were chosen
    named = ll.probe(plain, (IMAGES, KINDS), sites=["0", "output"], scores=None, classes=3, progress=False)
    assert [site.name for site in named.sites] == ["0", "output"]


@pytest.mark.parametrize("scores", ["auto", None])
@pytest.mark.parametrize(("end", "head"), [("pooled", 3), ("probabilities", 3), ("pooled", 30), ("probabilities", 30)])
def test_scores_are_no_row_of_a_classifier(end, head, scores) -> None:
    network = Pooled(end, head)
    record = ll.probe(network, (IMAGES, KINDS), classes=3 if head == 3 else [0, 1, 2], scores=scores, progress=False)
    assert "output" not in [site.name for site in record.sites]
    added = ll.probe(
        network, (IMAGES, KINDS), sites=["auto", "output"], classes=[0, 1, 2], scores=scores, progress=False
    )
    assert added.sites[-1].name == "output"
    assert not added.sites[-1].in_fit
    assert [s.name for s in added.sites[:-1]] == [s.name for s in record.sites]


def test_the_last_layer_works_on_what_a_backbone_gives() -> None:
    record = ll.probe(Pooled(), (IMAGES, KINDS), sites="layers", scores=None, classes=3, progress=False)
    rows = [site for site in record.sites if site.in_fit]
    assert workers(rows)[-1] != "output"
    assert ll.find_modules(record)
