"""Units, safe names and the verdict in one sentence."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenprune import wording
from tests import audit_documents


def test_a_fail_names_the_surest_group_and_by_how_much():
    document = audit_documents.document(12, verdict="fail")
    worst = max(document["groups"], key=lambda group: group["test_lower"])
    sentence = wording.verdict_sentence(document)
    assert sentence == (
        f"Fail: pruning cost “{worst['group']}” {worst['excess_gap'] * 100:.1f} points more accuracy "
        f"than the average, at least {worst['test_lower'] * 100:.1f} points with 95 % confidence; "
        "the tolerance is 2.0 points."
    )


def test_a_fail_names_a_proven_group_not_a_noisier_one():
    document = audit_documents.document(12, verdict="fail")
    innocent = next(group for group in document["groups"] if not group["violates"])
    innocent["excess_gap"] = document["max_excess_gap"]["estimate"] = 0.5
    document["max_excess_gap"]["group"] = innocent["group"]
    assert f"“{innocent['group']}”" not in wording.verdict_sentence(document)


def test_a_fail_of_a_group_that_gained_less_does_not_speak_of_cost():
    document = audit_documents.document(12, verdict="fail")
    next(group for group in document["groups"] if group["violates"])["gap"] = -0.01
    assert "pruning improved the accuracy of “Others × Female” by" in wording.verdict_sentence(document)


def test_a_pass_says_what_is_ruled_out():
    document = audit_documents.document(6, verdict="pass")
    sentence = wording.verdict_sentence(document)
    assert sentence.startswith(
        "Pass: with 95 % confidence, pruning cost no group more than 2.0 points of accuracy beyond the "
        "average;"
    )
    assert f"at most {document['max_excess_gap']['upper'] * 100:.1f} points." in sentence


@pytest.mark.parametrize(
    ("settle", "ending"),
    [
        (
            {"verdict": "pass", "group": "a", "samples_per_group": 2300, "samples": 11500},
            "; about 2,300 samples per group (11,500 in all) would likely settle it as a pass.",
        ),
        (
            {"verdict": "fail", "group": "a", "samples_per_group": None, "samples": None},
            "; this lies so close to the tolerance that no realistic number of samples would settle it.",
        ),
    ],
)
def test_an_inconclusive_audit_says_what_would_settle_it(settle, ending):
    document = audit_documents.document(12, verdict="inconclusive") | {"settle": settle}
    sentence = wording.verdict_sentence(document)
    assert sentence.startswith(
        "Inconclusive: 3,734 samples neither prove nor rule out that pruning cost some"
    )
    assert " points (one-sided 95 % limits); " in sentence
    assert sentence.endswith(ending)


def test_a_tiny_group_that_blocks_a_pass_is_named():
    document = audit_documents.document(6, verdict="pass") | {"verdict": "inconclusive", "settle": None}
    document["groups"][2] |= {"tiny": True, "samples": 4}
    assert "“Indian” has too few samples (4) to judge" in wording.verdict_sentence(document)


def test_losses_are_not_points():
    for verdict in ("pass", "fail", "inconclusive"):
        sentence = wording.verdict_sentence(audit_documents.document(12, verdict=verdict, measure="loss"))
        assert "raised the loss of" in sentence
        assert "points" not in sentence
        assert "0.020" in sentence


def test_with_several_models_the_sentence_names_the_model():
    document = audit_documents.side_by_side(6, models={"nft": "fail", "ceag": "pass"})
    assert "pruning (model “nft”) cost" in wording.verdict_sentence(document)


def test_decimals_grow_until_limit_and_tolerance_differ():
    document = audit_documents.document(12, verdict="fail")
    assert wording.unit_of(document).digits == 1
    document["max_excess_gap"]["lower"] = 0.0204
    assert wording.unit_of(document).digits == 2
    document["tolerance"] = 0.0025
    assert wording.unit_of(document).amount(document["tolerance"]) == "0.25 points"


def test_numbers_without_value_are_a_dash():
    unit = wording.Unit(noun="accuracy", scale=100, digits=1, word=" points")
    assert [unit.number(value) for value in (None, float("nan"), -0.0001, -0.061)] == [
        "–",
        "–",
        "0.0",
        "−6.1",
    ]
    assert unit.level(0.912) == "91.2 %"


def test_status_of_a_group():
    group = {"violates": False, "tiny": False, "test_upper": 0.02}
    assert wording.status(group, 0.02) == "within"
    assert wording.status(group | {"test_upper": 0.021}, 0.02) == "unproven"
    assert wording.status(group | {"test_upper": None}, 0.02) == "unproven"
    assert wording.status(group | {"tiny": True}, 0.02) == "tiny"
    assert wording.status(group | {"tiny": True, "violates": True}, 0.02) == "beyond"


@settings(max_examples=200)
@given(st.text(st.characters(), max_size=80))
def test_no_name_steers_a_terminal_or_breaks_a_line(name):
    safe = wording.visible(name)
    assert len(safe) == len(name)
    assert len(safe.splitlines()) <= 1
    assert "\x1b" not in safe
    assert "\u202e" not in safe
    safe.encode("utf-8")
    assert wording.visible(safe) == safe


@settings(max_examples=100)
@given(st.text(max_size=80), st.integers(3, 70))
def test_shortening_keeps_both_ends(text, longest):
    short = wording.shorten(text, longest)
    assert len(short) == min(len(text), longest)
    assert short[:1] == text[:1]


def test_right_to_left_names_are_isolated():
    assert wording.quoted("שלום") == "“\u2068שלום\u2069”"
    assert wording.quoted("plain") == "“plain”"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (float("nan"), "–"), (float("inf"), "–"), (0.0, "0"), (-0.0, "0"), (1.0, "1"),
        (-1.25, "−1.25"), (1 / 3, "0.3333"), (12345.678, "12,350"), (1234567.0, "1,235,000"),
        (9_999_999.0, "1e7"), (0.0001, "0.0001"), (0.00012345, "0.0001234"), (0.00001234, "1.234e−5"),
        (-2.5e-8, "−2.5e−8"), (3e12, "3e12"),
    ],
)  # fmt: skip
def test_numbers_of_any_size(value, text):
    assert wording.significant(value) == text
