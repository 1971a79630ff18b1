"""The HTML page in a real Chromium: it renders, sorts, filters, asks nobody, and names stay text."""

import csv
import re

import pytest

from evenprune import report
from evenprune.wording import significant, unit_of
from tests import audit_documents
from tests.browsing import contrasts, page_colour, until

MODELS = {"nft": "fail", "el_rb": "inconclusive", "ceag": "pass"}
TWO_MEGABYTES = 2_000_000


@pytest.fixture
def show(visit, tmp_path):
    """Open a document as a page."""

    def opened(document, *, wait_for=None, **options):
        path = tmp_path / "audit.html"
        report.write(document, path)
        page = visit(path, **options)
        wanted = len(document["groups"]) if wait_for is None else wait_for
        until(page, f"document.querySelectorAll('#table tbody tr').length === {wanted}")
        return page

    return opened


def column(page, number: int) -> list[str]:
    return page.locator(f"#table tbody tr > :nth-child({number})").all_inner_texts()


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace("−", "-").replace(",", "").replace("%", "")) for text in texts if text != "–"]


def head(page, label: str):
    return page.locator("#table thead th", has=page.get_by_role("button", name=label, exact=True))


# --- without a browser ---


@pytest.mark.parametrize("models", [1, 6])
def test_a_thousand_groups_stay_under_two_megabytes(models):
    names = {f"model {i}": "fail" for i in range(models)}
    page = report.to_html(audit_documents.side_by_side(1000, models=names))
    assert len(page.encode()) < TWO_MEGABYTES


def test_long_names_do_not_blow_the_page_up():
    page = report.to_html(audit_documents.document(named=[f"{i} {'x' * 50_000}" for i in range(1000)]))
    assert len(page.encode()) < TWO_MEGABYTES


def test_the_page_refers_to_nothing_outside():
    page = report.to_html(audit_documents.document(2))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    addresses = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'<>]*""", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not a place


def test_names_cannot_leave_the_data():
    page = report.to_html(audit_documents.document(named=list(audit_documents.HOSTILE_NAMES)))
    assert page.count("<script") == 3  # theme, data, program
    assert page.count("</script>") == 3
    data = page.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(data)
    page.encode("utf-8")


# --- in a browser ---


@pytest.mark.browser
@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive"])
def test_it_renders_every_verdict(show, verdict):
    document = audit_documents.document(12, verdict=verdict)
    page = show(document)
    said = f"{page.inner_text('#badge').title()}: {page.inner_text('#sentence')}".replace("\u00a0", " ")
    assert said.lower() == report.verdict_sentence(document).lower()
    assert page.locator("#badge svg").count() == 1
    assert page.locator("#cards section").count() == 4
    assert page.locator("#forest .row").count() == 12
    assert page.locator("#forest .tolerance, #forest .band, #forest .zero").count() == 3
    assert page.locator("#scatter .point").count() == 12
    assert "they form the group (missing)" in page.inner_text("#notes")


@pytest.mark.browser
@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_it_says_what_the_numbers_promise(show, measure):
    document = audit_documents.document(12, measure=measure) | {"confidence": 0.9}
    page = show(document)
    cards = " ".join(page.inner_text("#cards").split())
    change = "the loss rose" if measure == "loss" else "the accuracy fell"
    assert f"With 90 % confidence, {change} in {len(document['fell'])} of them." in cards
    worst, unit = document["max_excess_gap"], unit_of(document)
    assert f"90 % limits, each one-sided {unit.span(worst['lower'], worst['upper'])}" in cards
    needed = page.inner_text("#table-lead").partition("Needed: ")[2]
    assert "prove it within the tolerance or, where" in needed
    assert needed.endswith("lies beyond, prove it beyond.")


@pytest.mark.browser
def test_the_forest_plot_is_drawn_to_scale(show):
    """Positions of the marks, read from the screen, are a straight line in the estimates."""
    document = audit_documents.document(12)
    page = show(document)
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('#forest .row')].map((row) => {
          const box = (kind) => row.querySelector(kind).getBoundingClientRect();
          const bar = box('.thick'), dot = box('.dot');
          return [row.shownRow.excess, dot.left + dot.width / 2, row.shownRow.testUpper, bar.right];
        })"""
    )
    (first, x_first, *_), (last, x_last, *_) = drawn[0], drawn[-1]
    for excess, x, upper, right in drawn:
        assert x == pytest.approx(x_last + (excess - last) / (first - last) * (x_first - x_last), abs=0.7)
        assert right == pytest.approx(x_last + (upper - last) / (first - last) * (x_first - x_last), abs=0.7)


def boxes(elements) -> list[list[float]]:
    """Left, top, right and bottom of each on the screen."""
    return elements.evaluate_all(
        "(all) => all.map((e) => e.getBoundingClientRect()).map((b) => [b.left, b.top, b.right, b.bottom])"
    )


def with_levels(document: dict, key: str, levels: list[float]) -> dict:
    for group, level in zip(document["groups"], levels, strict=True):
        group[key] = level
    return document


LEVELS = {
    "all 100": [1.0, 1.0, 1.0, 1.0],
    "near 100": [1.0, 0.9995, 0.98, 0.61],
    "near 0": [0.0, 0.002, 0.04, 0.05],
    "middle": [0.4, 0.45, 0.52, 0.6],
}


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("dense", LEVELS)
@pytest.mark.parametrize("pruned", ["all 100", "near 0"])
def test_the_axes_of_accuracies_end_at_0_and_100_and_show_all_their_numbers(show, dense, pruned, width):
    document = with_levels(audit_documents.document(4, verdict="pass"), "dense", LEVELS[dense])
    page = show(with_levels(document, "pruned", LEVELS[pruned]), viewport={"width": width, "height": 800})
    picture = page.locator("#scatter")
    left, top, right, bottom = boxes(picture)[0]
    shown = numbers(picture.locator("text.soft").all_text_contents())
    assert len(shown) > 4
    assert 0 <= min(shown) <= max(shown) <= 100
    for box in boxes(picture.locator("text, .point")):
        assert left <= box[0]
        assert top <= box[1]
        assert box[2] <= right
        assert box[3] <= bottom
    (title,) = boxes(picture.locator("text[transform]"))
    assert all(title[2] < box[0] for box in boxes(picture.locator("text.soft[text-anchor=end]")))


@pytest.mark.browser
def test_the_axis_of_a_loss_knows_no_100(show):
    document = audit_documents.document(4, verdict="inconclusive", measure="loss")
    with_levels(document, "dense", [-0.5, 0.7, 1.2, 1.4])
    page = show(with_levels(document, "pruned", [0.001, 0.7, 1.2, 1.4]))
    texts = page.locator("#scatter text.soft[text-anchor=middle]").all_text_contents()
    assert (min(numbers(texts)), max(numbers(texts))) == (-0.5, 1.5)
    assert min(numbers(page.locator("#scatter text.soft[text-anchor=end]").all_text_contents())) == 0


@pytest.mark.browser
def test_a_mark_at_the_edge_of_the_picture_has_its_name(show):
    document = with_levels(audit_documents.document(4, verdict="pass"), "dense", [1.0, 0.98, 0.97, 0.96])
    page = show(with_levels(document, "pruned", [1.0, 0.97, 0.96, 0.95]))
    names = page.locator("#scatter .label").all_text_contents()
    assert set(names) == {group["group"] for group in document["groups"]}


@pytest.mark.browser
def test_it_sorts_on_every_column_and_says_so(show):
    page = show(audit_documents.document(24, verdict="inconclusive"))
    assert head(page, "Excess").get_attribute("aria-sort") == "descending"
    labels = [
        "Samples",
        "Dense",
        "Pruned",
        "Gap",
        "Excess",
        "Lower",
        "Upper",
        "Broke",
        "Fixed",
        "Disagree",
        "Needed",
    ]
    for number, label in enumerate(labels, 3):
        button = head(page, label).get_by_role("button")
        ways = set()
        for _ in range(2):
            button.press("Enter")
            way = head(page, label).get_attribute("aria-sort")
            ways.add(way)
            values = numbers(column(page, number))
            assert values == sorted(values, reverse=way == "descending")
            absent = [text == "–" for text in column(page, number)]
            assert absent == sorted(absent)  # absent values come last either way
        assert ways == {"ascending", "descending"}
    assert page.locator("#table th[aria-sort=none]").count() == 12


@pytest.mark.browser
def test_it_sorts_by_name_and_by_status(show):
    document = audit_documents.document(12)
    page = show(document)
    head(page, "Group").get_by_role("button").click()
    assert column(page, 1) == sorted(group["group"] for group in document["groups"])
    head(page, "Status").get_by_role("button").click()
    assert column(page, 2)[0].startswith("beyond")


@pytest.mark.browser
def test_it_filters_by_text_and_status(show):
    document = audit_documents.document(48, verdict="fail")
    page = show(document)
    page.fill("#filter", "BLACK × fem")
    wanted = {group["group"] for group in document["groups"] if group["group"].startswith("Black × Female")}
    assert set(column(page, 1)) == wanted
    assert page.inner_text("#count") == f"{len(wanted)} of 48 groups"
    page.fill("#filter", "")
    page.select_option("#status", "beyond")
    assert set(column(page, 1)) == set(document["violations"])
    page.select_option("#status", "fell")
    assert set(column(page, 1)) == set(document["fell"])
    page.fill("#filter", "no such group")
    assert page.inner_text("#count") == "0 of 48 groups"
    assert page.locator("#table tbody tr").all_inner_texts() == ["No group matches"]
    assert page.evaluate("document.querySelector('#table tbody td').colSpan") == 13
    page.fill("#filter", "")
    assert set(column(page, 1)) == set(document["fell"])


@pytest.mark.browser
def test_hostile_names_stay_text(show):
    names = list(audit_documents.HOSTILE_NAMES)
    document = audit_documents.document(named=names) | {
        "model": names[0],
        "attributes": names[:2],
        "notes": names,
    }
    page = show(document)
    assert page.title() == "Fail · evenprune audit"
    shown = page.locator("#table tbody th").all_text_contents()
    assert {names[0], names[1], names[2], names[4], names[5], names[6], names[8]} <= set(shown)
    assert page.locator("main img, main script, main b b").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_the_csv_has_every_row_and_no_formula(show, tmp_path):
    names = ["=cmd()", "+1", "-1", "@x", 'say "hi", twice', "plain"]
    page = show(audit_documents.document(named=names))
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "groups.csv")
    with open(tmp_path / "groups.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["group"] for row in rows} == {"'=cmd()", "'+1", "'-1", "'@x", 'say "hi", twice', "plain"}
    assert all(float(row["lower"]) <= float(row["excess_gap"]) <= float(row["upper"]) for row in rows)


@pytest.mark.browser
def test_two_groups_need_no_controls(show):
    page = show(audit_documents.document(2, verdict="pass"))
    assert page.locator("#forest-tools").is_hidden()
    assert page.locator("#models").is_hidden()
    assert page.locator("#forest .row").count() == 2


@pytest.mark.browser
def test_what_comes_late_is_waited_for_under_the_pages_policy(show):
    page = show(audit_documents.document(2))
    page.evaluate("setTimeout(() => { document.title = 'late'; }, 300)")
    assert page.title() != "late"
    until(page, "document.title === 'late'")
    with pytest.raises(TimeoutError, match="'never'"):
        until(page, "document.title === 'never'", seconds=0.1)


@pytest.mark.browser
def test_a_thousand_groups_are_usable(show):
    page = show(audit_documents.document(1000))
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    assert page.locator("#forest .row").count() == 25
    worst = page.locator("#forest .row .who").first.inner_text()
    assert worst == column(page, 1)[0]
    page.select_option("#many", "all")
    assert page.locator("#forest .row").count() == 1000
    assert page.evaluate("document.documentElement.scrollHeight") < 6000
    page.fill("#filter", "region 08")
    assert page.inner_text("#count") == "40 of 1,000 groups"


@pytest.mark.browser
def test_colours_follow_the_reader_and_the_button(show):
    document = audit_documents.document(2, verdict="pass")
    light, dark = show(document, color_scheme="light"), show(document, color_scheme="dark")
    assert page_colour(light) != page_colour(dark)
    light.click("#theme")
    assert page_colour(light) == page_colour(dark)
    assert light.inner_text("#theme") == "Light"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(show, scheme):
    """Contrast of 4.5 or more (WCAG AA) for all words of the verdict and the table."""
    page = show(audit_documents.document(12), color_scheme=scheme)
    ratios = contrasts(page, "#badge, #sentence, #facts, .lead, #table td, #table th, .legend li, .tag")
    assert min(ratios) >= 4.5


@pytest.mark.browser
def test_several_models_are_compared_and_chosen(show):
    document = audit_documents.side_by_side(12, models=MODELS)
    page = show(document)
    assert page.locator("#model-table tbody tr").count() == 3
    assert page.locator("#pair-table tbody tr").count() == 3
    assert "limits (conservative) that do not contain zero show a real difference" in page.inner_text(
        "#pairs"
    )
    assert page.locator("#model-table th", has_text="One-sided limits").count() == 1
    assert page.locator("#tabs [aria-selected=true]").inner_text() == "nft"
    page.locator("#tabs [aria-selected=true]").press("ArrowLeft")
    assert page.locator("#tabs [aria-selected=true]").inner_text() == "ceag"
    assert page.inner_text("#model-verdict").startswith("Pass: With 95")
    assert page.inner_text("#badge").lower() == "fail"  # the top speaks of the worst
    worst = max(document["models"]["ceag"]["groups"], key=lambda group: group["excess_gap"])
    assert column(page, 1)[0] == worst["group"]


@pytest.mark.browser
def test_a_loss_is_shown_in_its_own_unit_and_names_the_bootstrap(show):
    page = show(audit_documents.document(12, verdict="inconclusive", measure="loss"))
    page.click("summary")
    said = page.inner_text("body")
    assert "The limits come from a paired bootstrap" in said
    assert "Tango" not in said
    assert "points" not in page.inner_text("#cards")


@pytest.mark.browser
def test_missing_limits_and_tiny_groups_are_drawn(show):
    document = audit_documents.document(12, verdict="inconclusive")
    document["groups"][3] |= dict.fromkeys(("lower", "upper", "test_lower", "test_upper"), None)
    document["groups"][3] |= {"tiny": True, "samples": 4}
    page = show(document)
    assert "too small" in " ".join(column(page, 2))
    assert page.locator("#forest .row svg.tiny").count() == 1


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 390, 800])
def test_a_narrow_window_scrolls_only_down(show, width):
    names = [*audit_documents.HOSTILE_NAMES, "plain"]
    page = show(audit_documents.document(named=names), viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_a_tooltip_tells_the_numbers(show):
    page = show(audit_documents.document(12))
    page.locator("#forest .row").first.hover()
    assert "Others × Female" in page.inner_text("#tip")
    assert "1,361 samples" in page.inner_text("#tip")


@pytest.mark.browser
def test_it_prints_all_rows_in_light_colours(show):
    page = show(audit_documents.document(48), color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator(".tools").first.is_hidden()
    assert page.evaluate("getComputedStyle(document.querySelector('#box')).maxHeight") == "none"
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.browser
def test_further_columns_are_shown_sorted_and_downloaded(show, tmp_path):
    document = audit_documents.with_columns(audit_documents.document(12))
    page = show(document)
    titles = list(document["columns"])
    assert page.locator("#table thead th").count() == 16
    assert page.inner_text("#table-lead").endswith("italics came with the audit; no verdict rests on them.")
    for number, title in enumerate(titles, 10):
        values, button = document["columns"][title], head(page, title).get_by_role("button")
        assert column(page, number) == [significant(values.get(name)) for name in column(page, 1)]
        for way in ("descending", "ascending"):
            button.press("Enter")
            assert head(page, title).get_attribute("aria-sort") == way
            shown = [values.get(name) for name in column(page, 1)]
            known = [value for value in shown if value is not None]
            assert known == sorted(known, reverse=way == "descending")
            assert shown[: len(known)] == known  # absent values come last either way
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "groups.csv")
    with open(tmp_path / "groups.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for title in titles:
            value = document["columns"][title].get(row["group"])
            assert row[title] == "" if value is None else float(row[title]) == pytest.approx(value, rel=1e-4)


@pytest.mark.browser
def test_further_columns_follow_the_model_and_titles_stay_text(show):
    document = audit_documents.side_by_side(12, models=MODELS)
    names = [group["group"] for group in document["groups"]]
    for place, one in enumerate(document["models"].values()):
        one["columns"] = {title: {names[0]: place + 0.5} for title in audit_documents.HOSTILE_NAMES}
    del document["models"]["ceag"]["columns"]
    page = show(document)
    for tab, wanted in enumerate(("0.5", "1.5", "–")):
        page.locator("#tabs button").nth(tab).click()
        cells = dict(zip(column(page, 1), column(page, 10), strict=True))
        assert cells.pop(names[0]) == wanted
        assert set(cells.values()) == {"–"}
    assert page.locator("#table thead script, #table thead img, #table thead b").count() == 0
    assert page.title() == "Fail · evenprune audit"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_numbers_of_any_size_are_written_alike_in_the_page_and_in_text(show):
    values = [0.0, 1.0, -1.0, 0.5, 123456.0, 9999.5, 99995.0, 9_999_500.0, 12345678.0, -0.00012345]
    values += [0.0001, 0.00009999, 1e-12, 1e20, -3e8, 1 / 3, 2 / 3, 1000.0, 0.05]
    document = audit_documents.document(len(values), verdict="pass")
    names = [group["group"] for group in document["groups"]]
    document["columns"] = {"c": dict(zip(names, values, strict=True))}
    page = show(document)
    shown = dict(zip(column(page, 1), column(page, 10), strict=True))
    assert [shown[name] for name in names] == [significant(value) for value in values]


@pytest.mark.browser
def test_the_page_says_which_model_on_which_data(show):
    document = audit_documents.document(6, verdict="inconclusive")
    page = show(document)
    assert page.title() == "Inconclusive · evenprune audit"
    assert page.locator("#subject").is_hidden()
    page = show(document | {"subject": "<b>CEAG</b>, seed 0, 80 % sparse · training data: not evidence"})
    said = "<b>CEAG</b>, seed 0, 80 % sparse · training data: not evidence"
    assert page.title() == f"Inconclusive · {said} · evenprune audit"
    assert page.inner_text("#subject") == said


@pytest.mark.browser
def test_numbers_that_did_not_converge_are_marked(show, tmp_path):
    document = audit_documents.document(6, verdict="pass")
    names = [group["group"] for group in document["groups"]]
    document["columns"] = {"curvature": dict(zip(names, [3.0, 2.0, 1.0, 4.0, 6.0, 5.0], strict=True))}
    document["approximate"] = {"curvature": names[1:3]}
    page = show(document)
    shown = dict(zip(column(page, 1), column(page, 10), strict=True))
    assert [shown[name] for name in names] == ["3", "≈ 2", "≈ 1", "4", "6", "5"]
    head(page, "curvature").get_by_role("button").press("Enter")
    assert [text.removeprefix("≈ ") for text in column(page, 10)] == ["6", "5", "4", "3", "2", "1"]
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "groups.csv")
    with open(tmp_path / "groups.csv", encoding="utf-8-sig", newline="") as file:
        assert {float(row["curvature"]) for row in csv.DictReader(file)} == {1, 2, 3, 4, 5, 6}
