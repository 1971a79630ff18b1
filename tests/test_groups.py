"""Columns to cells, names and sums over groups."""

import itertools
from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenprune import groups, report, samples
from evenprune.audit import audit
from evenprune.tally import InputProblems

VALUES = ["b", "a", "b", None, "c", "a"]


@pytest.mark.parametrize(
    "column",
    [
        VALUES,
        np.array(VALUES, dtype=object),
        pd.Series(VALUES),
        pd.Series(VALUES, dtype="category"),
        pd.Series(VALUES, dtype="string"),
        pl.Series(VALUES),
        pl.Series(VALUES, dtype=pl.Categorical),
    ],
    ids=lambda c: f"{type(c).__module__}.{getattr(c, 'dtype', '')}",
)
def test_any_column_of_text_reads_the_same(column):
    codes, texts = groups.factorize(column)
    assert [texts[i] for i in codes] == VALUES


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([3, 1, 3], ["3", "1", "3"]),
        ([-1, 5, -1], ["-1", "5", "-1"]),
        (np.array([1.0, np.nan, 2.5]), ["1", None, "2.5"]),
        ([True, False, True], ["true", "false", "true"]),
        (torch.tensor([7, 0, 7]), ["7", "0", "7"]),
        (torch.tensor([1.5, 2.0], dtype=torch.bfloat16), ["1.5", "2"]),
        (pd.Series([1, None, 2], dtype="Int64"), ["1", None, "2"]),
        (pl.Series([1, None, 2]), ["1", None, "2"]),
        ([1, "1", 1.0], ["1", "1", "1"]),
        (["", "x", None], [None, "x", None]),
        (np.array([b"x", b"y"]), ["x", "y"]),
        (np.array(["2020-01-02"], dtype="datetime64[D]"), ["2020-01-02"]),
        (np.ma.masked_array([1, 2], mask=[False, True]), ["1", None]),
        (np.array([2**62, 5]), [str(2**62), "5"]),
        ([], []),
    ],
    ids=str,
)
def test_any_column_of_values_reads_as_people_write_it(column, expected):
    codes, texts = groups.factorize(column)
    assert [texts[i] for i in codes] == expected


def test_intersections_keep_empty_cells_out_and_name_the_parents():
    columns = {"race": ["A", "A", "B"], "age": ["10", "9", "9"]}
    cell, cells = groups.cells_of(columns)
    assert [cells[i] for i in cell] == [("A", "10"), ("A", "9"), ("B", "9")]
    grouping = groups.group_cells(cells, list(columns), each=False)
    assert grouping.names == ("A × 9", "A × 10", "B × 9")
    assert grouping.attributes[1] == {"race": "A", "age": "10"}


def test_each_has_every_attribute_and_every_intersection():
    cells = [(r, s, t) for r in "ab" for s in "xy" for t in "12"]
    grouping = groups.group_cells(cells, ["r", "s", "t"], each=True)
    assert len(grouping) == 3 * 2 + 3 * 4 + 8
    assert grouping.names[0] == "r=a"
    assert grouping.names[-1] == "r=b × s=y × t=2"
    assert grouping.sum(np.ones(8)).tolist() == [4] * 6 + [2] * 12 + [1] * 8


@pytest.mark.parametrize(
    "cells",
    [
        [("a × b", "c"), ("a", "b × c")],
        [(None, "x"), ("(missing)", "x")],
        [("a", "y × s=b"), ("a × s=y", "b")],
    ],
)
def test_names_are_never_ambiguous(cells):
    names = groups.group_cells(cells, ["r", "s"], each=False).names
    assert len(set(names)) == 2


some_cell = st.tuples(st.text(max_size=3), st.one_of(st.none(), st.text(max_size=3)))
cell_lists = st.lists(some_cell, min_size=1, max_size=12, unique=True)


@given(cell_lists, st.booleans())
def test_names_are_unique_and_every_cell_is_in_one_group_of_each_family(cells, each):
    grouping = groups.group_cells(cells, ["r", "s"], each=each)
    assert len(set(grouping.names)) == len(grouping)
    members = np.concatenate(grouping.families)
    assert set(members.tolist()) == set(range(len(grouping)))


@settings(max_examples=50)
@given(cell_lists, st.integers(0, 10**6))
def test_sum_equals_a_loop_over_cells(cells, seed):
    grouping = groups.group_cells(cells, ["r", "s"], each=True)
    x = np.random.default_rng(seed).standard_normal((3, len(cells)))
    expected = np.zeros((3, len(grouping)))
    for family in grouping.families:
        for k, g in enumerate(family):
            expected[:, g] += x[:, k]
    assert grouping.sum(x) == pytest.approx(expected)


def test_encode_for_training():
    ids, names = groups.encode({"race": ["B", "A", None, "A"], "sex": ["f", "m", "f", "m"]})
    assert names == ("A × m", "B × f")
    assert ids.tolist() == [1, 0, -1, 0]
    ids, names = groups.encode(torch.tensor([10, 2, 10]))
    assert names == ("2", "10")
    assert ids.tolist() == [1, 0, 1]


def test_data_frames_are_mappings_of_columns():
    frame = {"a": [1, 2], "b": ["x", "y"]}
    for made in (pd.DataFrame(frame), pl.DataFrame(frame)):
        assert list(groups.as_columns(made)) == ["a", "b"]


def test_ranges_within_a_name_sort_as_numbers():
    names = ["A × under 18", "A × 18–29", "A × 60 and over", "B × under 18 × x", "B × 18–29 × x"]
    assert sorted(sorted(names), key=lambda name: groups.natural_key((name,))) == names


def test_names_of_ranges_sort_as_numbers():
    names = ["75 and over", "under 18", "18", "18–29", "9", "-5 to under 0", "-10 to under -5", "under -10"]
    assert [c[0] for c in sorted([(n,) for n in names], key=groups.natural_key)] == [
        "under -10", "-10 to under -5", "-5 to under 0", "9", "18", "under 18", "18–29", "75 and over",
    ]  # fmt: skip


def test_decimals_sort_as_numbers():
    _, names = groups.encode(groups.binned([0.01, 0.07, 0.3, 12], edges=[0.05, 0.1, 2.5]))
    assert names == ("under 0.05", "0.05 to under 0.1", "0.1 to under 2.5", "2.5 and over")


def test_texts_that_are_the_same_number_keep_one_order():
    cells = [("01",), ("1",), ("001",)]
    orders = {tuple(sorted(some, key=groups.natural_key)) for some in itertools.permutations(cells)}
    assert len(orders) == 1


# --- numbers to ranges ---


def test_whole_numbers_get_ranges_that_name_their_last_number():
    ages = [17, 18, 29, 30, 44, 45, 74, 75, 116, None, 0]
    assert groups.binned(ages, edges=[18, 30, 45, 75]).tolist() == [
        "under 18", "18–29", "18–29", "30–44", "30–44", "45–74", "45–74", "75 and over", "75 and over", None,
        "under 18",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "told", "expected"),
    [
        (
            np.array([0.2, 0.5, 1.0, np.nan]),
            {"edges": [0.5, 1]},
            ["under 0.5", "0.5 to under 1", "1 and over", None],
        ),
        (np.array([17.0, 20.0, np.nan]), {"edges": [18]}, ["under 18", "18 and over", None]),
        ([3, 4, 5], {"edges": [4, 5]}, ["under 4", "4", "5 and over"]),
        ([-7, -3, 2], {"edges": [-5, 0]}, ["under -5", "-5 to -1", "0 and over"]),
        ([3, 4], {"edges": [3.5]}, ["under 3.5", "3.5 and over"]),
        (["3", "4", "", None], {"edges": [4]}, ["under 4", "4 and over", None, None]),
        (
            [5, 30, 80],
            {"edges": [18, 65], "unit": "years"},
            ["under 18 years", "18–64 years", "65 years and over"],
        ),
        ([1, 2], {"edges": [2], "whole": False}, ["under 2", "2 and over"]),
        ([1, 2, 3], {"edges": [2, 3], "whole": False}, ["under 2", "2 to under 3", "3 and over"]),
        (pd.Series([20, None, 40], dtype="Int64"), {"edges": [30]}, ["under 30", None, "30 and over"]),
        (pl.Series([20.5, None, 40]), {"edges": [30]}, ["under 30", None, "30 and over"]),
        (torch.tensor([1.0, 9.0]), {"edges": [5]}, ["under 5", "5 and over"]),
        ([np.inf, -np.inf, 3.0], {"edges": [5]}, ["5 and over", "under 5", "under 5"]),
        ([None, None], {"quantiles": 3}, [None, None]),
        ([], {"quantiles": 3}, []),
        ([7, 7, None], {"quantiles": 2}, ["7", "7", None]),
        (
            list(range(100)),
            {"quantiles": 4},
            ["under 25"] * 25 + ["25–49"] * 25 + ["50–74"] * 25 + ["75 and over"] * 25,
        ),
    ],
    ids=str,
)
def test_ranges_by_edges_and_quantiles(values, told, expected):
    assert groups.binned(values, **told).tolist() == expected


def test_frequent_values_leave_fewer_ranges_and_say_so():
    gains = [0] * 90 + [5_013, 7_298, 7_688, 7_688, 15_024, 15_024, 15_024, 99_999, 99_999, 99_999]
    column = groups.binned(gains, quantiles=4)
    assert sorted(set(column)) == ["5000 and over", "under 5000"]
    assert column.notes == (
        "4 ranges of about equal size were asked for, and there are 2: some values are so frequent that they "
        "fill more than one.",
    )
    assert groups.binned(range_of_ages(), quantiles=4).notes == ()


def range_of_ages():
    return np.random.default_rng(0).integers(1, 100, 5000)


@pytest.mark.parametrize("frequent", [30, 45, 49, 52, 55, 60, 70])
def test_a_frequent_value_is_never_joined_with_all_others(frequent):
    two = Counter(groups.binned([0] * frequent + [1] * (100 - frequent), quantiles=2))
    assert sorted(two.values()) == sorted((frequent, 100 - frequent))
    others = [x / 7 for x in range(1, 101 - frequent)]
    many = Counter(groups.binned([0.0] * frequent + others, quantiles=2))
    assert len(many) == 2
    assert max(many.values()) <= max(50, frequent) + 3  # a twentieth of the half


def test_quantile_edges_are_round_where_they_may_be():
    incomes = np.random.default_rng(1).lognormal(10, 1, 20_000)
    edges = groups.quantile_edges(incomes, 4)
    exact = np.quantile(incomes, [0.25, 0.5, 0.75])
    assert all(len(f"{edge:g}".rstrip("0")) <= 3 for edge in edges), edges
    sizes = np.bincount(np.searchsorted(edges, incomes, side="right")) / 20_000
    assert sizes == pytest.approx([0.25] * 4, abs=0.026)
    assert edges == pytest.approx(tuple(exact), rel=0.05)


@pytest.mark.parametrize(
    ("values", "told", "message"),
    [
        ([1, 2], {}, "give either edges"),
        ([1, 2], {"edges": [1], "quantiles": 2}, "give either edges"),
        ([1, 2], {"edges": []}, r"edges is \[\]"),
        ([1, 2], {"edges": [2, 2]}, "each larger than the one before"),
        ([1, 2], {"edges": [1, np.nan]}, "each larger"),
        ([1, 2], {"edges": [1, np.inf]}, "each larger"),
        ([1, 2], {"quantiles": 1}, "quantiles is 1: it must be a whole number, 2 or more"),
        ([1, 2], {"quantiles": 2.5}, "quantiles is 2.5"),
        (["young", "4", "old"], {"edges": [3]}, "2 values are no numbers; the first is 'young' of sample 0"),
        ([[1, 2]], {"edges": [3]}, r"shape \[1, 2\]"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_put_into_ranges_is_refused(values, told, message):
    with pytest.raises(InputProblems, match=message):
        groups.binned(values, **told)


def test_all_problems_of_ranges_come_at_once():
    with pytest.raises(InputProblems) as error:
        groups.binned(["young"], quantiles=0)
    assert len(error.value.problems) == 2


reals = st.floats(allow_nan=False, allow_infinity=False)
some_values = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-1000, 1000)), max_size=60),
    st.lists(st.one_of(st.none(), reals), max_size=60),
    st.lists(st.one_of(st.none(), st.floats(-10, 10, width=16)), max_size=60),
)


def limits_of(name, unit=""):
    """The numbers that a name says it holds: from … to, and whether the upper one belongs to it."""
    name = name.replace(f" {unit}", "") if unit else name
    if name.startswith("under "):
        return -np.inf, float(name[6:]), False
    if name.endswith(" and over"):
        return float(name[: -len(" and over")]), np.inf, True
    if " to under " in name:
        low, high = name.split(" to under ")
        return float(low), float(high), False
    low, high = name.split(" to ") if " to " in name else name.split("–") if "–" in name else (name, name)
    return float(low), float(high), True


@settings(max_examples=200)
@given(some_values, st.lists(st.one_of(st.integers(-50, 50), reals), min_size=1, max_size=6), st.booleans())
def test_every_value_lies_where_its_name_says(values, edges, given_edges):
    rising = sorted({float(e) for e in edges})
    told = {"edges": rising} if given_edges else {"quantiles": len(edges) + 1}
    column = groups.binned(values, **told)
    assert len(column) == len(values)
    for value, name in zip(values, column.tolist(), strict=True):
        assert (name is None) == (value is None)
        if name is not None:
            low, high, with_high = limits_of(name)
            assert low <= value
            assert value <= high if with_high else value < high


@settings(max_examples=200)
@given(st.lists(reals, min_size=1, max_size=60), st.integers(2, 6))
def test_larger_values_never_lie_in_a_lower_range(values, count):
    column = groups.binned(values, quantiles=count)
    order = {
        name: i for i, (name,) in enumerate(sorted({(n,) for n in column}, key=lambda c: limits_of(c[0])))
    }
    ranks = [order[name] for _, name in sorted(zip(values, column.tolist(), strict=True))]
    assert ranks == sorted(ranks)
    assert len(order) <= count


@settings(max_examples=100)
@given(st.integers(2, 8), st.integers(0, 10**6), st.sampled_from(["normal", "lognormal", "integers"]))
def test_quantiles_make_ranges_of_about_equal_size(count, seed, kind):
    rng = np.random.default_rng(seed)
    size = 2000
    values = rng.integers(0, 10**9, size) if kind == "integers" else getattr(rng, kind)(size=size)
    edges = groups.quantile_edges(values, count)
    assert len(edges) == count - 1
    sizes = np.bincount(np.searchsorted(edges, values, side="right"), minlength=count) / size
    assert sizes == pytest.approx([1 / count] * count, abs=0.1 / count + 2 / size)


# --- small groups to one ---

RACE = ["A"] * 50 + ["B"] * 30 + ["C"] * 3 + ["D"] * 2 + [None]
SEX = ["f", "m"] * 43


def test_small_groups_become_one_and_are_noted():
    column = groups.merge_below(RACE, 10)
    assert column.tolist() == ["A"] * 50 + ["B"] * 30 + ["other"] * 5 + [None]
    assert column.notes == (
        "2 groups have fewer than 10 samples, and are merged into “other”: C (3), D (2). "
        "“other” has 5 samples in all, still fewer than 10.",
    )
    assert groups.merge_below(RACE, 2).tolist() == RACE
    assert groups.merge_below(RACE, 2).notes == ()


def test_small_intersections_become_one_group():
    column = groups.merge_below({"race": RACE, "sex": SEX}, 3, into="rest")
    assert set(column.tolist()) == {"A × f", "A × m", "B × f", "B × m", "rest", None}
    assert column.notes == (
        "4 groups have fewer than 3 samples, and are merged into “rest”: "
        "C × f (2), C × m (1), D × f (1), D × m (1). Wholly in “rest”: race C, race D.",
    )


def test_a_value_that_is_left_nowhere_else_is_told():
    columns = {"race": ["A"] * 9 + ["B"] * 9 + ["C", "C"], "sex": ["f", "m"] * 9 + ["f", None]}
    assert "Wholly" not in groups.merge_below({"race": columns["race"]}, 3).notes[0]
    assert (
        groups.merge_below(columns, 3).notes[0].endswith(" Wholly in “other”: race C.")
    )  # (missing) is none
    only = groups.merge_below({"race": ["A"] * 9 + ["B"] * 9, "sex": ["f"] * 17 + ["m"]}, 3)
    assert only.notes[0].endswith(" Wholly in “other”: sex m.")
    part = groups.merge_below({"race": ["A"] * 9 + ["B"] * 5, "sex": ["f"] * 4 + ["m"] * 9 + ["f"]}, 3)
    assert part.notes == (
        "One group has fewer than 3 samples, and is merged into “other”: B × f (1). “other” has 1 sample in "
        "all, still fewer than 3.",
    )


def test_a_group_of_the_same_name_is_joined_and_the_note_says_so():
    column = groups.merge_below(["other"] * 20 + ["x"] * 2 + ["y"] * 20, 5)
    assert column.tolist() == ["other"] * 22 + ["y"] * 20
    assert column.notes == (
        "One group has fewer than 5 samples, and is merged into “other”: x (2). "
        "“other” was there before, with 20.",
    )


def test_long_lists_of_merged_groups_are_cut():
    (note,) = groups.merge_below([str(i) for i in range(1000)], 2).notes
    assert "7 (1) … and 992 more." in note


def test_all_splits_are_merged_as_the_training_data_is():
    train, test = ["a"] * 40 + ["b"] * 40 + ["c"] * 3, ["a", "b", "c", "d", "c"] * 10
    column = groups.merge_below(test, 10, training=train)
    assert column.tolist() == ["a", "b", "other", "other", "other"] * 10
    assert column.notes == (
        "One group has fewer than 10 training samples, and is merged into “other”: c (3). “other” has 3 "
        "training samples in all, still fewer than 10.",
        "One group has no training samples, and is merged into “other”: d.",
    )
    assert column.merged == {"other": {"c": 3, "d": 0}}
    assert set(groups.merge_below(train, 10)) == set(column)


@pytest.mark.parametrize("n", [0, -1, 2.5, "3"])
def test_how_small_is_a_number(n):
    with pytest.raises(InputProblems, match="n is"):
        groups.merge_below(RACE, n)


@settings(max_examples=100)
@given(
    st.lists(st.one_of(st.none(), st.sampled_from("abcdefgh")), min_size=1, max_size=80), st.integers(1, 20)
)
def test_merging_keeps_samples_and_large_groups(values, n):
    column = groups.merge_below(values, n).tolist()
    for value, name in zip(values, column, strict=True):
        expected = None if value is None else "other" if values.count(value) < n else value
        assert name == expected
    again = groups.merge_below(column, n)
    assert again.tolist() == column


# --- notes reach the audit ---


def test_notes_stay_with_the_samples_that_are_chosen():
    column = groups.merge_below(RACE, 10)
    assert column[::2].notes == column.notes
    assert column[np.arange(3)].notes == column.notes
    assert groups.Column.of(["a"]).notes == ()
    assert groups.notes_of({"race": column, "again": column[:3], "plain": RACE}) == list(column.notes)
    assert groups.notes_of(column) == list(column.notes)
    assert groups.notes_of(pd.DataFrame({"notes": [1]})) == []


def test_an_audit_says_what_was_merged():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, len(RACE))
    dense, pruned = labels.copy(), np.where(rng.random(len(RACE)) < 0.1, 1 - labels, labels)
    column = groups.merge_below(RACE, 10)
    found = audit(labels=labels, dense=dense, pruned=pruned, groups={"race": column}, tolerance=0.1)
    assert found.notes[0] == column.notes[0]
    assert found.notes[0] in str(found).replace("\n", " ").replace("      ", "") or "merged into" in str(
        found
    )
    several = {"a": pruned, "b": dense}
    both = audit(labels=labels, dense=dense, pruned=several, groups={"race": column}, tolerance=0.1)
    assert [one.notes[0] for one in (both, *both.models.values())] == [column.notes[0]] * 3
    assert "merged into" in report.to_html(both.to_dict())
    assert "merged into" in report.to_markdown(found.to_dict())
    plain = audit(labels=labels, dense=dense, pruned=pruned, groups={"race": RACE}, tolerance=0.1)
    assert not any("merged" in note for note in plain.notes)


def test_notes_stay_where_codes_get_names_and_missing_values():
    column = groups.noted(np.array([0, 1, -1] * 10), ["a note", "another", "a note"])
    assert column.notes == ("a note", "another")
    assert groups.noted(column, ["a note"]).notes == column.notes
    data = (torch.zeros(30, 3), torch.arange(30) % 2, {"kind": column})
    for chosen in (["kind"], {"kind": ["A", "B"]}):
        read = samples.read({"train": data, "test": data}, chosen)
        assert groups.notes_of(read.columns["test"]) == ["a note", "another"]
        assert read.columns["test"]["kind"].tolist()[2] is None


def test_notes_go_through_the_reading_of_samples():
    column = groups.merge_below(["a"] * 20 + ["b"] * 20 + ["c"] * 2, 10)
    data = (torch.zeros(42, 3), torch.arange(42) % 2, {"kind": column, "else": [1] * 42})
    read = samples.read({"train": data, "test": data}, ["kind"])
    assert read.names == ("a", "b", "other")
    assert groups.notes_of(read.columns["test"]) == list(column.notes)
