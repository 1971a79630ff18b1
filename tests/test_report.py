"""Audit documents as text, Markdown and JSON, and the choice of format by suffix."""

import copy
import html
import json
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenprune import report
from evenprune.wording import significant, unit_of
from tests import audit_documents

MODELS = {"nft": "fail", "el_rb": "inconclusive", "ceag": "pass"}
DOCUMENTS = {
    "two": audit_documents.document(2, verdict="pass"),
    "twelve": audit_documents.document(12, verdict="fail"),
    "thousand": audit_documents.document(1000, verdict="fail"),
    "loss": audit_documents.document(12, verdict="inconclusive", measure="loss"),
    "score": audit_documents.document(12, verdict="fail", measure="score"),
    "hostile": audit_documents.document(named=list(audit_documents.HOSTILE_NAMES)),
    "models": audit_documents.side_by_side(12, models=MODELS),
    "columns": audit_documents.with_columns(audit_documents.document(12)),
    "columns of models": audit_documents.with_columns(audit_documents.side_by_side(12, models=MODELS)),
    "many models": audit_documents.side_by_side(6, models={f"a model of name {i}": "fail" for i in range(9)}),
}


@pytest.fixture(params=DOCUMENTS)
def document(request):
    return copy.deepcopy(DOCUMENTS[request.param])


def flat(text: str) -> str:
    return " ".join(text.split())


def test_text_fits_a_terminal_and_begins_with_the_verdict(document):
    text = report.to_text(document)
    assert flat(text).startswith(flat(report.verdict_sentence(document)))
    assert max(map(len, text.splitlines())) <= 112  # isolates around right-to-left names take no room
    text.encode("utf-8")
    assert "\x1b" not in text


def test_text_lists_the_worst_groups_first():
    document = DOCUMENTS["twelve"]
    text = report.to_text(document)
    ranked = sorted(document["groups"], key=lambda group: -group["excess_gap"])
    table = text[text.index("\ngroup ") :]
    places = [table.index(f"\n{group['group']} ") for group in ranked]
    assert places == sorted(places)
    assert "within, fell" in text or "beyond, fell" in text


def test_text_of_many_groups_shows_twenty_and_every_violation():
    document = copy.deepcopy(DOCUMENTS["thousand"])
    assert "… and 980 more groups" in report.to_text(document)
    best = min(document["groups"], key=lambda group: group["excess_gap"])
    best |= {"violates": True, "group": "the forgotten"}
    text = report.to_text(document)
    assert "the forgotten" in text
    assert "… and 979 more groups" in text


def test_long_names_stay_apart_in_text():
    names = [f"{'the same long beginning ' * 4}{i}" for i in range(12)]
    text = report.to_text(audit_documents.document(named=names))
    rows = re.findall(r"^the same.*?…(.*?)  ", text, re.MULTILINE)
    assert len(set(rows)) == 12


def test_text_of_losses_has_no_points():
    assert "points" not in report.to_text(DOCUMENTS["loss"])
    assert "points" in report.to_text(DOCUMENTS["score"])


def test_text_of_several_models_compares_them():
    text = flat(report.to_text(DOCUMENTS["models"]))
    for name in MODELS:
        assert f" {name} {MODELS[name]} " in text
    assert "“ceag” minus “nft”: accuracy" in text
    assert "provably better for “Others × Female”, worse for no group" in text
    assert re.search(r"Others × Female 1,361 13\.3! 1\.3", text)


def test_limits_of_the_worst_gap_are_called_one_sided():
    """A pass rests on the upper one alone, a fail on the lower one; those above them are two-sided."""
    for name in ("two", "models"):
        worst, unit = DOCUMENTS[name]["max_excess_gap"], unit_of(DOCUMENTS[name])
        limits = re.escape(unit.span(worst["lower"], worst["upper"]))
        said = rf"worst excess gap \(limits one-sided\) [|\s]*{unit.amount(worst['estimate'])}[|\s]*{limits}"
        assert re.search(said, report.to_text(DOCUMENTS[name]))
        assert re.search(said, report.to_markdown(DOCUMENTS[name]))
    for rows in (report.to_text(DOCUMENTS["models"]), report.to_markdown(DOCUMENTS["models"])):
        head = next(line for line in rows.splitlines() if "disparity" in line and "verdict" in line)
        assert re.search(r"worst excess[ |]+one-sided limits[ |]+disparity", head)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=14))
def test_no_model_is_left_out_unsaid(lengths):
    """Every model has a column, or is named or counted in the line that says for which there is no room."""
    names = [f"{i:x}{'m' * length}" for i, length in enumerate(lengths)]
    table = [["group", "samples", *names], ["Asian", "1,200", *["−10.0!"] * len(names)]]
    shown = report._fitting(table)
    header = report._text_table(shown).splitlines()[0].split()[2:]
    line = report._left_out(names[len(header) :])
    named = re.findall("“(.*?)”", line)
    more = re.search(r" and (\d+) more;", line)
    told = [*header, *named]
    assert told == [report._clipped(name, report.WIDEST_CELL) for name in names[: len(told)]]
    assert len(told) + (int(more[1]) if more else 0) == len(names)
    assert len(line.strip()) <= report.WIDTH
    assert bool(line) == (len(header) < len(names))


def test_models_without_room_are_named_below_their_table():
    text = report.to_text(DOCUMENTS["many models"])
    table = text[text.index("Excess gap by group and model") :].splitlines()
    shown = re.findall(r"a model of name (\d)", table[1])
    assert 0 < len(shown) < 9
    line = next(line for line in table if line.startswith("No room for the columns of "))
    named = re.findall(r"“a model of name (\d)”", line)
    more = re.search(r" and (\d+) more; other formats have all\.$", line)
    assert [*shown, *named] == [str(i) for i in range(len(shown) + len(named))]
    assert len(shown) + len(named) + (int(more[1]) if more else 0) == 9
    assert "No room" not in report.to_text(DOCUMENTS["models"])


def test_markdown_tables_have_equal_cells_in_every_row(document):
    markdown = report.to_markdown(document)
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            widths = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in block.splitlines()}
            assert len(widths) == 1


def test_markdown_cannot_become_markup():
    markdown = report.to_markdown(DOCUMENTS["hostile"])
    assert "<" not in markdown
    assert "pipe \\| back\\\\slash \\`tick\\` \\*star\\* \\[link\\](https&#58;//example.org)" in markdown
    assert html.unescape("&lt;script&gt;") in html.unescape(markdown)


def test_json_holds_the_whole_document(document):
    assert json.loads(report.to_json(document)) == json.loads(json.dumps(document))


def test_json_has_no_number_that_json_does_not_know():
    document = copy.deepcopy(DOCUMENTS["two"])
    document["groups"][0]["upper"] = float("inf")
    document["groups"][1]["lower"] = float("nan")
    loaded = json.loads(report.to_json(document), parse_constant=pytest.fail)
    assert loaded["groups"][0]["upper"] is None
    assert loaded["groups"][1]["lower"] is None


@pytest.mark.parametrize("absent", [None, float("nan")])
def test_absent_limits_are_shown_as_such(absent):
    document = copy.deepcopy(DOCUMENTS["twelve"])
    document["groups"][1] |= {"lower": absent, "upper": absent, "samples_needed": None}
    assert "– to –" in report.to_text(document)
    assert "– to –" in report.to_markdown(document)
    assert "NaN" not in report.to_html(document).split('id="data">')[1].split("</script>")[0]


@pytest.mark.parametrize("suffix", [".html", ".json", ".md", ".txt", ".HTML"])
def test_write_goes_by_the_suffix(document, suffix, tmp_path):
    path = tmp_path / f"audit{suffix}"
    report.write(document, path)
    beginnings = {
        ".html": "<!doctype html>",
        ".json": "{",
        ".md": "## Audit",
        ".txt": document["verdict"].title(),
    }
    assert path.read_text(encoding="utf-8").startswith(beginnings[suffix.lower()])
    assert os.listdir(tmp_path) == [path.name]


def test_an_unknown_suffix_lists_those_that_are_known(tmp_path):
    with pytest.raises(
        ValueError, match=r"audit\.pdf: the name must end in one of \.html, \.json, \.md, \.txt, \.svg"
    ):
        report.write(DOCUMENTS["two"], tmp_path / "audit.pdf")
    assert os.listdir(tmp_path) == []


def test_columns_are_shown_where_they_were_given():
    document = DOCUMENTS["columns"]
    text, markdown = report.to_text(document), report.to_markdown(document)
    first = document["groups"][0]["group"]
    values = [significant(column.get(first)) for column in document["columns"].values()]
    lines = [line for line in text.splitlines() if line.startswith(first)]
    assert lines[1].split()[-3:] == values
    row = next(line for line in markdown.splitlines() if line.startswith(f"| {first} ") and values[0] in line)
    assert row.strip("| ").split(" | ")[1:] == values
    assert "### Further columns" in markdown
    assert "Further columns" not in report.to_markdown(DOCUMENTS["twelve"])
    assert "–" in "".join(significant(v) for c in document["columns"].values() for v in c.values())


def test_titles_of_columns_cannot_become_markup_nor_steer_a_terminal():
    document = audit_documents.document(3, verdict="pass")
    names = [group["group"] for group in document["groups"]]
    document["columns"] = {title: {names[0]: 1.0} for title in audit_documents.HOSTILE_NAMES}
    markdown, text = report.to_markdown(document), report.to_text(document)
    assert "<script" not in markdown
    assert "](https:" not in markdown
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 112
    assert "No room for the columns of" in text


def test_numbers_that_did_not_converge_have_a_mark():
    document = audit_documents.with_columns(audit_documents.document(12))
    title = list(document["columns"])[1]
    name = next(name for name, value in document["columns"][title].items() if value is not None)
    plain = significant(document["columns"][title][name])
    marked = document | {"approximate": {title: [name]}}
    for write in (report.to_text, report.to_markdown):
        assert "≈" not in write(document)
        assert f"≈ {plain}" in write(marked)


def test_the_subject_is_the_headline_and_no_markup():
    document = audit_documents.document(12) | {"subject": "CEAG, *seed* 0 · test data"}
    assert report.to_text(document).startswith("CEAG, *seed* 0 · test data\n\n")
    assert "CEAG, \\*seed\\* 0 · test data" in report.to_markdown(document)
