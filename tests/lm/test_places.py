"""The state of each token is found also where a model pads the text or puts something in front."""

import pytest
import torch
import transformers as tf
from language_models import DEPTH, MASK, VOCABULARY, WIDTH, family, probed, walks
from sklearn.linear_model import LinearRegression
from torch import nn

from layerlaw.errors import CaptureError
from layerlaw.lm.tasks import MaskedTokens

IDS = walks()[:, :45]


class Prompted(nn.Module):
    """Puts so many learned states in front of the text, or behind it."""

    def __init__(self, front=0, back=0):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.front, self.back = (nn.Parameter(torch.randn(n, WIDTH)) for n in (front, back))
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH))

    def forward(self, ids):
        around = (part.expand(len(ids), -1, -1) for part in (self.front, self.back))
        x = torch.cat([next(around), self.table(ids), next(around)], 1)
        for layer in self.layers:
            x = layer(x)
        return x


def residuals(model, **options):
    record = probed(model, IDS, groups=1, progress=False, **options)
    return [site.values["residual"] for site in record.sites]


@pytest.mark.parametrize(("front", "back"), [(4, 0), (0, 5), (3, 2)])
def test_what_stands_around_the_text_is_left_out(front, back):
    plain, prompted = Prompted().double(), Prompted(front, back).double()
    prompted.load_state_dict(plain.state_dict() | {k: v for k, v in prompted.state_dict().items() if k[0] in "fb"})
    assert residuals(prompted) == residuals(plain)


@pytest.mark.parametrize("kind", ["longformer", "big_bird"])
def test_a_model_that_pads_the_text_gives_the_states_of_its_tokens(kind):
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    window = {"longformer": {"attention_window": 16}, "big_bird": {"block_size": 2, "num_random_blocks": 1}}[kind]
    places = {"vocab_size": VOCABULARY, "max_position_embeddings": 140, "pad_token_id": 0}
    torch.manual_seed(0)
    model = (
        tf.AutoModelForMaskedLM.from_config(tf.AutoConfig.for_model(kind, **shape, **window, **places)).double().eval()
    )
    mine = residuals(model, mask_id=MASK, length=45)[-1]
    batch = MaskedTokens(MASK).batch(list(IDS), range(len(IDS)))
    tf.logging.set_verbosity_error()
    with torch.no_grad():
        states = torch.cat(
            [model(part, output_hidden_states=True).hidden_states[-1] for part in batch.inputs["input_ids"].split(1)]
        )
    X, y = states.reshape(-1, 32)[batch.rows], batch.around[1].double()
    assert mine == pytest.approx(1 - LinearRegression().fit(X, y).score(X, y), abs=1e-9)


def test_a_state_that_may_be_of_one_token_or_the_next_is_refused():
    class Late(Prompted):
        """Reads forward, pads, and gives most of a token one place later."""

        def forward(self, ids):
            x = self.table(ids)
            x = nn.functional.pad(0.2 * x, (0, 0, 0, 8)) + nn.functional.pad(x, (0, 0, 1, 7))
            for layer in self.layers:
                x = layer(x)
            return x

    with pytest.raises(CaptureError, match="expected one state of each token"):
        probed(Late(), IDS)


def test_blocks_of_an_encoder_tell_nothing_of_what_was_cut_out():
    with pytest.raises(
        CaptureError, match=r"blocks of the decoder, which predicts what was cut out, got 'encoder.block'"
    ):
        probed(family("t5"), walks(), blocks="encoder.block")


def test_blocks_that_join_tokens_are_told():
    class Pooled(Prompted):
        def forward(self, ids):
            x = self.table(ids)[:, ::2]
            for layer in self.layers:
                x = layer(x)
            return x

    with pytest.raises(CaptureError, match=r"one state of each token, got states \(2, 4\) for tokens \(2, 7\)"):
        probed(Pooled(), IDS)


def test_states_that_are_suddenly_longer_are_told():
    class Sometimes(Prompted):
        def forward(self, ids):
            return super().forward(ids if len(ids) < 5 else torch.cat([ids, ids], 1))

    with pytest.raises(CaptureError, match=r"a state of each token \(7 pieces of 45\), got \(7, 90, 32\)"):
        probed(Sometimes(), IDS)
