"""The comparison page: what its sentences say, and how it behaves in a real Chromium."""

import copy
import csv
import json
import re
from statistics import fmean, stdev

import pytest

from evenprune import comparison_page, comparison_text
from evenprune.comparison_wording import acting_sentence, constraint_sentence, headline, unseen_sentence
from tests import audit_documents, comparison_documents
from tests.browsing import contrasts, page_colour, until
from tests.test_page import TWO_MEGABYTES

HOSTILE = list(audit_documents.HOSTILE_NAMES)


def page_data(page: str) -> dict:
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def with_worst(document: dict, worst: dict[str, list[float]], split: str = "train") -> dict:
    """The document, with the worst excess gap of each method's runs set, all on the group before the last."""
    changed = copy.deepcopy(document)
    for method in changed["methods"]:
        for run, value in zip(method["runs"], worst[method["name"]], strict=True):
            gaps = [-0.001] * len(document["groups"])
            gaps[-2] = value
            run[split] |= {"max_excess_gap": value, "excess_gaps": gaps}
    return changed


@pytest.fixture(scope="module")
def small() -> dict:
    return comparison_documents.document()


@pytest.fixture(scope="module")
def large() -> dict:
    return comparison_documents.document(100, harms=comparison_documents.SIX)


# --- the sentences ---

FAR, NEAR, IN = [0.17] * 5, [0.03, 0.05, 0.04, 0.04, 0.04], [0.01] * 5


@pytest.mark.parametrize(
    ("worst", "said"),
    [
        (
            {"NFT": FAR, "EL+RB": FAR, "CEAG": [*IN[:4], 0.03]},
            "Plain fine-tuning (NFT) cost “8” 17.0 points more accuracy than the average on the training "
            "data (mean of 5 seeds); CEAG kept every group within 2 points in 4 of 5 seeds, EL+RB in none.",
        ),
        (
            {"NFT": IN, "EL+RB": [*IN[:2], *FAR[:3]], "CEAG": FAR},
            "Plain fine-tuning (NFT) already kept every group within 2 points of the average on the training "
            "data in all 5 seeds; EL+RB kept every group within 2 points in 2 of 5 seeds, CEAG in none.",
        ),
        (
            {"NFT": FAR, "EL+RB": NEAR, "CEAG": FAR},
            "Plain fine-tuning (NFT) cost “8” 17.0 points more accuracy than the average on the training "
            "data (mean of 5 seeds); no other method kept every group within 2 points in any seed; EL+RB "
            "came closest with 4.0 points.",
        ),
        (
            {"NFT": [*IN[:3], *FAR[:2]], "EL+RB": IN, "CEAG": IN},
            "Plain fine-tuning (NFT) kept every group within 2 points of the average on the training data in "
            "3 of 5 seeds; EL+RB kept every group within 2 points in all 5 seeds, CEAG in all 5.",
        ),
    ],
)
def test_the_headline_says_what_happened_whoever_wins(small, worst, said):
    assert headline(with_worst(small, worst)) == said


def test_exactly_the_tolerance_is_within_it(small):
    worst = {"NFT": FAR, "EL+RB": FAR, "CEAG": [0.02, 0.0201, 0.02, 0.02, 0.02]}
    assert "CEAG kept every group within 2 points in 4 of 5 seeds" in headline(with_worst(small, worst))


def test_no_group_is_blamed_when_the_worst_one_changes(small):
    changed = with_worst(small, {"NFT": FAR, "EL+RB": IN, "CEAG": IN})
    for place, run in enumerate(changed["methods"][0]["runs"]):
        gaps = run["train"]["excess_gaps"]
        gaps[place], gaps[-2] = gaps[-2], gaps[place]
    assert "cost the worst-hit group, not always the same one, 17.0 points more accuracy" in headline(changed)


def test_a_group_that_gained_less_than_others_did_not_lose(small):
    changed = with_worst(small, {"NFT": FAR, "EL+RB": IN, "CEAG": IN})
    changed["dense"]["train"]["group_accuracy"][-2] = 0.1
    assert "improved “8” by 17.0 points less than the average" in headline(changed)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.01, "CEAG kept every group within 2 points of the average on the training data."),
        (0.05, "CEAG did not keep every group within 2 points of the average on the training data: "
               "5.0 points for the worst-hit group."),
    ],
)  # fmt: skip
def test_one_method_and_one_seed_need_no_seeds_in_the_sentence(value, said):
    alone = comparison_documents.document(harms={"ceag": (0.0, 0.0)}, seeds=1)
    assert headline(with_worst(alone, {"ceag": [value]})) == said


def test_many_methods_make_no_long_sentence(large):
    worst = dict.fromkeys(comparison_documents.SIX, FAR) | {"CEAG": IN}
    said = headline(with_worst(large, worst))
    assert said.endswith(
        "CEAG kept every group within 2 points in all 5 seeds, the other 4 methods in no seed."
    )


def test_unseen_data_has_its_own_sentence(small):
    worst = {"NFT": FAR, "EL+RB": [0.1] * 5, "CEAG": [0.08] * 5}
    held = with_worst(with_worst(small, worst, "test"), {**worst, "CEAG": IN})
    assert unseen_sentence(held) == (
        "On unseen test data the worst-hit group lost 8.0 points more than the average with CEAG, 10.0 with "
        "EL+RB, 17.0 with NFT (mean of 5 seeds). No method stayed within 2 points there in any seed: what "
        "holds in training need not carry over."
    )
    kept = unseen_sentence(with_worst(small, {**worst, "CEAG": [*IN[:3], 0.1, 0.1]}, "test"))
    assert kept.endswith("Every group stayed within 2 points there with CEAG in 3 of 5 seeds.")


def test_without_test_data_it_says_so(small):
    changed = copy.deepcopy(small)
    for method in changed["methods"]:
        for run in method["runs"]:
            del run["test"], run["audits"]["test"]
    assert "nothing here speaks of unseen samples" in unseen_sentence(changed)
    assert page_data(comparison_page.to_html(changed))["splits"] == ["train"]


# --- the file ---


def test_it_stays_under_two_megabytes(small, large):
    assert len(comparison_page.to_html(small).encode()) < TWO_MEGABYTES / 8
    assert len(comparison_page.to_html(large).encode()) < TWO_MEGABYTES


def test_long_names_and_long_histories_do_not_blow_it_up():
    names = [f"{i} {'x' * 50_000}" for i in range(100)]
    document = comparison_documents.document(named=names, harms=comparison_documents.SIX, epochs=400)
    assert len(comparison_page.to_html(document).encode()) < TWO_MEGABYTES


def test_thinned_histories_keep_the_first_and_the_last_epoch(large):
    data = page_data(comparison_page.to_html(large))
    ceag = next(method for method in data["methods"] if method["title"] == "CEAG")
    epochs = ceag["multipliers"]["epochs"]
    assert epochs[0] == 0
    assert epochs[-1] == 59
    assert len(epochs) < 60
    run = next(m for m in large["methods"] if m["name"] == "CEAG")["runs"][3]
    assert ceag["multipliers"]["values"][3][-1] == pytest.approx(run["history"][-1]["multipliers"], rel=5e-3)


def test_many_lines_are_cut_to_the_largest_multipliers():
    document = comparison_documents.document(300, harms={"CEAG": (0.0, 0.0)}, seeds=1, epochs=8)
    for row in document["methods"][0]["runs"][0]["history"]:
        row["multipliers"] = [float(i % 3 == 0) for i in range(300)]
    kept = page_data(comparison_page.to_html(document))["methods"][0]["multipliers"]["names"]
    assert kept == [f"class {i:03d}" for i in range(0, 300, 3)]


def test_methods_of_one_name_stay_apart():
    document = comparison_documents.document(seeds=2, epochs=4)
    document["methods"][1]["name"] = "ceag"
    document["methods"].append(document["methods"][2] | {"name": "CEAG (no RB)"})
    data = page_data(comparison_page.to_html(document))
    assert [method["title"] for method in data["methods"]] == [
        "NFT",
        "CEAG",
        "CEAG (2)",
        "CEAG (no RB)",
    ]
    assert len({method["look"] for method in data["methods"]}) == 4


def test_the_page_refers_to_nothing_outside(small):
    page = comparison_page.to_html(small)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    addresses = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'<>]*""", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not a place


def hostile_document() -> dict:
    document = comparison_documents.document(
        named=HOSTILE, harms={HOSTILE[0]: (0.1, 0.1), "CEAG": (0.0, 0.05), HOSTILE[3]: (0.1, 0.1)}, epochs=12
    )
    document |= {"title": HOSTILE[1], "model": HOSTILE[7], "command": HOSTILE[0]}
    document["methods"][2]["settings"] = {HOSTILE[1]: HOSTILE[8]}
    document["methods"][0]["runs"][0]["seed"] = HOSTILE[1]
    document["methods"][0]["runs"][0]["audits"]["test"]["notes"] = HOSTILE
    return document


def test_names_cannot_leave_the_data():
    page = comparison_page.to_html(hostile_document())
    assert page.count("<script") == 3  # theme, data, program
    assert page.count("</script>") == 3
    assert not set("<>&\u2028\u2029") & set(page.split('id="data">')[1].split("</script>")[0])
    page.encode("utf-8")


def test_numbers_that_are_not_known_are_no_numbers(small):
    changed = copy.deepcopy(small)
    run = changed["methods"][0]["runs"][0]
    run["test"] |= {"accuracy": float("nan"), "max_excess_gap": None}
    run["history"][3] |= {"max_excess_gap": float("nan"), "test_max_excess_gap": None}
    assert page_data(comparison_page.to_html(changed))["methods"][0]["gaps"]["train"][0][3] is None


# --- in a browser ---


@pytest.fixture
def show(visit, tmp_path):
    """Open a document as a page."""

    def opened(document, **options):
        path = tmp_path / "comparison.html"
        path.write_text(comparison_page.to_html(document), encoding="utf-8")
        return visit(path, **options)

    return opened


def rows(page, part: int) -> list[list[str]]:
    """The cells of the comparison of one split, its head left out."""
    found = page.locator("#comparison tbody").nth(part).locator("tr:not(.part)").all()
    return [row.locator("th, td").all_inner_texts() for row in found]


@pytest.mark.browser
def test_the_table_holds_the_means_and_deviations(show, small):
    page = show(small)
    assert page.inner_text("#sentence").replace("\u00a0", " ") == headline(small)
    for part, split in enumerate(("train", "test")):
        for cells, method in zip(rows(page, part), small["methods"], strict=True):
            runs = [run[split] for run in method["runs"]]
            for cell, key in ((1, "accuracy"), (2, "max_excess_gap"), (4, "pairwise_disparity")):
                values = [100 * run[key] for run in runs]
                assert cells[cell].startswith(f"{fmean(values):.1f} ± {stdev(values):.1f}")
            assert cells[5] == f"{sum(run['max_excess_gap'] <= 0.02 for run in runs)} of 5"
            counted = {word: [run["verdict"] for run in runs].count(word) for word in ("pass", "fail")}
            for word, count in counted.items():
                assert (f"{count} {word}" in " ".join(cells[6].split())) == (count > 0)


@pytest.mark.browser
def test_best_and_worst_are_marked_once_and_rightly(show, small):
    worst = {"NFT": FAR, "EL+RB": NEAR, "CEAG": IN}
    page = show(with_worst(small, worst))
    marks = [row[2].rsplit(maxsplit=1)[-1] for row in rows(page, 0)]
    assert marks == ["worst", "0.7", "best"]  # the middle one ends with its deviation


@pytest.mark.browser
def test_the_strip_plot_is_drawn_to_scale(show, small):
    """Positions of the marks of the means, read from the screen, are a straight line in the means."""
    page = show(small)
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('#gaps .row')].flatMap((row) => {
          const name = row.querySelector('bdi').textContent;
          return [...row.querySelectorAll('.dot')].map((dot, i) => {
            const box = dot.getBoundingClientRect();
            return [name, i, box.left + box.width / 2];
          });
        })"""
    )
    assert len(drawn) == 30
    gaps = [
        fmean(run["train"]["excess_gaps"][small["groups"].index(name)] for run in small["methods"][i]["runs"])
        for name, i, _ in drawn
    ]
    low, high = gaps.index(min(gaps)), gaps.index(max(gaps))
    for gap, (_, _, x) in zip(gaps, drawn, strict=True):
        share = (gap - gaps[low]) / (gaps[high] - gaps[low])
        assert x == pytest.approx(drawn[low][2] + share * (drawn[high][2] - drawn[low][2]), abs=0.7)


@pytest.mark.browser
def test_the_groups_come_worst_first_and_follow_the_split(show, small):
    page = show(small)
    assert page.locator("#gaps .seed").count() == 150
    for button, split in enumerate(("train", "test")):
        page.locator(".split").first.locator("button").nth(button).click()
        means = [
            [fmean(run[split]["excess_gaps"][g] for run in method["runs"]) for g in range(10)]
            for method in small["methods"]
        ]
        worst = max(range(10), key=lambda g: max(mean[g] for mean in means))
        assert page.locator("#gaps .row bdi").first.inner_text() == small["groups"][worst]
        shown = page.locator("#gaps .row").first.locator(".what div").all_inner_texts()
        assert shown == [f"{100 * mean[worst]:.1f}".replace("-", "−") for mean in means]
        assert (
            page.locator(".split [aria-pressed=true]").all_inner_texts()
            == [("Training data", "Unseen test data")[button]] * 3
        )
    page.select_option("#order", "given")
    assert page.locator("#gaps .row bdi").all_inner_texts() == small["groups"]


@pytest.mark.browser
def test_a_hundred_groups_show_twenty_until_asked(show, large):
    page = show(large)
    assert page.locator("#gaps .row").count() == 20
    height = page.evaluate("document.documentElement.scrollHeight")
    page.get_by_role("button", name="Show all 100 groups").first.click()
    assert page.locator("#gaps .row").count() == 100
    assert page.locator("#levels .row").count() == 20
    assert page.evaluate("document.documentElement.scrollHeight") == height  # it scrolls in its box
    assert page.locator("#multipliers .chart").count() == 5
    assert "NFT has no multipliers" in page.inner_text("#without")


@pytest.mark.browser
def test_lines_over_time_end_where_the_runs_end(show, small):
    page = show(small)
    ends = {
        method["name"]: fmean(run["history"][-1]["max_excess_gap"] for run in method["runs"])
        for method in small["methods"]
    }
    labels = page.locator("#worst .label").all_text_contents()
    assert set(labels) == {f"{name} {100 * value:.1f}" for name, value in ends.items()}
    assert page.locator("#worst .range").count() == 3
    assert page.locator("#worst .phase").count() == 1
    box = page.locator("#worst").bounding_box()
    page.locator("#worst").hover(position={"x": box["width"] * 0.1, "y": 100})
    assert "(pruning)" in page.inner_text("#tip")
    assert page.inner_text("#tip").count("points") == 3


@pytest.mark.browser
def test_epochs_that_were_not_measured_leave_no_hole(show):
    document = comparison_documents.document(seeds=2, epochs=13) | {"sparsity": None}
    for method in document["methods"]:
        for run in method["runs"]:
            for row in run["history"]:
                row["test_max_excess_gap"] = None
                row["max_excess_gap"] = None if row["epoch"] % 4 else 0.01 * row["epoch"]
    page = show(document)
    line = page.locator("#worst .curve").first.get_attribute("d")
    assert (line.count("M"), line.count("L")) == (1, 3)
    assert "97 % sparse" in page.inner_text("#facts")
    page.locator(".split").nth(1).locator("button").nth(1).click()
    assert "The test data was not measured epoch by epoch" in page.inner_text("#time-lead")
    assert page.locator("#worst .curve").count() == 0


@pytest.mark.browser
def test_multipliers_of_the_mean_or_of_one_seed(show, small):
    page = show(small)
    ceag = page.locator("#multipliers > div", has_text="CEAG")
    assert ceag.locator("path").count() == 10 + 1  # a line per group, and the mark in the head
    assert ceag.locator(".label").all_text_contents()[0] == "8"
    line = ceag.locator(".curve").first.get_attribute("d")
    page.select_option("#seed", "2")
    assert ceag.locator(".curve").first.get_attribute("d") != line


@pytest.mark.browser
def test_every_audit_can_be_chosen(show, small):
    page = show(small)
    assert page.locator("#matrix button").count() == 30
    for name, seed, split, words in (
        ("CEAG", 1, "test", "unseen test data"),
        ("NFT", 4, "train", "training data"),
    ):
        method = next(method for method in small["methods"] if method["name"] == name)
        audit = method["runs"][seed]["audits"][split]
        page.get_by_role("button", name=f"{name}, seed {seed}, {words}: {audit['verdict']}").click()
        assert page.locator("#matrix [aria-pressed=true]").count() == 1
        assert page.inner_text("#audit .said").lower().startswith(audit["verdict"])
        ordered = sorted(audit["groups"], key=lambda group: -group["excess_gap"])
        assert page.locator("#limits tbody tr").count() == 10
        first = page.locator("#limits tbody tr").first.locator("th, td").all_inner_texts()
        assert first[0] == ordered[0]["group"]
        assert first[7] == f"{100 * ordered[0]['excess_gap']:.1f}"
        assert first[5] == str(ordered[0]["broke"])


@pytest.mark.browser
def test_levelling_down_is_told(show, small):
    changed = copy.deepcopy(small)
    for method, level in zip(changed["methods"], (0.9, 0.95, 0.8), strict=True):
        for run in method["runs"]:
            run["train"]["group_accuracy"] = [level] * 10
    said = show(changed).inner_text("#traded")
    assert "EL+RB left 10 of 10 groups more accurate (most: “0”, 5.0 points) and 0 less accurate." in said
    assert "CEAG left 0 of 10 groups more accurate and 10 less accurate (most: “0”, 10.0 points)." in said


@pytest.mark.browser
def test_hostile_names_stay_text(show):
    page = show(hostile_document())
    assert page.title() == f"{HOSTILE[1]} · evenprune comparison"
    assert page.locator("main img, main script").count() == 0
    assert HOSTILE[0] in page.inner_text("#sentence")
    assert page.inner_text("#command") == HOSTILE[0]
    names = page.locator("#gaps .row bdi").all_text_contents()
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[4], HOSTILE[8]} <= set(names)
    for button in page.locator("#matrix button").all()[:6]:
        button.click()
    page.locator("#gaps .row").first.hover()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_the_csv_has_every_number_and_no_formula(show, tmp_path):
    document = comparison_documents.document(named=["=cmd()", "+1", 'say "hi", twice', "plain"], epochs=4)
    page = show(document)
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "all.csv")
    with open(tmp_path / "all.csv", encoding="utf-8-sig", newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 3 * 5 * 2 * 4
    assert {row["group"] for row in found} == {"'=cmd()", "'+1", 'say "hi", twice', "plain"}
    assert float(found[0]["excess_gap"]) == pytest.approx(
        document["methods"][0]["runs"][0]["train"]["excess_gaps"][0], rel=1e-4
    )


@pytest.mark.browser
def test_a_narrow_window_scrolls_only_down(show, large):
    page = show(large, viewport={"width": 320, "height": 800})
    for width in (320, 390, 700, 1000):
        page.set_viewport_size({"width": width, "height": 800})
        until(page, f"innerWidth === {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_one_run_of_one_method_is_a_page_too(show):
    page = show(comparison_documents.document(2, harms={"ceag": (0.0, 0.05)}, seeds=1, epochs=1))
    assert "±" not in page.inner_text("#comparison")
    assert page.locator("#traded").is_hidden()
    assert page.locator("#gaps .row").count() == 2


@pytest.mark.browser
def test_a_run_without_history_and_audits_hides_their_sections(show):
    document = comparison_documents.document(seeds=2, epochs=2)
    for method in document["methods"]:
        for run in method["runs"]:
            run |= {"history": [], "audits": {}}
    page = show(document)
    for part in ("#time", "#multiplier-section", "#audits"):
        assert page.locator(part).is_hidden()
    assert page.locator("#levels .row").count() == 10


@pytest.mark.browser
def test_colours_follow_the_reader_and_the_button(show, small):
    light, dark = show(small, color_scheme="light"), show(small, color_scheme="dark")
    assert page_colour(light) != page_colour(dark)
    light.click("#theme")
    assert page_colour(light) == page_colour(dark)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(show, large, scheme):
    """Contrast of 4.5 or more (WCAG AA) for words in all six colours of the methods and in the tables."""
    page = show(large, color_scheme=scheme)
    ratios = contrasts(
        page, "#sentence, .kicker, .facts, .lead, .what div, td, th, .legend li, .grade, .switch *"
    )
    assert len(ratios) > 200
    assert min(ratios) >= 4.5


@pytest.mark.browser
def test_it_prints_in_light_colours_on_one_page_width(show, small):
    page = show(small, color_scheme="dark", viewport={"width": 720, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("#order").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf().startswith(b"%PDF")


# --- a held-out split, notes, a choice, the pages of the audits ---


@pytest.fixture(scope="module")
def held() -> dict:
    return comparison_documents.document(heldout=True, seeds=3, epochs=8)


def test_what_the_methods_act_on_is_said_as_it_is(small, held):
    assert acting_sentence(small).startswith("The methods act on the training data; only the test rows")
    said = acting_sentence(held)
    assert (
        "On the held-out data the multipliers of CEAG follow their gaps: so the held-out rows are no" in said
    )
    chosen = copy.deepcopy(held) | {"selected_on": "heldout"}
    chosen["methods"][0]["settings"] = {"class_bias_on": "heldout"}
    chosen["methods"][1]["settings"] = {"keep_on": "heldout"}
    assert "EL+RB picks its iterate, the bias of NFT is fitted, one run was chosen: so" in acting_sentence(
        chosen
    )
    assert "that of CEAG on the held-out data" in constraint_sentence(held)
    assert constraint_sentence(small).startswith("The constraint acts on the training data. Meeting it there")


def test_held_out_figures_are_a_table_of_their_own_in_text(small, held):
    text = comparison_text.to_text(held)
    first, second = text.split("on held-out data")
    runs = held["methods"][2]["runs"]
    mean, spread = (100 * f([run["heldout"]["max_excess_gap"] for run in runs]) for f in (fmean, stdev))
    (line,) = (line for line in second.splitlines() if line.startswith("CEAG"))
    assert f"{mean:.1f} ± {spread:.1f}" in line
    assert f"held-out {100 * held['dense']['heldout']['accuracy']:.1f} %" in first
    assert "held-out" not in comparison_text.to_text(small)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["NFT", "CEAG" + "x" * 40], ["NFT", "CEAG" + "x" * 18 + "…" + "x" * 11]),
        (  # cut to 34 characters both would be "CEAG + class bias, tol…80 % sparse"
            [f"CEAG + class bias, tolerance {limit}, 80 % sparse" for limit in (0.02, 0.05)],
            [f"CEAG + class bias, tolerance {limit}, 80 % sparse" for limit in (0.02, 0.05)],
        ),
    ],
)
def test_names_are_cut_as_long_as_they_stay_apart(held, names, shown):
    both = copy.deepcopy(held) | {"methods": copy.deepcopy(held["methods"][:2])}
    for method, name in zip(both["methods"], names, strict=True):
        method["name"] = name
    for table in comparison_text.to_text(both).split("on held-out data"):
        lines = table.split("─\n")[1].splitlines()[:2]
        assert [re.split(r"  +", line)[0] for line in lines] == shown


@pytest.mark.browser
def test_the_held_out_split_is_a_block_and_a_choice_of_its_own(show, held):
    page = show(held | {"notes": ["Mind <this>."], "selected_because": "Chosen on the held-out data: CEAG."})
    parts = page.locator("#comparison .part th").all_inner_texts()
    assert [part.split("·")[0].strip() for part in parts] == [
        "Training data",
        "Held-out data",
        "Unseen test data",
    ]
    worst = fmean(run["heldout"]["max_excess_gap"] for run in held["methods"][0]["runs"])
    assert rows(page, 1)[0][2].startswith(f"{100 * worst:.1f}")
    assert "the multipliers of CEAG follow" in page.inner_text("#comparison-lead")
    assert "that of CEAG on the held-out data" in page.inner_text("#constraint")
    assert page.locator("#notes li").all_inner_texts() == ["Mind <this>."]
    assert page.inner_text("#selected") == "Chosen on the held-out data: CEAG."
    page.locator("#time .split button", has_text="Held-out data").click()
    assert page.locator("#worst .curve").count() == 3
    assert "on the held-out data" in page.inner_text("#traded")


@pytest.mark.browser
def test_nothing_is_shown_of_notes_and_choices_that_are_not_there(show, small):
    page = show(small)
    for part in ("#notes", "#selected"):
        assert page.locator(part).is_hidden()
    assert page.locator(".page").count() == 0


@pytest.mark.browser
def test_every_audit_page_is_linked_and_no_link_leaves_the_folder(show, held, tmp_path):
    document = copy.deepcopy(held)
    for method in document["methods"]:
        for run in method["runs"]:
            run["pages"] = {
                split: f"audits/{method['name']} {run['seed']}-{split}.html" for split in document["dense"]
            }
    document["methods"][0]["runs"][0]["pages"]["test"] = 'javascript:alert(1)//"><b>'
    page = show(document)
    links = page.locator("#matrix a.page")
    assert links.count() == 3 * 3 * 3
    addresses = [link.evaluate("(a) => a.href") for link in links.all()]
    assert all(address.startswith(tmp_path.as_uri()) for address in addresses)
    assert f"{tmp_path.as_uri()}/audits/EL%2BRB%201-heldout.html" in addresses
    assert page.locator("#matrix b").count() == 0
    assert page.locator("#audit a.page").count() == 1
    label = links.last.get_attribute("aria-label")
    assert label == "Audit page: CEAG, seed 2, unseen test data"


@pytest.mark.browser
def test_a_method_without_a_history_stays_out_of_the_curves(show, held):
    document = copy.deepcopy(held)
    biased = copy.deepcopy(document["methods"][0]) | {"name": "NFT + class bias"}
    for run in biased["runs"]:
        run["history"] = []
    document["methods"].append(biased)
    page = show(document)
    assert page.locator("#worst .curve").count() == 3
    assert page.locator("#matrix tbody tr").count() == 4
    assert "NFT + class bias" in page.inner_text("#comparison")
