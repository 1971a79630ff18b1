"""Columns to cells, names and sums over groups."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenprune import groups

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


@settings(deadline=None)
@given(cell_lists, st.booleans())
def test_names_are_unique_and_every_cell_is_in_one_group_of_each_family(cells, each):
    grouping = groups.group_cells(cells, ["r", "s"], each=each)
    assert len(set(grouping.names)) == len(grouping)
    members = np.concatenate(grouping.families)
    assert set(members.tolist()) == set(range(len(grouping)))


@settings(deadline=None, max_examples=50)
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
