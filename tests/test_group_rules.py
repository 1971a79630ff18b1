"""Rules that make groups: their texts, ranges and merges; counted samples and tables as plain columns."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenprune import group_rules, groups
from evenprune.audit import audit
from evenprune.columns import Columns, view
from evenprune.formats import open_table
from evenprune.group_rules import GroupRules, merged, merged_tally, parse_bins, ranged
from evenprune.table_ranges import ranged as ranged_table
from evenprune.tally import InputProblems, Scores, Tally
from evenprune.verdict import Audit
from tests.commands import called

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "audit.schema.json").read_text(encoding="utf-8"))

# --- texts ---


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ([], {}),
        (["age=18,30,45"], {"age": (18.0, 30.0, 45.0)}),
        ([" age = 18 , 30.5 ", "income=quantiles:4"], {"age": (18.0, 30.5), "income": 4}),
        (["a=b=-5,0"], {"a=b": (-5.0, 0.0)}),
        (["x=quantiles: 2"], {"x": 2}),
    ],
)
def test_texts_become_ranges_by_column(texts: list[str], found: dict[str, Any]) -> None:
    assert parse_bins(texts) == (found, [])
    assert GroupRules(found).problems(found) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age", "bin is 'age': write COLUMN=EDGES or COLUMN=quantiles:N"),
        ("=18", "write COLUMN=EDGES"),
        ("age=", "write COLUMN=EDGES"),
        ("age=18,x,y", "'x', 'y' are no numbers"),
        ("age=18,", "'' is no number"),
        ("age=30,18", "the edges must rise"),
        ("age=18,18", "the edges must rise"),
        ("age=1,nan", "the edges must rise, each finite"),
        ("age=1,inf", "the edges must rise, each finite"),
        ("age=quantiles:1", "'1' is no whole number from 2 on"),
        ("age=quantiles:x", "'x' is no whole number from 2 on"),
        ("age=quantiles:", "'' is no whole number from 2 on"),
    ],
)
def test_texts_that_are_no_rule_say_how_to_write_one(text: str, said: str) -> None:
    _, (problem,) = parse_bins([text])
    assert said in problem
    assert "--bin age=18,30,45 or --bin income=quantiles:4" in problem


def test_all_problems_of_rules_come_at_once() -> None:
    bins, problems = parse_bins(["age=3", "age=4", "income=x"])
    problems += GroupRules(bins, 0).problems(["race"])
    said = "\n".join(problems)
    assert len(problems) == 5
    for part in (
        "bin names column 'age' twice", "'x' is no number", "bin names column 'age', which is no group",
        "'income', which is no group (the groups are 'race'): add it to these", "merge_below is 0: groups of",
    ):  # fmt: skip
        assert part in said
    assert "bin of 'age': edges is [3, 3]" in GroupRules({"age": [3, 3]}).problems(["age"])[0]
    assert "merge_below is 2.5" in GroupRules(merge_below=2.5).problems([])[0]  # type: ignore[arg-type]


def test_ranges_may_be_spelled_as_a_flag_and_other_values_are_refused() -> None:
    columns, everyone = {"x": list(range(100))}, np.ones(100, dtype=bool)
    for text, plain in (("quantiles:4", 4), ("18, 40", [18, 40])):
        assert GroupRules({"x": text}).problems(["x"]) == []
        found, same = (ranged(columns, {"x": bins}, training=everyone)[0]["x"] for bins in (text, plain))
        assert found.tolist() == same.tolist()
        assert found.notes == same.notes
    for bins, said in (
        ("quantiles:x", "bin of 'x': 'x' is no whole number from 2 on"),
        (4.0, "bin of 'x': quantiles is 4.0: it must be a whole number, 2 or more"),
        (None, "bin of 'x': give either edges, such as"),
        ({}, "bin of 'x': edges is {}: give one or more numbers"),
        (["a"], "bin of 'x': edges is ['a']: give one or more numbers"),
    ):
        (problem,) = GroupRules({"x": bins}).problems(["x"])  # type: ignore[dict-item]
        assert problem.startswith(said)
    with pytest.raises(InputProblems, match="edges is '18': give one or more numbers"):
        groups.binned([1, 20], edges="18")  # type: ignore[arg-type]


# --- ranges ---


def test_ranges_have_names_and_notes() -> None:
    columns = {"age": ["17", "18", None, "70"], "race": ["A", "B", "A", "B"]}
    training = np.array([True, True, True, False])
    found, problems = ranged(columns, {"age": (18, 60)}, training=training)
    assert problems == []
    assert found["age"].tolist() == ["under 18", "18–59", None, "60 and over"]
    assert found["age"].notes == ("age is in ranges that begin at 18, 60.",)
    assert found["race"] is columns["race"]


def test_quantiles_are_those_of_the_training_samples() -> None:
    values = [*range(100), *range(1000, 2000)]
    training = np.arange(1100) < 100
    found, _ = ranged({"x": values}, {"x": 4}, training=training)
    assert found["x"].tolist()[:100] == groups.binned(values[:100], quantiles=4).tolist()
    assert set(found["x"].tolist()[100:]) == {"75 and over"}
    assert found["x"].notes == (
        "x is in ranges that begin at 25, 50, 75, quantiles of the training samples.",
    )
    few, _ = ranged({"x": [0] * 90 + [1] * 10}, {"x": 4}, training=np.ones(100, dtype=bool))
    assert few["x"].notes[1].startswith("x: 4 ranges of about equal size were asked for, and there are 2")


def test_columns_that_cannot_be_put_into_ranges_are_told_together() -> None:
    columns = {"a": ["young", "old", "3"], "b": [1, 2, 3], "c": [None, None, ""], "d": [7, "x", 9]}
    found, problems = ranged(
        columns, {"a": (2,), "b": (10,), "c": (1,), "d": (8,)}, training=np.ones(3, dtype=bool)
    )
    assert problems == [
        "group column 'a' is to be put into ranges, but 2 of 3 values are no numbers, such as 'young', "
        "'old': leave such values empty, or the column as it is, without a bin",
        "group column 'b': all 3 values lie in one range, 'under 10' (they go from 1 to 3); choose edges "
        "between these",
        "group column 'c' holds no number at all: there is nothing to put into ranges",
        "group column 'd' is to be put into ranges, but one of 3 is no number, such as 'x': leave such "
        "values empty, or the column as it is, without a bin",
    ]
    assert found["a"] is columns["a"]


def test_many_numbers_with_few_samples_each_are_noted() -> None:
    (note,) = group_rules.measured({"age": np.arange(300) % 60, "race": ["a", "b"] * 150})
    assert "'age' holds 60 different numbers on 300 training samples" in note
    assert "--bin age=quantiles:4" in note
    assert group_rules.measured({"class": np.arange(6000) % 60}) == []  # a hundred samples each
    assert group_rules.measured({"city": [f"c{i % 60}" for i in range(300)]}) == []


numbers = st.lists(
    st.one_of(st.none(), st.integers(-40, 40), st.floats(-40, 40, width=32)), min_size=2, max_size=40
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=numbers,
    bins=st.sampled_from([(0.0,), (-3.0, 2.5, 9.0), 2, 4]),
    ending=st.sampled_from(["csv", "parquet"]),
)
def test_a_table_has_the_ranges_of_the_plain_column(
    tmp_path: Path, values: list[float | None], bins: Any, ending: str
) -> None:
    frame = pl.DataFrame({"y": [0] * len(values), "x": pl.Series(values, dtype=pl.Float64)})
    path = tmp_path / f"t.{ending}"
    frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    columns = Columns(label="y", dense="y", pruned=("y",), groups=("x",))
    seen, problems, notes = ranged_table(view(open_table(str(path), ["y", "x"]), columns), {"x": bins})
    everyone = np.ones(len(values), dtype=bool)
    plain, wrong = ranged({"x": values}, {"x": bins}, training=everyone)
    assert problems == wrong
    if not problems:
        assert seen.frame.collect()["g0"].to_list() == plain["x"].tolist()
        assert notes == [note.replace("training samples", "samples") for note in plain["x"].notes]


def test_a_table_says_what_is_no_number(tmp_path: Path) -> None:
    frame = pl.DataFrame({"y": [0, 1], "word": ["a", "3"], "day": pl.Series([1, 2]).cast(pl.Date)})
    frame.write_parquet(tmp_path / "t.parquet")
    columns = Columns(label="y", dense="y", pruned=("y",), groups=("word", "day"))
    seen = view(open_table(str(tmp_path / "t.parquet"), ["y", "word", "day"]), columns)
    _, problems, notes = ranged_table(seen, {"word": (2.0,), "day": 2})
    assert ["one of 2 is no number, such as 'a'" in p for p in problems] == [True, False]
    assert "2 of 2 values are no numbers, such as '1970-01-02', '1970-01-03'" in problems[1]
    assert notes == []


# --- merges ---


def test_splits_are_merged_as_the_training_samples_are() -> None:
    train = {"race": np.array(["A"] * 40 + ["B"] * 3), "sex": np.array(["f", "m"] * 21 + ["f"])}
    test = {"race": np.array(["A", "B", "C", "A"]), "sex": np.array(["f", "f", "m", "m"])}
    splits = merged({"train": train, "test": test}, 10)
    assert {name: list(columns) for name, columns in splits.items()} == {
        "train": ["race × sex"],
        "test": ["race × sex"],
    }
    assert splits["test"]["race × sex"].tolist() == ["A × f", "other", "other", "A × m"]
    note, stranger = groups.notes_of(splits["test"])
    assert [note] == groups.notes_of(splits["train"])  # on training samples: the same in every split
    assert note.startswith("2 groups have fewer than 10 training samples, and are merged into “other”: B × f")
    assert "“other” has 3 training samples in all" in note
    assert note.endswith("Wholly in “other”: race B.")
    assert stranger == "One group has no training samples, and is merged into “other”: C × m."


def test_small_groups_of_missing_values_are_merged_too() -> None:
    sexes = np.array(["f", "m"] * 40 + [None] * 4, dtype=object)
    ages = np.array(["young"] * 40 + ["old"] * 41 + ["young"] * 2 + [None], dtype=object)
    splits = {"train": {"sex": sexes, "age": ages}, "test": {"sex": sexes[::7], "age": ages[::7]}}
    found = merged(splits, 10)
    assert set(found["train"]["sex × age"]) == {"f × young", "m × young", "f × old", "m × old", None}
    for columns in found.values():
        assert groups.notes_of(columns) == [
            "3 groups with a missing value are merged into “(missing)”: (missing) × old (1), (missing) × "
            "young (2), (missing) × (missing) (1)."
        ]
    assert merged(splits, 1) == splits  # none is smaller
    one = {"train": {"sex": sexes[[0, 2, 81, 82]], "age": ages[[0, 2, 81, 82]]}}
    assert merged(one, 2) == one  # with the missing ones as one, there would be one group
    alone = {"train": {"sex": sexes}}
    assert merged(alone, 10) == alone  # nothing to merge them with


def test_all_merged_groups_are_known_and_not_only_those_that_the_note_names() -> None:
    values = np.repeat([f"g{i:02d}" for i in range(40)], [50] * 10 + [2] * 30)
    splits = merged({"train": {"kind": values}, "test": {"kind": values[::50]}}, 10)
    (note,) = groups.notes_of(splits["train"])
    assert note.endswith("g17 (2) … and 22 more.")
    assert groups.merged_of(splits["train"]) == {"other": {f"g{i}": 2 for i in range(10, 40)}}
    labels = np.arange(len(values)) % 2
    found = audit(labels=labels, dense=labels, pruned=labels, groups=splits["train"], tolerance=0.1)
    document = found.to_dict()
    assert document["merged"]["other"]["g39"] == 2
    assert Audit.from_dict(document) == found
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_a_table_has_all_merged_groups_too(tmp_path: Path) -> None:
    kinds = [f"g{i:02d}" for i in range(12) for _ in range(2)] + ["large"] * 200 + ["larger"] * 300
    rows = {"y": [i % 2 for i in range(len(kinds))], "kind": kinds}
    pl.DataFrame(rows | {"d": rows["y"], "p": rows["y"]}).write_csv(tmp_path / "t.csv")
    flags = ["--label", "y", "--dense", "d", "--pruned", "p", "--group", "kind", "--tolerance", "0.1"]
    done = called("audit", tmp_path / "t.csv", *flags, "--merge-below", "30", "--json", "-")
    assert json.loads(done.stdout)["merged"] == {"other": {f"g{i:02d}": 2 for i in range(12)}}


def test_nothing_is_changed_where_all_groups_are_large() -> None:
    column = groups.binned([1, 9] * 20, edges=[5])
    splits = {
        "train": {"x": column, "sex": np.array(["f"] * 40)},
        "test": {"x": column[:2], "sex": ["f", "f"]},
    }
    assert merged(splits, 20) == splits


def test_notes_on_ranges_outlive_a_merge() -> None:
    ages, _ = ranged(
        {"age": [3] * 30 + [20] * 30 + [70] * 2}, {"age": (18, 60)}, training=np.ones(62, dtype=bool)
    )
    splits = merged({"train": ages}, 10)
    first, second = groups.notes_of(splits["train"])
    assert first == "age is in ranges that begin at 18, 60."
    assert "merged into “other”: 60 and over (2)" in second


def test_a_merge_that_leaves_one_group_is_refused() -> None:
    with pytest.raises(
        InputProblems, match=r"merge_below is 1,000: every group has .* the largest 40,.*lower it"
    ):
        merged({"train": {"race": np.array(["A"] * 40 + ["B"] * 30 + [None] * 90, dtype=object)}}, 1000)


samples = st.lists(
    st.tuples(st.sampled_from(["A", "B", "C", None]), st.sampled_from(["f", "m"]), st.integers(0, 7)),
    min_size=1,
    max_size=60,
)


def tally_of(rows: list[tuple[Any, ...]]) -> Tally:
    """Counts per cell and pattern, written out."""
    cells = tuple(dict.fromkeys(row[:2] for row in rows))
    counts: dict[tuple[int, int], int] = {}
    for *cell, pattern in rows:
        key = cells.index(tuple(cell)), pattern
        counts[key] = counts.get(key, 0) + 1
    cell, pattern = (np.array(values) for values in zip(*counts, strict=True))
    return Tally(("race", "sex"), cells, ("a", "b"), cell, pattern, np.array(list(counts.values())))


@settings(max_examples=80)
@given(rows=samples, n=st.integers(1, 12))
def test_counted_samples_are_merged_like_columns(rows: list[tuple[Any, ...]], n: int) -> None:
    columns = {"race": [row[0] for row in rows], "sex": [row[1] for row in rows]}
    plain = groups.merge_below(columns, n)
    scores = np.arange(len(rows), dtype=float)
    cells = tuple(dict.fromkeys(row[:2] for row in rows))
    cell = np.array([cells.index(row[:2]) for row in rows])
    scored = Scores("loss", ("race", "sex"), cells, ("a",), cell, scores, scores[None])
    if plain.notes and len(set(plain.tolist()) - {None}) < 2:
        for data in (tally_of(rows), scored):
            with pytest.raises(InputProblems, match="merge_below"):
                merged_tally(data, n)
        return
    found, notes, small = merged_tally(tally_of(rows), n)
    assert notes == list(plain.notes)
    assert small == plain.merged
    assert isinstance(found, Tally)
    if not notes:
        assert found.cells == tally_of(rows).cells
        return
    expected: dict[tuple[Any, int], int] = {}
    for name, row in zip(plain.tolist(), rows, strict=True):
        expected[name, row[2]] = expected.get((name, row[2]), 0) + 1
    pairs = zip(found.cell.tolist(), found.pattern.tolist(), found.count.tolist(), strict=True)
    assert {(found.cells[c][0], pattern): count for c, pattern, count in pairs} == expected
    assert found.attributes == ("race × sex",)
    by_sample, _, _ = merged_tally(scored, n)
    assert [by_sample.cells[c][0] for c in by_sample.cell.tolist()] == plain.tolist()
