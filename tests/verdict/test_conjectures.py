"""The conjectures on synthetic curves: right where they hold, where they fail, and where the noise leaves them open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layerlaw.errors import InputError
from layerlaw.record import Record, SiteRow
from layerlaw.verdict.conjectures import ConjectureVerdict, TrainingCourse, check_conjectures, training_course

EPOCHS, SITES = (1, 2, 4, 8, 16), ("a", "b", "c")
FALLING = ((0.6, 0.4, 0.2), (0.5, 0.3, 0.1), (0.4, 0.2, 0.05), (0.3, 0.1, 0.01), (0.2, 0.05, 0.0))
FITTED = (0.5, 0.9, 0.996, 1.0, 1.0)  # the threshold is epoch 4


def course(train=FALLING, test=FALLING, *, right=FITTED, tested=0.8, n=10_000) -> TrainingCourse:
    accuracy = {"train": right, "test": (0.4, 0.6, 0.7, 0.75, tested)}
    return TrainingCourse(EPOCHS, SITES, {"train": train, "test": test}, accuracy, {"train": n, "test": n})


def found(verdicts: list[ConjectureVerdict], number: int, split: str = "train") -> ConjectureVerdict:
    (one,) = [v for v in verdicts if (v.number, v.split) == (number, split)]
    return one


def changed(epoch: int, site: int, value: float, rows=FALLING):
    at = EPOCHS.index(epoch)
    row = (*rows[at][:site], value, *rows[at][site + 1 :])
    return (*rows[:at], row, *rows[at + 1 :])


def test_the_terminal_phase_begins_after_the_threshold() -> None:
    assert (course().interpolation, course().terminal) == (4, (8, 16))
    assert (replace(course(), threshold=0.9).interpolation, replace(course(), threshold=0.9).terminal) == (
        2,
        (4, 8, 16),
    )
    never = course(right=(0.5,) * 5)
    assert (never.interpolation, never.terminal) == (None, ())
    verdicts = check_conjectures(never)
    assert [v.holds for v in verdicts] == [None] * 4
    reached = "no epoch of the terminal phase was measured: train accuracy reached 50.00%; the threshold is 99.50%"
    assert all(f"{reached} (threshold=… changes it)." in v.sentence for v in verdicts)
    (late, *_) = check_conjectures(course(right=(0.5, 0.5, 0.5, 0.9, 0.996)))
    assert "train accuracy reached 99.60%, first at epoch 16, the last one measured; the threshold" in late.sentence


def test_falling_curves_satisfy_both_conjectures_on_both_splits() -> None:
    verdicts = check_conjectures(course())
    assert [(v.number, v.split, v.holds) for v in verdicts] == [
        (7, "train", True), (8, "train", True), (7, "test", True), (8, "test", True)
    ]  # fmt: skip
    assert all(v.counter_examples == () and v.rises == 0 for v in verdicts)
    assert [v.checked for v in verdicts] == [4, 3, 4, 3]  # two terminal epochs × two steps; three layers


def test_what_is_said_of_comparisons_that_go_the_wrong_way() -> None:
    assert found(check_conjectures(course()), 7).sentence.endswith(": none of 4 comparisons goes the wrong way.")
    little = found(check_conjectures(course(changed(16, 1, 0.201))), 7)
    assert little.sentence.endswith(": 1 of 4 comparisons goes the wrong way, inside the noise.")


def test_an_open_conjecture_says_which_layers_had_no_room_to_fall() -> None:
    rows = tuple((0.3, 0.2, 0.0) for _ in EPOCHS)  # nothing falls, the last layer stands at 0
    open_ = found(check_conjectures(course(rows)), 8)
    stood = "c stood at 0% at the threshold and had no room to fall beyond the noise"
    assert open_.sentence.endswith(f": it does not fall at every layer beyond the noise (not at a, b); {stood}.")
    flat = found(check_conjectures(course(tuple((0.0, 0.0, 0.0) for _ in EPOCHS))), 8)
    assert flat.sentence.endswith(
        ": every layer stood at 0% at the threshold and had no room to fall beyond the noise."
    )


def ending(start: int, end: int, n: int) -> ConjectureVerdict:
    """Conjecture 8 where the last layer goes from so many wrong samples at the threshold to so many at the end."""
    return found(check_conjectures(course(changed(16, 2, end / n, changed(4, 2, start / n)), n=n)), 8)


@pytest.mark.parametrize("n", [1000, 1800, 50_000])
def test_a_larger_fall_never_makes_conjecture_8_worse(n: int) -> None:
    """Whether a layer is exempt depends on where it stood at the threshold alone."""
    assert [ending(7, k, n).holds for k in range(7, -1, -1)] == [None] * 5 + [True] * 3
    for start in range(40):
        holds = [ending(start, k, n).holds for k in range(start, -1, -1)]
        assert holds == sorted(holds, key=bool)
        exempt = {"had no room" in ending(start, k, n).sentence for k in range(start + 1)}
        assert exempt == {start <= 2}  # 2 → 0 is inside the noise, 3 → 0 is beyond it
        assert holds[-1] is True


def test_a_conjecture_that_holds_says_which_layers_were_exempt() -> None:
    stood = "c stood at 0.20% at the threshold and had no room to fall beyond the noise"
    for end in (2, 1, 0):
        assert ending(2, end, 1000).sentence.endswith(f": none of 3 comparisons goes the wrong way; {stood}.")
    assert ending(2, 40, 1000).holds is False  # a rise beyond the noise counts
    assert "room" not in ending(3, 0, 1000).sentence
    two = tuple((row[0], 0.001, 0.0) for row in FALLING)
    both = "b and c stood at 0.10% or less at the threshold and had no room to fall beyond the noise."
    assert found(check_conjectures(course(two, n=1000)), 8).sentence.endswith(both)
    svsl = tuple((row[0] / 2, 0.001, 0.0) for row in FALLING)
    verdict = found(check_conjectures(course(two, n=1000), course(svsl, n=1000)), 11)
    assert verdict.holds is True
    assert verdict.sentence.endswith(both.replace("at the threshold", "without SVSL"))


def test_records_by_their_epochs_are_checked_as_they_are() -> None:
    def record(mismatch: float) -> Record:
        rows = [SiteRow(s, "Linear", (4,), 4, values={"ncc_mismatch": mismatch / i}) for i, s in enumerate("ab", 1)]
        return Record("net", rows, ["x", "y"], counts=[50, 50], accuracy=1.0)

    history = {1: record(0.4), 2: record(0.2)}
    assert check_conjectures(history) == check_conjectures(training_course(history))
    assert check_conjectures([history], [history]) == check_conjectures(*[training_course(history)] * 2)
    assert training_course({np.int64(k): one for k, one in history.items()}) == training_course(history)
    with pytest.raises(InputError, match=r"expected records by their epochs, \{1: record, …\}, got the key 'a'"):
        training_course({"a": record(0.4)})


def test_a_rise_with_depth_in_the_terminal_phase_is_a_counter_example() -> None:
    verdict = found(check_conjectures(course(changed(8, 1, 0.4))), 7)
    assert verdict.holds is False
    (example,) = verdict.counter_examples
    assert (example.layer, example.epoch, example.split) == ("b", 8, "train")
    assert example.size == pytest.approx(0.1)
    assert example.standard_error == pytest.approx(((0.4 * 0.6 + 0.3 * 0.7) / 10_000) ** 0.5)
    assert "1 counter-example in 4 comparisons" in verdict.sentence
    assert "b, epoch 8" in verdict.sentence


def test_a_rise_before_the_threshold_is_none() -> None:
    assert found(check_conjectures(course(changed(2, 1, 0.9))), 7).holds is True


def test_a_layer_that_gets_worse_until_the_end_contradicts_conjecture_8_alone() -> None:
    worse = changed(16, 0, 0.5)
    verdicts = check_conjectures(course(worse))
    assert found(verdicts, 7).holds is True
    assert found(verdicts, 8).holds is False
    (example,) = found(verdicts, 8).counter_examples
    assert (example.layer, example.epoch, round(example.size, 6)) == ("a", 16, 0.1)
    assert found(verdicts, 8, "test").holds is True


def test_a_rise_inside_the_noise_of_few_samples_is_no_counter_example() -> None:
    rise = changed(8, 1, 0.32)
    few, many = (found(check_conjectures(course(rise, n=n)), 7) for n in (100, 1_000_000))
    assert (few.holds, few.rises) == (True, 1)
    assert (many.holds, many.rises) == (False, 1)


def test_flat_curves_are_open_not_confirmed() -> None:
    flat = course(((0.3, 0.3, 0.3),) * 5)
    assert [found(check_conjectures(flat), number).holds for number in (7, 8)] == [None, None]


def test_where_nothing_is_left_to_fall_nothing_is_asked() -> None:
    none = tuple((row[0], row[1], 0.0) for row in FALLING)
    assert found(check_conjectures(course(none)), 8).holds is True


def test_the_spread_over_seeds_counts_as_noise() -> None:
    up, down = course(changed(8, 1, 0.5)), course(changed(8, 1, 0.05))
    assert found(check_conjectures([up, up]), 7).holds is False
    verdict = found(check_conjectures([up, down]), 7)  # on average no rise beyond what seeds differ by
    assert verdict.holds is True


def lower(by: float):
    return tuple(tuple(max(0.0, value - by) for value in row) for row in FALLING)


def test_svsl_that_lowers_every_layer_and_gains_satisfies_11_and_12() -> None:
    pairs = [(course(tested=0.80), course(lower(0.1), lower(0.1), tested=t)) for t in (0.82, 0.821, 0.819)]
    verdicts = check_conjectures(*map(list, zip(*pairs, strict=True)))
    assert found(verdicts, 11).holds is found(verdicts, 11, "test").holds is True
    gain = found(verdicts, 12, "test")
    assert gain.holds is True
    assert gain.gain == pytest.approx(0.02)
    low, high = gain.interval
    assert 0 < low < 0.02 < high
    assert "a gain of 2 points, 95 % interval 1.75 to 2.25 points." in gain.sentence
    assert high - low == pytest.approx(2 * 4.302653 * 0.001 / 3**0.5, rel=1e-4)  # t with two degrees of freedom


def test_svsl_that_raises_a_layer_is_contradicted_there() -> None:
    worse = check_conjectures(course(), course(changed(16, 1, 0.2)))
    verdict = found(worse, 11)
    assert verdict.holds is False
    assert (verdict.counter_examples[0].layer, verdict.counter_examples[0].epoch) == ("b", 16)


def test_a_gain_inside_the_noise_is_called_that_and_one_pair_has_no_interval() -> None:
    tests = (0.81, 0.79, 0.805)
    verdicts = check_conjectures([course()] * 3, [course(tested=t) for t in tests])
    verdict = found(verdicts, 12, "test")
    assert verdict.holds is None
    assert "a gain of 0.17 points, 95 % interval −2.42 to 2.75 points, is inside the noise" in verdict.sentence
    assert "no interval" in found(check_conjectures(course(), course(tested=0.9)), 12, "test").sentence
    lost = check_conjectures([course()] * 3, [course(tested=t) for t in (0.7, 0.701, 0.699)])
    assert found(lost, 12, "test").holds is False
    assert found(lost, 12, "test").sentence.endswith("the largest epoch 16, test: 10.00 ± 0.06 points.")


def test_courses_come_from_records_by_epoch() -> None:
    def record(epoch: int) -> Record:
        at = EPOCHS.index(epoch)
        rows = [
            SiteRow(s, "Linear", (4,), 4, values={"ncc_mismatch": m, "test_ncc_mismatch": m + 0.1})
            for s, m in zip(SITES, FALLING[at], strict=True)
        ]
        return Record(
            "toy", rows, ["x", "y"], counts=[40, 60], test_counts=[5, 5], accuracy=FITTED[at], test_accuracy=0.8
        )

    made = training_course({epoch: record(epoch) for epoch in reversed(EPOCHS)})
    assert (made.epochs, made.sites, made.interpolation) == (EPOCHS, SITES, 4)
    assert made.mismatch["train"] == FALLING
    assert made.samples == {"train": 100, "test": 10}
    assert made.at("test", 16) == pytest.approx((0.3, 0.15, 0.1))


def with_raw_input(moves: float = 0.0, at: str = "input") -> dict[int, Record]:
    """Records in which every layer falls, while the mismatch of what enters the first one stays."""
    found = {}
    for i, epoch in enumerate(EPOCHS):
        first = {"ncc_mismatch": 0.35, "separation": 7.0 + moves * i, "ncc_accuracy": 0.6}
        rows = [SiteRow("conv1", "Conv2d", (4,), 4, at=at, values=first)]
        rows += [SiteRow(s, "Linear", (4,), 4, at="input", values={"ncc_mismatch": m, "separation": m, "ncc_accuracy": m})
                 for s, m in zip(SITES, FALLING[i], strict=True)]  # fmt: skip
        how = {"settings": {"step": epoch}, "counts": [5000, 5000], "accuracy": FITTED[i]}
        found[epoch] = Record("net", rows, ["x", "y"], **how)
    return found


def test_the_raw_input_is_no_layer() -> None:
    assert training_course(with_raw_input()).sites == SITES
    assert [v.holds for v in check_conjectures(with_raw_input())] == [True, True]
    moved = {name: training_course(with_raw_input(**how)).sites
             for name, how in {"embedded": {"moves": 0.1}, "behind": {"at": "output"}}.items()}  # fmt: skip
    assert moved == dict.fromkeys(moved, ("conv1", *SITES))  # what a trained embedding gives, and a layer's output


def test_an_open_conjecture_8_names_the_layers_that_did_not_fall() -> None:
    verdict = found(check_conjectures(with_raw_input(moves=0.1)), 8)
    assert verdict.holds is None
    assert verdict.sentence.endswith("it does not fall at every layer beyond the noise (not at conv1).")


def test_records_that_carry_their_step_are_a_course() -> None:
    history = with_raw_input()
    records = list(history.values())
    assert training_course(records) == training_course(records[::-1]) == training_course(history)
    assert check_conjectures(records) == check_conjectures([records]) == check_conjectures(history)
    expected = r"expected \{1: record, …\}, a Monitor or its records, or a lab\.Run or its measurements, got"
    for wrong, came in ((records[0], "Record"), ([1], "list with none or others"), (None, "NoneType")):
        with pytest.raises(InputError, match=f"{expected} {came}"):
            training_course(wrong)
    with pytest.raises(InputError, match=f"{expected} Record"):
        check_conjectures(records[0])
    with pytest.raises(InputError, match=f"{expected} int"):
        check_conjectures(3)
    with pytest.raises(InputError, match=r'its own epoch as settings\["step"\], got 1 twice'):
        training_course(records[:1] * 2)
    with pytest.raises(InputError, match=r"got none\. Give \{1: record, …\} instead"):
        training_course([replace(records[0], settings={})])


def test_bad_courses_are_answered() -> None:
    with pytest.raises(InputError, match="expected rising epochs"):
        replace(course(), epochs=(1, 2, 4, 8, 8))
    with pytest.raises(InputError, match="3 numbers at each of 5 epochs"):
        course(FALLING[:4])
    with pytest.raises(InputError, match=r"shares from 0 to 1 of train samples, got 1\.5"):
        course(changed(8, 0, 1.5))
    with pytest.raises(InputError, match="pairs of trainings"):
        check_conjectures([course()] * 2, [course()])
    with pytest.raises(InputError, match="same epochs and sites, got none"):
        check_conjectures([])
    renamed = replace(course(), sites=("a", "b", "d"))
    for arguments in (([course(), renamed],), (course(), renamed)):
        with pytest.raises(InputError, match="got the sites a, b, c and a, b, d"):
            check_conjectures(*arguments)
    with pytest.raises(InputError, match="records by their epochs"):
        training_course({})


@pytest.mark.parametrize("wrong", [98, -1, 0, "a", True, float("nan"), None])
def test_a_threshold_is_a_share(wrong: object) -> None:
    with pytest.raises(InputError, match=r"threshold: expected a share above 0 and at most 1 \(98 % is 0\.98\), got"):
        training_course(with_raw_input(), threshold=wrong)
    assert training_course(with_raw_input(), threshold=np.float32(0.98)).interpolation == 4
    assert training_course(with_raw_input(), threshold=1).interpolation == 8
