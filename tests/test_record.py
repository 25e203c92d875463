"""Records: round trips, whole files or none, and files that are something else."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerlaw.errors import DataError, InputError, LayerlawError
from layerlaw.files import write_whole
from layerlaw.law import fit_law
from layerlaw.record import LANGUAGE_MODEL, VERSION, Record, SiteRow

FIXTURE = Path(__file__).parent / "fixtures" / "record_v1.json"


def record() -> Record:
    sites = [
        SiteRow(
            name=f"fc{i}",
            type="Linear",
            shape=(3, 4 - i),
            features=3 * (4 - i),
            in_fit=i < 3,
            values={"separation": 8.0 / 2**i, "ncc_accuracy": 0.9 + 0.03 * i, "cdnv": None if i == 1 else 0.5},
            by_class={"separation": [1.0, None]},
            plane=[[0.0, 1.5], [-2.0, 0.25]],
        )
        for i in range(4)
    ]
    return Record(
        name="toy ρ",
        sites=sites,
        classes=["a", "ü"],
        counts=[10, 12],
        test_counts=[3, 4],
        accuracy=0.9,
        test_accuracy=0.8,
        plane_labels=[0, 1],
        settings={"batchnorm": "running", "batch_size": 128, "nested": {"list": [1, 2.5, "x", None, True]}},
        provenance={"layerlaw": "0.1.0"},
        notes=["a note"],
    )


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_equal(tmp_path: Path) -> None:
    path = record().save(tmp_path / "r.json")
    assert Record.load(path) == record()
    assert Record.load(str(path)) == record()
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_comes_back_equal_through_plain_data() -> None:
    assert Record.from_dict(json.loads(json.dumps(record().to_dict()))) == record()


def test_saving_over_a_file_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    record().save(path)
    replace(record(), name="second").save(path)
    assert Record.load(path).name == "second"
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_readable_as_utf8(tmp_path: Path) -> None:
    assert "toy ρ" in record().save(tmp_path / "r.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("step", ["replace", "chmod", "write"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch, step: str) -> None:
    path = record().save(tmp_path / "r.json")
    before = path.read_bytes()

    def fail(*_args, **_kwargs):
        raise OSError("disk full")

    if step == "write":
        monkeypatch.setattr(Path, "write_bytes", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(DataError, match="disk full"):
        replace(record(), name="second").save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_save_leaves_nothing_behind(tmp_path: Path, monkeypatch) -> None:
    def interrupt(*_args) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        record().save(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the folder .*nowhere to exist\. Create it first"):
        record().save(tmp_path / "nowhere" / "r.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"r\.json: expected a layerlaw record, found nothing there"):
        Record.load(tmp_path / "r.json")


def test_a_folder_is_no_record_file(tmp_path: Path) -> None:
    with pytest.raises(LayerlawError):
        Record.load(tmp_path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_told_from_a_record(tmp_path: Path, part: float) -> None:
    path = record().save(tmp_path / "r.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(
        DataError, match=r"ends or breaks early .* It may be truncated; copy it again or repeat the probe"
    ):
        Record.load(path)


def test_an_empty_or_binary_file_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for content in (b"", b"\xff\xfe\x00\x80"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="expected a layerlaw record"):
            Record.load(path)


@pytest.mark.parametrize("content", ["[1, 2]", "{}", '"text"', "null", '{"format": "other"}'])
def test_other_json_is_no_record(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(DataError, match="expected a layerlaw record, got other JSON"):
        Record.load(path)


@pytest.mark.parametrize("version", [VERSION + 1, 99])
def test_a_record_of_a_newer_version_asks_for_an_upgrade(version: int) -> None:
    data = record().to_dict() | {"version": version}
    with pytest.raises(
        DataError, match=rf"version ≤ {VERSION}, got version {version}\. .*pip install --upgrade layerlaw"
    ):
        Record.from_dict(data)


@pytest.mark.parametrize("version", [None, "1", 1.5])
def test_a_version_that_is_no_whole_number_is_refused(version) -> None:
    with pytest.raises(DataError, match="expected a layerlaw record of version"):
        Record.from_dict(record().to_dict() | {"version": version})


@pytest.mark.parametrize("gone", ["sites", "classes", "name"])
def test_a_missing_field_is_refused(gone: str) -> None:
    data = record().to_dict()
    del data[gone]
    with pytest.raises(DataError, match="a field is missing or wrong"):
        Record.from_dict(data, where="r.json")


@pytest.mark.parametrize("sites", [5, ["text"], [{"name": "x"}], [{**record().to_dict()["sites"][0], "shape": 3}]])
def test_wrong_sites_are_refused(sites) -> None:
    with pytest.raises(DataError, match="a field is missing or wrong"):
        Record.from_dict(record().to_dict() | {"sites": sites})


def test_unknown_fields_are_ignored() -> None:
    data = record().to_dict() | {"future": 1}
    data["sites"][0]["future"] = 2
    assert Record.from_dict(data) == record()


def test_version_one_stays_loadable() -> None:
    old = Record.load(FIXTURE)
    assert old.name == "fashion-mnist, 3 layers — ρ"
    assert [s.name for s in old.sites] == ["input", "body.0.relu", "body.1.relu", "logits"]
    assert old.sites[0].shape == (1, 10, 10)
    assert old.sites[3].in_fit is False
    assert old.classes == ["T-shirt", "Trouser"]
    assert old.column("separation_corrected") == [None, 12.5, 3.7, None]
    assert old.law().values == (36.814, 11.552, 3.643)
    assert old.sites[0].by_class["separation"] == [30.5, 43.128]
    assert old.plane_labels == [0, 1]
    assert old.test_accuracy == 0.801
    assert old.settings["batchnorm"] == "batch"
    assert old.effective_depth() == 2


def test_a_language_model_of_version_one_stays_loadable_and_its_words_are_no_classes() -> None:
    old = Record.load(FIXTURE.with_name("record_v1_language_model.json"))
    assert old.kind == LANGUAGE_MODEL
    assert (old.words, old.classes, old.plane_names) == (["3", "5"], [], ["3", "5"])
    assert old.plane_labels == [0, 1, 0, 0]
    assert old.settings["normalize"] == "fresh"
    assert old.leading == "residual_held_out"
    assert old.numbers == ["in", "1", "2", "3"]
    assert old.law("residual").quantity == "PR"
    assert repr(old) == "<Record 'LlamaForCausalLM': 4 sites, 456 tokens>"
    assert old.to_dict()["kind"] == "language model"
    assert Record.from_dict(old.to_dict()) == old


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        DataError, match="expected a record of a classifier, language model or regression, got one of kind 'poem'"
    ):
        Record.from_dict(record().to_dict() | {"kind": "poem"}, where="r.json")


def test_version_one_comes_back_equal_from_a_file_of_today(tmp_path: Path) -> None:
    old = Record.load(FIXTURE)
    assert Record.load(old.save(tmp_path / "now.json")) == old


def test_what_is_not_finite_is_stored_as_null(tmp_path: Path) -> None:
    strange = record()
    strange.sites[0].values |= {"separation": math.nan, "cdnv": math.inf, "extra": -math.inf}
    strange.sites[0].by_class["separation"] = [math.nan, 2.0]
    strange.settings["threshold"] = math.inf
    path = strange.save(tmp_path / "r.json")
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the file"))
    back = Record.load(path)
    assert back.sites[0].values["separation"] is None
    assert back.sites[0].values["cdnv"] is None
    assert back.sites[0].values["extra"] is None
    assert back.sites[0].by_class["separation"] == [None, 2.0]
    assert back.settings["threshold"] is None


def test_numpy_doubles_are_numbers(tmp_path: Path) -> None:
    r = record()
    r.sites[0].values["separation"] = np.float64(3.5)
    assert Record.load(r.save(tmp_path / "r.json")).sites[0].values["separation"] == 3.5


def test_write_whole_writes_text(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "page.html", "ρ ≤ 1")
    assert path.read_text(encoding="utf-8") == "ρ ≤ 1"


# --- columns, law, depth --------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_they_first_appear() -> None:
    r = record()
    r.sites[2].values["late"] = 1.0
    assert r.columns == ["separation", "ncc_accuracy", "cdnv", "late"]
    assert r.column("late") == [None, None, 1.0, None]


def test_an_unknown_column_lists_the_choices() -> None:
    with pytest.raises(
        InputError, match=r"record 'toy ρ': expected one of the columns, got 'sep'. There are separation, "
    ):
        record().column("sep")


def test_the_law_goes_through_the_sites_of_the_fit_only() -> None:
    assert record().law().values == (8.0, 4.0, 2.0)
    with pytest.raises(InputError, match="expected a column that is 0 at collapse, got 'ncc_accuracy'"):
        record().law("ncc_accuracy")


def test_the_law_of_an_unknown_or_incomplete_column_is_refused() -> None:
    with pytest.raises(InputError, match="expected one of the columns"):
        record().law("nothing")
    with pytest.raises(InputError, match="expected cdnv at every site of the fit, none at 'fc1'"):
        record().law("cdnv")


def test_the_law_of_too_few_or_collapsed_sites_is_refused() -> None:
    one = replace(record(), sites=record().sites[:1])
    with pytest.raises(InputError, match="at least 2 points"):
        one.law()
    with pytest.raises(InputError, match="expected one of the columns"):
        replace(record(), sites=[]).law()
    collapsed = record()
    collapsed.sites[2].values["separation"] = 0.0
    with pytest.raises(InputError, match="expected positive, finite numbers"):
        collapsed.law()


def test_no_site_in_the_fit_is_refused() -> None:
    r = record()
    for site in r.sites:
        site.in_fit = False
    with pytest.raises(InputError, match="at least 2 points"):
        r.law()


@pytest.mark.parametrize(("epsilon", "depth"), [(0.2, 0), (0.08, 1), (0.05, 2), (0.02, 3), (0.0, None)])
def test_effective_depth_is_the_first_site_with_few_errors(epsilon: float, depth: int | None) -> None:
    assert record().effective_depth(epsilon) == depth


@pytest.mark.parametrize("right", [990, 99, 9900])
def test_effective_depth_counts_an_error_of_exactly_epsilon(right: int) -> None:
    """Error ≤ ε: 990 of 1000 right is an error of 0.01."""
    n = {990: 1000, 99: 100, 9900: 10_000}[right]
    r = record()
    for site, accuracy in zip(r.sites, [0.5, right / n, 0.999, 1.0], strict=True):
        site.values["ncc_accuracy"] = accuracy
    assert r.effective_depth(0.01) == 1


def test_effective_depth_without_accuracies_does_not_exist() -> None:
    r = record()
    for site in r.sites:
        del site.values["ncc_accuracy"]
    assert r.effective_depth() is None
    assert replace(r, sites=[]).effective_depth() is None


# --- tables ---------------------------------------------------------------------------------------------------------


def test_the_table_has_one_row_per_site_in_depth_order() -> None:
    pytest.importorskip("pandas")
    frame = record().to_pandas()
    assert list(frame.columns) == [
        "site",
        "type",
        "at",
        "features",
        "in_fit",
        "branch",
        "separation",
        "ncc_accuracy",
        "cdnv",
    ]
    assert frame["site"].tolist() == ["fc0", "fc1", "fc2", "fc3"]
    assert frame["features"].tolist() == [12, 9, 6, 3]
    assert frame["features"].dtype.kind == "i"
    assert frame["in_fit"].dtype == bool
    assert all(frame[c].dtype == "float64" for c in ("separation", "ncc_accuracy", "cdnv"))
    assert frame["separation"].tolist() == [8.0, 4.0, 2.0, 1.0]
    assert math.isnan(frame["cdnv"][1])


def test_a_column_of_nothing_is_a_column_of_nan() -> None:
    pytest.importorskip("pandas")
    r = record()
    for site in r.sites:
        site.values["nc4"] = None
    assert r.to_pandas()["nc4"].isna().all()
    assert r.to_pandas()["nc4"].dtype == "float64"


def test_a_rank_is_an_integer_and_full_rank_a_truth_value() -> None:
    pytest.importorskip("pandas")
    r = record()
    for i, site in enumerate(r.sites):
        site.values |= {
            "rank": float(i),
            "full_rank": float(i > 1),
            "test_rank": None if i else 3.0,
            "test_full_rank": None,
        }
    frame = r.to_pandas()
    assert frame["rank"].dtype == "int64"
    assert frame["rank"].tolist() == [0, 1, 2, 3]
    assert frame["full_rank"].dtype == bool
    assert frame[frame["full_rank"]]["site"].tolist() == ["fc2", "fc3"]
    assert frame["test_rank"].dtype == "Int64"  # of pandas' own kind where some are missing
    assert frame["test_rank"][0] == 3
    assert frame["test_rank"].isna().sum() == 3
    assert frame["test_full_rank"].dtype == "float64"


def test_an_empty_record_is_an_empty_table() -> None:
    pytest.importorskip("pandas")
    assert len(Record(name="empty", sites=[], classes=[]).to_pandas()) == 0


def test_a_record_reads_as_one_line() -> None:
    one = Record(name="one", sites=record().sites[:1], classes=["a"], counts=[1])
    assert repr(one) == "<Record 'one': 1 site, 1 class, 1 sample>"
    assert repr(record()) == "<Record 'toy ρ': 4 sites, 2 classes, 22 samples>"
    lines = str(record()).splitlines()
    assert lines[0] == repr(record())
    assert lines[1].split() == ["site", "features", "law", "separation", "ncc_accuracy", "cdnv"]
    assert len(lines) == 6


def test_the_notebook_table_escapes_what_it_shows() -> None:
    r = record()
    r.name = "<script>alert(1)</script>"
    r.sites[0].name = "<script>alert(2)</script>"
    page = r._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;script&gt;alert(2)" in page


def test_a_file_with_text_for_numbers_cannot_put_a_script_into_the_notebook() -> None:
    data = record().to_dict()
    data["sites"][0]["features"] = "<script>alert(3)</script>"
    try:
        page = Record.from_dict(data)._repr_html_()
    except DataError:
        return
    assert "<script" not in page


def test_the_notebook_table_shows_what_exists() -> None:
    page = record()._repr_html_()
    assert ">separation</th>" in page
    assert ">nc1</th>" not in page
    assert ">8</td>" in page
    assert page.count("<tr>") == 5
    r = record()
    r.sites[1].values["separation"] = None
    assert ">–</td>" in r._repr_html_()


# Language models.


def language_model(**columns: list[float | None]) -> Record:
    """The embedded input, then blocks."""
    length = len(next(iter(columns.values())))
    sites = [
        SiteRow(f"h.{i}", "Block", (8,), 8, in_fit=i > 0, values={name: c[i] for name, c in columns.items()})
        for i in range(length)
    ]
    return Record(name="lm", kind="language model", classes=[], counts=[12_000], sites=sites)


def test_held_out_residuals_lead_where_there_are_any() -> None:
    inside, held = [0.95, 0.9, 0.8, 0.7], [1.0, 0.95, 0.9, 0.8]
    assert language_model(residual=inside).leading == "residual"
    assert language_model(residual=inside, residual_held_out=[None] * 4).leading == "residual"
    record = language_model(residual=inside, residual_held_out=held)
    assert record.leading == "residual_held_out"
    assert record.law().values == (0.95, 0.9, 0.8)  # the embedded input is no point
    assert record.law().quantity == "PR"
    assert Record(name="c", sites=[], classes=[]).leading == "separation"


def test_the_last_sites_can_be_left_out_of_the_law() -> None:
    record = language_model(residual=[0.95, 0.9, 0.8, 0.7, 0.75])
    assert record.law("residual", drop_last=1).values == (0.9, 0.8, 0.7)
    assert record.law("residual", drop_last=2) == replace(fit_law([0.9, 0.8], quantity="PR"), step="block")
    for too_many in (3, 4, 5, 50):
        with pytest.raises(InputError, match="at least 2 points"):
            record.law("residual", drop_last=too_many)
    with pytest.raises(InputError, match="drop_last ≥ 0, got -1"):
        record.law("residual", drop_last=-1)


@pytest.mark.parametrize("column", ["rank", "residual_log_se", "residual_held_out_log_se", "residual_onehot_log_se"])
def test_ranks_and_standard_errors_carry_no_law(column: str) -> None:
    with pytest.raises(InputError, match="0 at collapse"):
        language_model(**{column: [0.1, 0.2, 0.1]}).law(column)


@pytest.mark.parametrize("column", ["residual_embedding", "residual_rank_held_out", "residual_held_out_untrained"])
def test_every_residual_is_one_of_the_same_kind(column: str) -> None:
    assert language_model(**{column: [0.9, 0.8, 0.7]}).law(column).quantity == "PR"


def test_errors_of_the_law_come_from_the_groups_left_out() -> None:
    record = language_model(residual=[0.95, 0.9, 0.8, 0.75])
    assert record.law_errors("residual") is None
    for site in record.sites:
        value = site.values["residual"] or 0.0
        site.left_out["residual"] = [value * f for f in (1.01, 0.99, 1.0)]
    record.sites[-1].left_out["residual"] = [0.74, 0.76, 0.75]
    errors = record.law_errors("residual")
    assert errors is not None
    assert errors.groups == 3
    assert len(errors.steps) == 2
    shorter = record.law_errors("residual", drop_last=1)
    assert shorter is not None
    assert shorter.log_rho == pytest.approx(0.0, abs=1e-12)  # there all sites move together


def test_left_out_values_come_back_from_a_file(tmp_path: Path) -> None:
    record = language_model(residual=[0.95, 0.9, 0.8])
    record.sites[1].left_out["residual"] = [0.9, 0.91]
    assert Record.load(record.save(tmp_path / "lm.json")) == record


def test_a_language_model_counts_tokens_not_classes() -> None:
    record = language_model(residual=[0.95, 0.9], residual_held_out=[1.0, 0.95])
    assert repr(record) == "<Record 'lm': 2 sites, 12,000 tokens>"
    assert "residual_held_out" in str(record)


def test_files_are_written_where_a_link_points_and_never_over_a_device(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.txt", tmp_path / "link.txt", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    assert write_whole(link, "new") == link
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="got a device or a pipe"):
        write_whole(pipe, "text")
    with pytest.raises(DataError, match="expected a shorter name"):
        write_whole(tmp_path / ("x" * 300), "text")
    assert write_whole(tmp_path / ("x" * 250), "text").read_text() == "text"
    with pytest.raises(DataError, match=r"expected .*target.txt to be a folder, got a file"):
        write_whole(target / "below.txt", "text")


def test_a_column_is_found_by_its_symbol_in_the_hint() -> None:
    with pytest.raises(InputError, match=r"got 'D'\. Did you mean 'separation'"):
        record().law("D")


def test_data_have_the_name_that_they_were_given() -> None:
    r = record()
    assert r.data_name == ("training data" if r.test_counts else "data")
    r.test_counts = []
    assert r.data_name == "data"
    r.test_counts = [3, 4]
    assert r.data_name == "training data"
    r.settings["data_name"] = "CIFAR-10 test"
    assert Record.from_dict(r.to_dict()).data_name == "CIFAR-10 test"


def test_a_law_goes_from_a_first_to_a_last_site_by_name_or_number() -> None:
    rows = [SiteRow(f"fc{i}", "Linear", (4,), 4, values={"separation": 2.0 ** (9 - i)}) for i in range(8)]
    made = Record(name="deep", sites=rows, classes=["a", "b"])
    assert made.law().points == 8
    assert made.law(first="fc2").values[0] == 2.0**7
    assert made.law(first=2, last="fc5").values == (128.0, 64.0, 32.0, 16.0)
    assert made.law(first=2, last=5, drop_last=1).points == 3
    rows[0].in_fit = False
    assert made.law(first=0).values[0] == 2.0**8  # what is no point of the law is none between two sites either
    for wrong in ("fc9", 8, -1, True):
        with pytest.raises(InputError, match=r"name of a site, from 'fc0' to 'fc7', or its number, 0 to 7, got"):
            made.law(first=wrong)
    with pytest.raises(InputError, match=r"got 'fc22'\. Did you mean 'fc2'"):
        made.law(last="fc22")
    with pytest.raises(InputError, match="at least 2 points of the law, got 0"):
        made.law(first=5, last=2)


def test_blocks_of_a_language_model_are_numbered_from_one() -> None:
    made = language_model(residual=[0.95, 0.9, 0.8, 0.75])
    first = made.law("residual", first=1).values[0]
    assert first == next(site.values["residual"] for site in made.sites if site.in_fit)
    assert made.law("residual", first=2).points == made.law("residual").points - 1
    for site in made.sites:
        site.left_out["residual"] = [(site.values["residual"] or 0.0) * f for f in (1.01, 0.99, 1.0)]
    errors = made.law_errors("residual", first=2)
    assert errors is not None
    assert len(errors.residuals) == made.law("residual", first=2).points


def test_why_a_row_is_no_point_comes_back_from_a_file(tmp_path: Path) -> None:
    made = record()
    made.sites[0].in_fit, made.sites[0].aside = False, "3 features"
    again = Record.load(made.save(tmp_path / "record.json"))
    assert again.sites[0].aside == "3 features"
    assert again == made


def test_the_name_of_a_module_is_answered_with_the_sites_inside_of_it() -> None:
    names = ["stage1.0", "stage1.1", "stage2.1", "stage3.1"]
    made = Record(name="net", classes=[], sites=[SiteRow(name, "Block", (4,), 4) for name in names])
    with pytest.raises(InputError, match=r"got 'stage1'\. Did you mean 'stage1\.0' or 'stage1\.1'\?"):
        made.points(first="stage1")


def test_a_folder_in_place_of_a_record_is_answered(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got a folder. Name the files in it, as \S+/\*.json does in a shell"):
        Record.load(tmp_path)
