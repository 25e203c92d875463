"""Figure S9, quickly."""

import dataclasses
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from experiments_recorded import Quick, quick_fixture

from layerlaw.errors import DataError
from layerlaw.experiments import sentences
from layerlaw.experiments.separation import s9
from layerlaw.experiments.setting import Setting
from layerlaw.measures import separation_fuzziness
from layerlaw.probing import probe
from layerlaw.record import Record, SiteRow

SETTING = Setting(quick=True, progress=False)
quick = quick_fixture("s9")


@pytest.fixture(scope="module")
def network() -> sentences.Classifier:
    return sentences.Classifier(sentences.encoder_of(SETTING, 3, trained=True), 3).eval()


def made(*D: float | None) -> Record:
    return Record("made", [SiteRow(str(i), "", (1,), 1, values={"separation": d}) for i, d in enumerate(D)], ["a", "b"])


@pytest.mark.parametrize("token", ["first", "mean"])
def test_d_is_that_of_the_real_tokens_alone(network: sentences.Classifier, token: sentences.Token) -> None:
    given = sentences.sentence_task(SETTING, 3, 40, 100)
    record = sentences.record_of_network(SETTING, network, given, token)
    features = []
    for ids in given.train.ids[:80]:  # one by one: no padding at all
        with torch.no_grad():
            states = network.encoder(torch.tensor([ids]), output_hidden_states=True).hidden_states
        features.append(torch.stack([s[0, 0] if token == "first" else s[0].mean(0) for s in states]))
    layers = torch.stack(features, 1).double()  # (layers, n, d)
    D = [float(separation_fuzziness(layer, given.train.labels[:80])) for layer in layers[token == "first" :]]
    assert record.column("separation") == pytest.approx(D, rel=1e-3)
    assert record.counts == [40, 40]
    assert record.test_counts == [50, 50]


def test_first_tokens_coincide_in_the_embedded_input(network: sentences.Classifier) -> None:
    batches = sentences.invented(60, seed=0).batches()
    record = probe(network, batches, sites=["encoder.embeddings"], reduce="first", progress=False)
    assert record.column("separation") == [None]


def test_the_measured_sentences_are_balanced_and_the_first() -> None:
    labels = (torch.arange(50) % 5 == 0).long()  # ten of class 1
    chosen = sentences.chosen_of(labels, 8, 30, seed=1)
    assert len(set(chosen.tolist())) == len(chosen) == 30
    assert labels[chosen[:16]].bincount().tolist() == [8, 8]
    assert chosen.tolist() != sentences.chosen_of(labels, 8, 30, seed=2).tolist()


def test_an_epoch_has_every_sentence_once_in_batches_of_like_length() -> None:
    data = sentences.invented(70, seed=0)
    batches = sentences.mixed(data, 8, torch.Generator().manual_seed(0))
    assert sorted(i for batch in batches for i in batch) == list(range(70))
    assert max(map(len, batches)) == 8
    spans = [max(n) - min(n) for batch in batches if (n := [len(data.ids[i]) for i in batch])]
    assert max(spans) <= 4  # of 9


def test_fine_tuning_learns_and_repeats_itself() -> None:
    data = sentences.invented(320, seed=0)
    tuning = sentences.Tuning(320, 6, rate=2e-3)
    found = []
    for _ in range(2):
        model = sentences.Classifier(sentences.encoder_of(SETTING, 5, trained=True), 5)
        sentences.tuned(model, data, tuning, seed=5, device="cpu", progress=False)
        assert not model.training
        found.append(model.head.weight.detach().clone())
    assert torch.equal(*found)
    batch = data.batch(range(320))
    right = model(batch["input_ids"], batch["attention_mask"]).argmax(1) == batch["labels"]
    assert float(right.float().mean()) > 0.75


def test_the_table_of_glue_is_read_and_a_bad_line_is_named() -> None:
    texts, labels = sentences.parsed("sentence\tlabel\na fine \t1\r\nwith\ttab\t0\n\n", "sst2", "train")
    assert (texts, labels.tolist()) == ([("a fine",), ("with\ttab",)], [1, 0])
    expected = r"sst2, dev, line 2: expected 2 columns between tabs, one of them 0 or 1, got 'oh\\t2'"
    with pytest.raises(DataError, match=expected):
        sentences.parsed("sentence\tlabel\noh\t2\n", "sst2", "dev")


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERLAW_DATA", str(tmp_path))
    sentences._minilm.cache_clear()
    with pytest.raises(
        DataError, match="expected a folder minilm/ in the folder that the environment variable LAYERLAW_DATA"
    ):
        s9.run(Setting(progress=False))
    monkeypatch.setattr(sentences, "_minilm", lambda: None)
    with pytest.raises(DataError, match=r"sst2: expected train.tsv \(as in GLUE\) in a folder sst2/"):
        s9.run(Setting(progress=False))


def test_every_kind_has_rows_panels_and_layers(quick: Quick) -> None:
    kinds = ("fine-tuned", "few", "as-is", "untrained")
    for token in ("first", "mean"):
        for kind in kinds:
            for what in (*s9.LAW, "dev-holds", "dev-ncc-accuracy", "last-D-over-permuted"):
                assert quick.row(f"{token}/{kind}/{what}")
    judged = {row.name: row for row in quick.outcome.rows if row.reproduced is not None}
    assert set(judged) == {"first/few/holds", "mean/few/holds"}  # one sentence of the paper, one reading
    assert quick.row("mean/fine-tuned/holds").paper == "no law"
    assert {row.kind for row in judged.values()} == {"other model"}  # MiniLM is not the paper's BERT
    assert all(row.chance < 0.2 for row in judged.values())
    told = [
        note
        for note in quick.outcome.notes
        if "on the dev sentences in 0" in note or "on the dev sentences in 1" in note
    ]
    assert len(told) == 8  # every cell says how many, for training and dev sentences
    assert quick.row("few/train-accuracy").ours > quick.row("few/dev-accuracy").ours - 0.1
    assert [len(sheet.panels) for sheet in quick.outcome.sheets] == [8, 8, 2]
    assert len(quick.table("Every layer").rows) == 4 * (6 + 7)
    assert quick.setting.networks == 4
    assert quick.setting.used_seeds == {666}


def test_a_law_would_be_reported() -> None:
    values = {"test_separation": 1.0, "ncc_accuracy": 0.5, "test_ncc_accuracy": 0.5}
    straight, bent = made(32, 16, 8, 4, 2, 1), made(32, 31, 30, 29, 28, 1)
    for record in (straight, bent):
        for site in record.sites:
            site.values |= values
    rows = {row.name: row for row in s9._rows("first", "few", [straight, straight, bent])}
    assert rows["first/few/holds"].ours == pytest.approx(2 / 3)
    assert rows["first/few/holds"].reproduced is False
    assert rows["first/few/evenness"].high == pytest.approx(1)
    rows = {row.name: row for row in s9._rows("first", "few", [bent, bent, straight])}
    assert rows["first/few/holds"].reproduced is True
    rows = {row.name: row for row in s9._rows("first", "as-is", [straight])}
    assert rows["first/as-is/holds"].reproduced is None


def test_no_law_where_d_is_not_defined() -> None:
    assert s9.law_of(made(None, 2.0, 1.0)) is None
    assert s9.law_of(made(4.0, 2.0, 1.0)).rho == pytest.approx(0.5)


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = dataclasses.replace(SETTING, folder=tmp_path)
    given = sentences.sentence_task(setting, 1, 20, 40)
    first = sentences.measured(setting, "few", 1, given, sentences.Tuning(40, 1))
    assert len(list(tmp_path.glob("*.json"))) == 2
    monkeypatch.setattr(sentences, "tuned", None)  # it is not called again
    again = sentences.measured(setting, "few", 1, given, sentences.Tuning(40, 1))
    assert {token: record.column("separation") for token, record in again.items()} == {
        token: record.column("separation") for token, record in first.items()
    }
