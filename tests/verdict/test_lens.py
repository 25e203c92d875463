"""What is said of lenses: how many predictions the last blocks change, and whether the model could end earlier."""

import pytest
from models_by_hand import LINE, model

from layerlaw.pages.language_model import facts
from layerlaw.pages.record_view import read as view_of
from layerlaw.record import Record
from layerlaw.verdict import judge
from layerlaw.verdict.lens import exit_of

ABOUT = {"kind": "logit", "tokens": 2048, "pieces": 40, "frequency_loss": 6.0}


def read(losses: list[float], *, made: float = 0.62, linear: list[float] | None = None, **about) -> Record:
    """A model whose head reads these losses at its blocks, each known to ± 0.02."""
    L = len(losses)
    shares = [made * (i + 1) / (L - 4) if i < L - 4 else made for i in range(L - 1)] + [1.0]
    columns = {"lens_loss": losses, "lens_agreement": shares, "lens_settled": shares, "lens_accuracy": shares}
    columns["lens_excess_se"] = [0.01] * (L - 1) + [0.0]
    if linear is not None:
        columns |= {f"linear_{name}": column for name, column in list(columns.items())} | {"linear_lens_loss": linear}
    return model(LINE[:L], settings={"lens": ABOUT | about}, **columns)


def falling(steps: list[float], last: float = 3.5) -> list[float]:
    """Thirty losses that end in these excesses over the last."""
    return [9.0] * (30 - len(steps) - 1) + [last + step for step in steps] + [last]


def test_the_last_blocks_change_so_many_predictions():
    said = judge(read(falling([2.0, 1.5, 1.2, 0.9])))
    expected = (
        "The last 4 blocks change 38% of the predictions (logit lens, 2,048 tokens): at block 26 the loss is 5.50 nats"
    )
    assert any(line.startswith(expected) for line in said.findings)
    assert "From block 21 of 30 on 50% of the predictions are made for good." in said.findings


def test_a_linear_lens_says_that_it_read_the_first_group_alone():
    record = read(falling([2.0]), linear=falling([1.0]), kind="linear")
    assert "(logit lens, 2,048 tokens of the first group of documents alone):" in str(judge(record))
    record.settings |= {"loss": 4.88, "loss_tokens": 1800}
    assert "its loss 4.88 nats per token (at 1,800 tokens of the whole text)" in facts(view_of(record))


@pytest.mark.parametrize(("blocks", "words"), [(12, "The last 2 blocks change"), (5, "The last block changes")])
def test_an_eighth_of_the_blocks_counts_as_the_last(blocks, words):
    assert words in str(judge(read([4.0] * (blocks - 1) + [3.5])))


def test_predictions_that_only_the_last_block_makes_are_told_so():
    assert (
        "Only at the last block most of the predictions are made for good."
        in judge(read(falling([]), made=0.2)).findings
    )


def test_of_a_model_that_knows_no_more_than_frequencies_nothing_is_made_for_good():
    said = judge(read(falling([0.01], last=6.23))).findings
    assert any("the loss, 6.23 nats, is no lower than how often each token comes gives (6.00)" in line for line in said)
    assert not any("made for good" in line for line in said)


def test_an_exit_is_the_first_block_whose_loss_is_known_to_be_near_the_last():
    # 1 % of 3.5 is 0.035; with an error of 1.96 × 0.01, an excess of 0.015 may be that much, one of 0.016 more
    found = exit_of(read(falling([0.5, 0.016, 0.015, 0.01])), "lens")
    assert (found.block, found.before_last) == (28, 2)
    assert found.excess == pytest.approx(0.015)
    said = str(judge(read(falling([0.5, 0.016, 0.015, 0.01]))))
    assert (
        "Early exit: without the last 2 blocks the model's loss on this text changes by +0.015 ± 0.020 nats (0.4%)."
        in said
    )


def test_a_near_block_behind_which_the_loss_rises_again_is_no_exit():
    assert exit_of(read(falling([0.0, 0.5, 0.0])), "lens").block == 29


def test_without_an_exit_the_cost_of_one_block_is_said_and_a_linear_map_is_proposed():
    said = str(judge(read(falling([1.0, 0.7]))))
    assert "No early exit: one block earlier the loss is already 0.70 nats more (20.0%), by the logit lens." in said
    assert "lens='linear'" in said


def test_a_linear_map_that_reads_earlier_blocks_gives_the_exit():
    record = read(falling([1.0, 0.7]), linear=falling([0.01, 0.01]), kind="linear")
    said = str(judge(record))
    assert "Early exit: without the last 2 blocks, with the linear map before its head, the model's loss" in said
    assert "After a linear map of block 26 to the last one, 38% of the predictions are others" in said
    assert "lens='linear'" not in said
    none = read(falling([1.0, 0.7]), linear=falling([0.3, 0.2]), kind="linear")
    assert "already 0.20 nats more (5.7%), by the linear lens." in str(judge(none))


def test_few_pieces_and_a_model_that_knows_nothing_give_no_exit():
    few = read(falling([0.0, 0.0]), pieces=3)
    assert exit_of(few, "lens") is None
    assert "The lens has read 3 pieces of text: too few to say whether the model could end earlier." in str(judge(few))
    assert "xit" not in str(judge(read(falling([0.0], last=6.5))))


def test_a_lens_that_read_nothing_at_some_block_says_nothing():
    record = read(falling([0.1]))
    record.sites[4].values["lens_loss"] = None
    assert "lens" not in str(judge(record))
    assert "lens" not in str(judge(model(LINE)))
