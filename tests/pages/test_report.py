"""The page as text: what is in it, what is not, how large it is."""

import json
import math
import re
import subprocess
import sys

import pytest
from pages_records import (
    NASTY,
    broken_record,
    deep_record,
    falling,
    full_record,
    many_classes_record,
    minimal_record,
    nasty_record,
    resnet56_record,
    three_records,
)

from layerlaw.errors import DataError, InputError, MissingExtraError
from layerlaw.pages import report
from layerlaw.pages.classifier.charts import collapse_figure, law_figure, nearest_figure, worst_classes
from layerlaw.pages.html.planes import planes_html, planes_note, svg_paths
from layerlaw.pages.html.records import page_html
from layerlaw.pages.record_view import read

PANELS = {"verdict", "law", "shares", "table", "classes", "ncc", "collapse", "plane", "method", "definitions"}
MOST_BYTES = 6_000_000


def panels(page):
    return re.findall(r'<section [^>]*data-panel="(\w+)"', page)


def text_of(page):
    """The page without its scripts and styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)


def figures(page):
    return [
        json.loads(m) for m in re.findall(r'<script type="application/json" data-figure="[^"]+">(.*?)</script>', page)
    ]


@pytest.mark.parametrize("make", [full_record, minimal_record, broken_record, nasty_record, deep_record])
def test_every_panel_is_there_whatever_the_record_holds(make):
    assert set(panels(page_html(make()))) - {"modules"} == PANELS


def test_report_returns_the_path_it_wrote(tmp_path):
    path = report(minimal_record(), str(tmp_path / "page.html"), title="A <title>")
    assert path == tmp_path / "page.html"
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>A &lt;title&gt;</title>" in page
    assert list(tmp_path.iterdir()) == [path]


def test_panels_without_data_say_why():
    text = text_of(page_html(minimal_record()))
    for why in (
        "No class-wise separation was recorded.",
        "The nearest class center was not measured.",
        "No measure of neural collapse was taken along depth.",
        "No plane coordinates were recorded.",
        "The record holds no settings and no provenance.",
    ):
        assert why in text


def test_a_record_without_a_law_is_still_shown():
    text = text_of(page_html(broken_record()))
    assert "No law can be fitted" in text
    assert "No law could be fitted, for the reason given above." in text
    assert text.count("Something went wrong.") == 1
    assert "<td>∞</td>" in text


def test_pages_say_whose_uncertainty_their_intervals_are():
    text = text_of(page_html(full_record()))
    assert "95% intervals by jackknife, for other samples through this same network." in text
    assert "how much other networks differ only several training runs can say" in text


def test_empty_columns_are_left_out_of_the_table():
    assert ">mismatch</th>" in page_html(full_record())
    assert ">mismatch</th>" not in page_html(minimal_record())


def test_names_never_become_markup():
    page = page_html(nasty_record(), title=NASTY)
    assert "<script>window.__pwned" not in page
    assert "<img" not in text_of(page)
    assert page.count("</script>") == len(re.findall(r"<script[ >]", page))
    for figure in figures(page):
        assert not re.search(r"<(script|img)", json.dumps(figure))


def test_the_policy_forbids_the_network_and_foreign_scripts():
    page = page_html(minimal_record())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2
    assert not re.search(r'(src|href)="(?!data:)', text_of(page))


def test_lone_surrogates_in_names_can_be_written(tmp_path):
    record = minimal_record()
    record.name = record.sites[0].name = "caf\udce9"
    assert r"caf\udce9" in report(record, tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "records",
    [
        full_record(),
        deep_record(200),
        many_classes_record(),
        three_records(),
        [deep_record() for _ in range(3)],
    ],
    ids=["8 sites", "200 sites", "1000 classes", "three", "three deep"],
)
def test_the_file_stays_below_six_megabytes(records):
    assert len(page_html(records).encode()) < MOST_BYTES


def test_many_classes_are_cut_to_the_worst_forty():
    record = many_classes_record()
    order = worst_classes(read(record))
    last = [s for s in record.sites if s.in_fit][-1].by_class["separation"]
    assert len(order) == 40
    assert min(last[k] for k in order) >= sorted(last, reverse=True)[39]
    assert "The 40 worst of 1,000 classes" in page_html(record)


def test_of_sixty_sites_twenty_four_planes_are_drawn_and_the_page_says_so():
    view = read(deep_record(60))
    drawn = planes_html(view)
    assert drawn.count("<svg") == 24
    assert "<b>0</b>" in drawn
    assert "<b>60</b>" in drawn
    assert "24 of 61 sites are shown" in planes_note(view)


def test_a_page_of_many_records_thins_its_planes_and_says_so():
    assert "to keep the file small" not in page_html(three_records())
    page = page_html([full_record(f"run {i}", seed=i) for i in range(20)])
    assert "Of the samples at most 111 are drawn, to keep the file small." in page
    assert len(page.encode()) < MOST_BYTES


def test_plane_dots_lie_inside_the_drawing_and_keep_proportions():
    paths = svg_paths([[0.0, 0.0], [10.0, 0.0], [0.0, 5.0], [float("nan"), 1.0]], [0, 0, 1, 1], ["#111111", "#222222"])
    assert paths.count("<path") == 2
    points = [tuple(map(int, m)) for m in re.findall(r"M(-?\d+) (-?\d+)h0", paths)]
    assert len(points) == 3
    assert all(0 <= v <= 300 for p in points for v in p)
    assert points[1][0] - points[0][0] == 2 * (points[0][1] - points[2][1])


def test_several_records_are_compared_first_and_folded():
    page = page_html(three_records())
    assert panels(page)[0] == "compare"
    assert panels(page).count("law") == 3
    assert page.count('<details class="record">') == 3  # all closed: none is more to be read than another
    ids = re.findall(r'\bid="([^"]+)"', text_of(page))
    assert len(ids) == len(set(ids))
    comparison = figures(page)[0]
    assert [t["name"] for t in comparison["data"] if t.get("name")] == ["FNN (1)", "FNN, 20 layers", "FNN (2)"]


def test_the_law_figure_holds_points_line_bars_and_nulls():
    law = figures(page_html(full_record()))[0]
    names = [trace["name"] for trace in law["data"]]
    assert names == [
        "permuted labels (chance)",
        "untrained network",
        "test data",
        "law: ρ = 0.541 per layer",
        "training data",
    ]
    assert law["layout"]["yaxis"]["type"] == "log"
    assert law["data"][-1]["error_y"]["array"][0] == pytest.approx(36.814 * 0.04, rel=0.05)
    assert len(law["data"][3]["y"]) == 8


def test_a_single_record_in_a_list_is_a_plain_page():
    assert set(panels(page_html([minimal_record()]))) == PANELS


def test_a_record_of_two_sites_has_a_page():
    assert set(panels(page_html(full_record(separation=falling(2), logits=False)))) == PANELS


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "expected at least one record, got an empty list"),
        (["run.json"], "expected one Record or a list of them, got str"),
    ],
)
def test_what_is_no_record_is_answered(records, message, tmp_path):
    with pytest.raises(InputError, match=message):
        report(records, tmp_path / "page.html")


def test_a_record_without_sites_is_answered(tmp_path):
    record = minimal_record()
    record.sites = []
    with pytest.raises(InputError, match="expected at least one site, record 'minimal' has none"):
        report(record, tmp_path / "page.html")


def test_a_missing_folder_is_answered(tmp_path):
    with pytest.raises(DataError, match="expected the folder"):
        report(minimal_record(), tmp_path / "nowhere" / "page.html")


def test_importing_pages_imports_no_ink():
    code = (
        "import sys, layerlaw.pages as p; print(sorted(p.__all__));"
        "bad = {'matplotlib', 'plotly', 'rich'} & set(sys.modules); sys.exit(', '.join(bad) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("plotly", "p.report(r, 'x.html')"),
        ("matplotlib", "p.plot(r)"),
        ("rich", "p.print_record(r)"),
        ("rich", "p.table(r)"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(package, call):
    code = (
        f"import sys; sys.modules['{package}'] = None; sys.path.insert(0, {str(__file__).rsplit('/', 1)[0]!r});"
        "import layerlaw.pages as p, pages_records; from layerlaw.errors import MissingExtraError;"
        "r = pages_records.minimal_record()\n"
        f"try: {call}\nexcept MissingExtraError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert f"needs the package '{package}': pip install 'layerlaw[pages]'" in out
    assert issubclass(MissingExtraError, ImportError)


def test_records_of_different_data_are_said_to_be():
    records = three_records()
    assert "different data" not in page_html(records)
    records[0].provenance["data_sha256"] = "1"  # of an older record: nothing to compare it with
    for record in records[1:]:
        record.provenance["data_fingerprint"] = "sums64:2"
    assert "different data" not in page_html(records)
    for kind in ("data_sha256", "data_fingerprint"):
        for i, record in enumerate(records):
            record.provenance = {**record.provenance, "data_sha256": "1", "data_fingerprint": "sums64:2", kind: str(i)}
        assert "The records were measured on different data." in page_html(records)
    records[0].settings["order"] = "shuffled by the loader"  # then the checksum depends on the order
    assert "The records may be of the same data: one was shuffled by its loader." in page_html(records)


def test_data_are_called_by_their_name_and_training_data_only_where_there_are_test_data():
    named, alone = full_record(), full_record()
    named.settings["data_name"] = "CIFAR-10 <test>"
    page = page_html(named)
    assert "samples of CIFAR-10 &lt;test&gt;" in page
    assert not re.search(
        r"training (samples|data\b(?!\.))|train accuracy", re.sub(r"<script.*?</script>", "", page, flags=re.S)
    )
    assert figures(page)[0]["data"][-1]["name"] == "CIFAR-10 &lt;test&gt;"
    alone.test_counts, alone.test_accuracy = [], None
    page = page_html(alone)
    assert figures(page)[0]["data"][-1]["name"] == "data"
    assert "training samples" not in page


def blocks_record(seed=0):
    """Eight layers in four blocks; blocks take even steps, their layers do not."""
    names = ["input", *(f"blocks.{i // 2}.conv{i % 2}" for i in range(8))]
    steps = [1.9, 0.1, 0.2, 1.8, 1.95, 0.05, 0.1, 1.9]
    values = [40.0]
    for step in steps:
        values.append(values[-1] * math.exp(-step * (1 + 0.01 * seed)))
    return full_record(f"seed {seed}", separation=values, sites=names, logits=False, seed=seed)


def test_a_record_of_several_levels_has_a_panel_that_names_its_modules():
    page = page_html(blocks_record())
    assert panels(page).count("modules") == 1
    text = text_of(page)
    assert "Modules: blocks. The 4 blocks share the drop of log D" in text.replace("&nbsp;", " ")
    assert "blocks ✓</th>" in text
    assert 'data-figure="r0-modules"' in page


def test_records_of_several_seeds_are_pooled_on_their_page():
    page = page_html([blocks_record(0), blocks_record(1)])
    assert panels(page).count("modules") == 3
    assert panels(page)[1] == "modules"
    assert "pooled over 2 networks" in text_of(page)
    assert "modules" not in panels(page_html(three_records()))
    assert panels(page_html([blocks_record(0), full_record()])).count("modules") == 1


def test_records_of_other_architectures_are_not_pooled():
    def pooled(*records):
        return "pooled over" in text_of(page_html(list(records)))

    first, other = blocks_record(0), blocks_record(1)
    assert pooled(first, other)
    other.sites[2].name = "blocks.0.conv9"
    assert not pooled(first, other)
    other = blocks_record(1)
    other.sites[2].type = "Linear"
    assert not pooled(first, other)
    other = blocks_record(1)
    other.provenance["model"] = "Mixer"
    assert not pooled(first, other)


def test_rows_that_are_no_points_are_gray_and_explained():
    record = full_record(logits=False)
    record.sites[0].in_fit, record.sites[0].aside = False, "3 features do not hold the 9 dimensions of 10 class means"
    text = text_of(page_html(record))
    assert text.count('<tr class="aside">') == 1
    assert "no point: 3 features do not hold the 9 dimensions of 10 class means" in text


def test_a_name_that_is_a_number_stands_behind_its_index_as_other_names_do():
    record = full_record(sites=["input", *map(str, range(1, 22, 3))], logits=False)
    for site in record.sites:
        site.at = "input"
    text = text_of(page_html(record))
    assert '<th scope="row" class="site" title="4"><span class="index">2</span>4</th>' in text
    assert "Each row is what enters the module of that name." in text
    assert '<th scope="row" class="site" title="input"><span class="index">0</span>input</th>' in text


def test_the_bar_of_a_point_beside_the_fit_is_not_cut_off():
    record = full_record(logits=False)
    last, D = record.sites[-1], record.sites[0].values["separation"]
    last.in_fit, last.aside = False, "made of the first token"
    last.values |= {"separation": D, "separation_log_se": 0.3}
    view = read(record)
    top = max(view.ends[len(record.sites) - 1])
    assert 10 ** law_figure(view).layout.yaxis.range[1] >= top


def test_side_branches_are_drawn_apart_and_lines_pass_them_by():
    view = read(resnet56_record())
    branches = [i for i, site in enumerate(view.sites) if site.branch]
    law = {trace.name: trace for trace in law_figure(view).data}
    assert list(law["side branches"].x) == [view.places[i] for i in branches]
    assert [place % 1 for place in law["side branches"].x] == [0.5] * len(branches)
    assert list(law["side branches"].y) == pytest.approx(
        [view.sites[i].values["separation"] for i in branches], rel=1e-4
    )
    points = next(trace for name, trace in law.items() if trace.legendrank == 1)
    assert sorted(points.x) == [*range(len(view.along))]  # at equal distances
    assert 0 in points.x  # set aside, but no branch: hollow
    drawn = [*law.values(), *nearest_figure(view).data, *collapse_figure(view).data]
    lines = [trace for trace in drawn if "lines" in trace.mode]
    assert len(lines) > 5
    for trace in lines:
        assert list(trace.x) == [view.places[i] for i in view.fit_positions]
        assert len(trace.x) == len(trace.y)
    page = text_of(page_html(resnet56_record()))
    assert "Small gray points lie on side branches" in page
    assert "side branches" not in [trace.name for trace in law_figure(read(full_record())).data]


def test_ticks_name_sites_of_the_trunk():
    for figure in (law_figure, nearest_figure):
        axis = figure(read(resnet56_record())).layout.xaxis
        assert axis.ticktext[0] == "conv1"
        assert axis.ticktext[-1] == "classifier"
        assert not any("conv2" in name for name in axis.ticktext)
        assert len(set(axis.ticktext)) == len(axis.ticktext)
