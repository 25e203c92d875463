"""The ledger: Markdown whose tables stay tables, whatever stands in them."""

import re

import pytest
from pages_outcomes import bare_outcome, epoch_outcome, law_outcome, nasty_outcome

from layerlaw.errors import InputError
from layerlaw.outcome import Outcome, Row, Table
from layerlaw.pages import ledger_index, ledger_page

ALL = [law_outcome(), epoch_outcome(), bare_outcome()]


def cells(line):
    """The cells of a row, split as Markdown does."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def every_number(page):
    """The rows of the table that has them all."""
    return tables(
        re.search(r"<details><summary>Every number \(\d+ rows?\)</summary>\n\n(.*?)</details>", page, re.S)[1]
    )[0]


def tables(text):
    """Blocks of lines that begin with a pipe."""
    return [[cells(line) for line in block.splitlines()] for block in text.split("\n\n") if block.startswith("|")]


def test_the_index_has_one_row_per_figure():
    head, rule, *rows = tables(ledger_index(ALL, folder="figures"))[0]
    assert head == [
        "figure",
        "what",
        "numbers",
        "directions",
        "other model",
        "remarks",
        "self-checks",
        "not counted",
        "run",
    ]
    assert set(rule) == {"---"}
    assert rows[0] == [
        "[Fig. 1](figures/fig1.md)",
        "The law holds",
        "1 of 3",
        "1 of 1",
        *"––––",
        "NVIDIA H200, 21 min 24 s",
    ]
    assert rows[1][:4] == ["[Fig. S4](figures/s4.md)", "The law emerges", "–", "1 of 1"]
    assert rows[2] == ["[Planes](figures/planes.md)", "Only pictures", *["–"] * 7]
    assert ledger_index(ALL).endswith("In all, 1 of 3 numbers and 2 of 2 directions reproduced, in 3 figures.")


def test_what_chance_passes_is_shown_but_not_counted():
    rows = [
        Row("law", "law", 1.0, reproduced=True, tolerance="> half of the seeds", kind="direction", chance=0.007),
        Row("r", -0.99, -0.991, reproduced=True, tolerance="−0.99 ± 0.01", kind="number", chance=0.43),
        Row("PR", "0.9 (reference)", 0.9, reproduced=False, kind="self-check", chance=0.0),
    ]
    outcome = Outcome("fig1", "The law", rows, ())
    words = "1 of 1 direction and 0 of 1 self-check reproduced (1 row not counted: chance passes it)"
    assert ledger_page(outcome).startswith(f"# Fig. 1 · The law\n\n{words}.")
    assert tables(ledger_index([outcome]))[0][2][2:8] == ["–", "1 of 1", "–", "–", "0 of 1", "1"]
    (head, _, *lines), *_ = tables(ledger_page(outcome))
    assert head[3:] == ["reproduced", "accepted", "kind", "by chance"]
    assert [line[3] for line in lines] == ["✓", "(✓)", "✗"]
    assert [line[6] for line in lines] == ["0.7%", "43%", "< 0.1%"]


def test_every_number_of_a_figure_stands_on_its_page():
    page = ledger_page(law_outcome())
    assert page.startswith("# Fig. 1 · The law holds\n\n1 of 3 numbers and 1 of 1 direction reproduced.")
    head, _, *rows = every_number(page)
    assert head == ["", "paper", "ours (mean, range over seeds)", "reproduced", "accepted", "kind", "by chance"]
    assert [head, _, *rows[:4]] == tables(page)[0]  # what the paper says something about, in front of all
    assert rows[1][:5] == ["Adam, 8 layers: ρ", "≈ 0.53", "0.527 [0.525, 0.530]", "✓", "± 0.01"]
    assert rows[2][:5] == ["SGD, 20 layers: ρ", "0.85", "– (diverged in epoch 12)", "✗", "± 0.01"]
    assert rows[3][0] == "final D (the paper does not give its learning rate)"
    assert rows[4] == ["Greenwood p (a control)", "–", "0.00026 [< 0.0001, 0.00046]", "–", "", "", ""]
    assert "- With running statistics r = −0.985.\n" in page
    assert "`layerlaw reproduce fig1` · device: NVIDIA H200 · wall time: 21 min 24 s · seeds: 666, 1, 2" in page


def test_what_did_not_come_out_stands_first_with_what_was_tried():
    page = ledger_page(law_outcome(), tried={"SGD, 20 layers: ρ": "Also not at *other* rates."})
    before = page.split("| ---")[0]
    assert "What did not come out:\n\n- **" in before
    assert "- **SGD, 20 layers: ρ**: paper 0.85, ours none (accepted ± 0.01). Also not at *other* rates.\n" in before
    assert "did not come out" not in ledger_page(epoch_outcome())


def test_supporting_tables_are_folded_and_their_pipes_kept():
    text = ledger_page(law_outcome())
    folded = re.search(r"<details><summary>The grid \(2 rows\)</summary>\n\n(.*?)\n\n</details>", text, re.S)
    assert folded
    rows = tables(folded[1])[0]
    assert rows[2] == ["SGD", "0.001", "666", "−0.9912", "–"]
    assert rows[3] == [r"SGD \| Nesterov", "0.3", "1", "–", "diverged"]
    assert folded[1].endswith("The best is taken.")


def test_where_nothing_is_claimed_the_first_table_is_the_result():
    rows = (Row("a/r", None, -0.9), Row("b/r", None, -0.8))
    first, second = (
        Table(title, ("network", "r"), (("a", -0.9), ("b", -0.8)), "By r.") for title in ("The laws", "All")
    )
    page = ledger_page(Outcome("conv", "x", rows, (), (first, second)))
    assert "**The laws**\n\n| network | r |" in page
    assert (
        page.index("**The laws**") < page.index("<details><summary>All (2 rows)") < page.index("Every number (2 rows)")
    )
    assert "<details>" not in ledger_page(Outcome("conv", "x", rows, ()))


@pytest.mark.parametrize("outcome", [*ALL, nasty_outcome(), law_outcome(quick=True)])
def test_all_rows_of_a_table_have_the_same_cells(outcome):
    found = tables(ledger_index([outcome]) + "\n\n" + ledger_page(outcome))
    assert found
    for table in found:
        assert len({len(row) for row in table}) == 1


def test_text_is_neither_markup_nor_markdown():
    text = re.sub(
        r"`[^`]*`", "", ledger_index([nasty_outcome()]) + ledger_page(nasty_outcome())
    )  # within code nothing is read
    assert "<script" not in text
    assert "<img" not in text
    assert r"\$x\$" in text
    outcome = Outcome(
        "fig1", "*bold* _it_ a_b [x](y) [0.1, 0.2] &lt; 3 < 4", (Row("r", "`a|b`", 1.0),), (), notes=("# no heading",)
    )
    text = ledger_page(outcome)
    assert r"\*bold\* \_it\_ a_b [x\](y) [0.1, 0.2] &amp;lt; 3 < 4" in text
    assert r"\`a\|b\`" in text
    assert "- \\# no heading" in text


def test_a_command_with_a_pipe_stays_code():
    text = ledger_page(Outcome("fig1", "x", (), (), provenance={"command": "a | b `c`"}))
    assert text.endswith("\n\n`` a \\| b `c` ``\n")


def test_a_quick_run_is_called_one_in_both_places():
    assert tables(ledger_index([law_outcome(quick=True)]))[0][2][-1].endswith("quick run")
    assert "**This is a quick run" in ledger_page(law_outcome(quick=True))
    assert "quick" not in ledger_index([law_outcome()]) + ledger_page(law_outcome())


def test_introduction_and_picture_come_before_the_numbers():
    outcome = law_outcome()
    page, caption = ledger_page(outcome, intro="*By* us.", picture="fig1.png"), outcome.sheets[0].caption
    assert caption
    assert page.index(f"![Fig. 1](fig1.png)\n\n{caption}\n\n*By* us.\n\n") < page.index("| paper |")
    assert caption not in ledger_page(outcome, intro="*By* us.")


def test_an_empty_ledger_says_so():
    assert ledger_index([]) == "Nothing has been run yet."


def test_what_is_no_outcome_is_refused():
    with pytest.raises(InputError, match="expected a list of outcomes, got Row"):
        ledger_index([Row("r", 1, 1.0)])


def test_a_table_without_rows_is_still_a_table():
    text = ledger_page(Outcome("fig1", "x", (), (), (Table("empty", ("a", "b"), ()),)))
    assert "| a | b |\n| --- | --- |\n" in text
