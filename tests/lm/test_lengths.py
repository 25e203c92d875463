"""How long pieces are: as the model says, as its text part says, or as long as it does not fail."""

import types

import pytest
import torch
import transformers
from language_models import MASK, VOCABULARY, WIDTH, family, probed, walks


def test_pieces_are_as_long_as_the_model_has_places():
    record = probed(family("gpt2"), walks(20, 300))
    assert record.settings["length"] == 128
    assert any("128 tokens instead of 512" in note for note in record.notes)
    bert = family("bert")
    assert probed(bert, walks(30, 600), mask_id=MASK).settings["length"] == 512


class Limited(torch.nn.Module):
    """As nanoGPT is written: an assertion ends a forward longer than its places, and only a configuration says so."""

    def __init__(self, block_size, said=True):
        super().__init__()
        torch.manual_seed(0)
        self.config = types.SimpleNamespace(vocab_size=VOCABULARY, **({"block_size": block_size} if said else {}))
        self.block_size = block_size
        self.table, self.at = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(block_size, WIDTH)
        self.h = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in "abc")

    def forward(self, idx):
        assert idx.shape[1] <= self.block_size, f"Cannot forward sequence of length {idx.shape[1]}"
        x = self.table(idx) + self.at(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return x


@pytest.mark.parametrize("size", [64, 101])
def test_a_length_that_the_model_says_or_fails_beyond_is_found(size):
    told, tried = (probed(Limited(size, said), walks(20, 300), groups=1) for said in (True, False))
    assert told.settings["length"] == tried.settings["length"] == size
    assert f"Pieces have {size} tokens instead of 512: the model has no places for more." in told.notes
    assert any(f"{size} tokens instead of 512: it fails on longer ones (AssertionError: Can" in n for n in tried.notes)
    assert [s.values for s in told.sites] == [s.values for s in tried.sites]


def test_a_text_shorter_than_what_the_model_fails_on_is_read_whole():
    record = probed(Limited(101, said=False), walks(60, 64), groups=1)
    assert record.settings["length"] == 64
    assert not any("instead of 512" in note for note in record.notes)


def test_the_places_of_an_image_are_no_limit_of_the_text():
    class WithEyes(Limited):
        def __init__(self):
            super().__init__(512)
            self.vision_tower = torch.nn.Module()
            self.vision_tower.position_embedding = torch.nn.Embedding(9, WIDTH)

    record = probed(WithEyes(), walks(20, 300), groups=1)
    assert record.settings["length"] == 300
    shape = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision = {**shape, "image_size": 8, "patch_size": 4}
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", "vocab_size": VOCABULARY, "num_key_value_heads": 2, **shape},
        vision_config={"model_type": "clip_vision_model", "projection_dim": 8, **vision},
        image_token_index=VOCABULARY - 1,
    )
    torch.manual_seed(0)
    record = probed(transformers.LlavaForConditionalGeneration(config).eval(), walks(20, 300), groups=1)
    assert record.settings["length"] == 300
    assert "language_model.layers" in record.settings["blocks"]


def calls_of_long_pieces(model, last):
    """How many of the calls of the last block were for a piece of the full length and a batch of one, as in a trial."""
    seen = []
    plain = last.forward
    last.forward = lambda x, **kwargs: (seen.append(tuple(x.shape[:2])), plain(x, **kwargs))[1]
    record = probed(model, walks(20, 300), groups=1)
    return sum(shape[0] == 1 and shape[1] > 16 for shape in seen), record


def test_the_trial_of_a_long_piece_ends_behind_the_first_block_where_the_model_says_its_length():
    stopped, short = calls_of_long_pieces(told := Limited(101), told.h[-1])
    whole, long = calls_of_long_pieces(tried := Limited(101, said=False), tried.h[-1])
    assert stopped == 0 < whole
    assert [site.values for site in short.sites] == [site.values for site in long.sites]


def test_a_model_on_which_others_have_hooks_is_tried_to_the_end_of_its_forward():
    entered, left = [], []
    model = Limited(101)
    model.register_forward_pre_hook(lambda *_: entered.append(1))
    model.register_forward_hook(lambda *_: left.append(1))
    calls, _ = calls_of_long_pieces(model, model.h[-1])
    assert calls > 0
    assert len(entered) == len(left)
