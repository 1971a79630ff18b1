"""Files of every format become the same tally, and everything wrong with a file is said at once."""

import datetime
import gzip
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenprune import tables
from evenprune.tables import Columns, read
from evenprune.tally import InputProblems, Scores, Tally
from tests.twins import tables as twin

CLASSES = Columns(label="label", dense="dense", pruned=("pruned",), groups=("group",))
FRAME = pl.DataFrame(
    {
        "label": [0, 1, 2, 2, 1, 0],
        "dense": [0, 1, 2, 1, 1, 1],
        "pruned": [0, 0, 2, 2, 1, 0],
        "group": ["b", "a", "b", "a", "a", None],
    }
)
EXPECTED = {(("a",), 1): 1, (("a",), 2): 1, (("a",), 3): 1, (("b",), 3): 2, ((None,), 2): 1}


def counts(data: Tally | Scores) -> dict[twin.Pattern, int]:
    assert isinstance(data, Tally)
    rows = zip(data.cell, data.pattern, data.count, strict=True)
    counted = {(data.cells[cell], int(pattern)): int(count) for cell, pattern, count in rows}
    assert len(counted) == len(data.count)
    return counted


def problems(path: Path | str, columns: Columns = CLASSES) -> str:
    with pytest.raises(InputProblems) as caught:
        read(str(path), columns)
    return str(caught.value)


def save(frame: pl.DataFrame, path: Path) -> Path:
    """Write a frame in the format that the name of the file says."""
    name = path.name
    if name.endswith(".csv.gz"):
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif name.endswith(".npz"):
        np.savez(path, **{c: np.array(["" if v is None else v for v in frame[c]]) for c in frame.columns})
    else:
        writers = {
            ".csv": frame.write_csv,
            ".tsv": lambda p: frame.write_csv(p, separator="\t"),
            ".parquet": frame.write_parquet,
            ".feather": frame.write_ipc,
            ".arrow": frame.write_ipc,
            ".arrows": frame.write_ipc_stream,
            ".jsonl": frame.write_ndjson,
            ".ndjson": frame.write_ndjson,
            ".json": frame.write_ndjson,
        }
        writers[path.suffix](path)
    return path


FORMATS = ["csv", "csv.gz", "tsv", "parquet", "feather", "arrow", "arrows", "jsonl", "ndjson", "json", "npz"]


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_tally(tmp_path: Path, ending: str) -> None:
    data = read(str(save(FRAME, tmp_path / f"t.{ending}")), CLASSES)
    assert counts(data) == EXPECTED
    assert data.attributes == ("group",)
    assert data.models == ("pruned",)
    assert data.cells == (("a",), ("b",), (None,))


@pytest.mark.parametrize("ending", FORMATS)
def test_the_content_tells_the_format_where_the_name_does_not(tmp_path: Path, ending: str) -> None:
    path = save(FRAME, tmp_path / f"t.{ending}").rename(tmp_path / "table.dat")
    assert counts(read(str(path), CLASSES)) == EXPECTED


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "arrow", "npz"])
def test_wildcards_in_file_names_are_letters(tmp_path: Path, ending: str) -> None:
    save(FRAME.head(3), tmp_path / f"t1.{ending}")
    path = save(FRAME, tmp_path / f"t[1]*.{ending}")
    assert counts(read(str(path), CLASSES)) == EXPECTED


def test_semicolons_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\ufeff" + FRAME.write_csv(separator=";"), encoding="utf-8")
    assert counts(read(str(path), CLASSES)) == EXPECTED


GROUPS = st.sampled_from(["", "a", "b, c", 'q"q', "a×é", "line\nbreak", "nan", "007", "7", " "])
NUMBERED = st.sampled_from(["", "1", "1.0", "2", "10", "-3.0", "2.5", "nan"])
NUMERIC = st.sampled_from(["0", "1", "2", "1.0", "0.0", "+2"])
WORDS = st.sampled_from(["cat", "dog", "1", "1.0", "Cat"])


def rows_of(classes: st.SearchStrategy[str], known: str) -> st.SearchStrategy[list[tuple[str, ...]]]:
    """Rows of label, three answers and two groups; two fixed rows settle type and number of groups."""
    fixed = [(*[known] * 4, "one", "1"), (*[known] * 4, "two", "2")]
    row = st.tuples(classes, classes, classes, classes, GROUPS, NUMBERED)
    return st.lists(row, max_size=40).map(lambda rows: rows + fixed)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows_of(NUMERIC, "1") | rows_of(WORDS, "cat"))
def test_counts_agree_with_the_row_by_row_twin(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path / "t.csv"
    pl.DataFrame(rows, schema=["label", "dense", "p", "q", "g", "h"], orient="row").write_csv(path)
    found = read(str(path), Columns(label="label", dense="dense", pruned=("p", "q"), groups=("g", "h")))
    assert counts(found) == twin.tally(
        path, label="label", dense="dense", pruned=["p", "q"], groups=["g", "h"]
    )


def test_csv_types_are_found_over_the_whole_file(tmp_path: Path) -> None:
    late = pl.DataFrame({"label": ["1"] * 5000 + ["other"], "dense": ["1"] * 5000 + ["other"]})
    frame = late.with_columns(pl.col("dense").alias("pruned"), pl.Series("group", ["a", "b", "c"] * 1667))
    assert read(str(save(frame, tmp_path / "t.csv")), CLASSES).samples == 5001


ODD_NAMES = ["^.*$", "*", "a b", "x.y", "größe", "^p", "", "a,b", "pattern", "count", "a0", "g0", "row"]


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("first", range(0, 13, 3))
def test_any_name_of_a_column_works(tmp_path: Path, ending: str, first: int) -> None:
    names = [ODD_NAMES[(first + i) % 13] for i in range(4)]
    frame = FRAME.rename(dict(zip(FRAME.columns, names, strict=True))).with_columns(pl.lit(9).alias("zz"))
    path = save(frame, tmp_path / f"t.{ending}")
    columns = Columns(label=names[0], dense=names[1], pruned=(names[2],), groups=(names[3],))
    assert counts(read(str(path), columns)) == EXPECTED


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_the_label_may_be_the_group(tmp_path: Path, ending: str) -> None:
    columns = Columns(label="label", dense="dense", pruned=("pruned",), groups=("label",))
    data = read(str(save(FRAME, tmp_path / f"t.{ending}")), columns)
    assert data.cells == (("0",), ("1",), ("2",))


def test_numbers_compare_as_numbers_and_text_as_text(tmp_path: Path) -> None:
    frame = FRAME.with_columns(
        pl.col("label").cast(pl.Float64),
        pl.col("dense").cast(pl.Int8),
        pl.col("pruned").cast(pl.Decimal(6, 2)),
    )
    assert counts(read(str(save(frame, tmp_path / "n.parquet")), CLASSES)) == EXPECTED
    words = FRAME.with_columns(
        pl.col("label").cast(pl.String),
        pl.col("dense").cast(pl.String).cast(pl.Categorical),
        pl.col("pruned").cast(pl.String).cast(pl.Enum(["0", "1", "2"])),
    )
    assert counts(read(str(save(words, tmp_path / "w.parquet")), CLASSES)) == EXPECTED


def test_booleans_count_as_zero_and_one(tmp_path: Path) -> None:
    frame = FRAME.with_columns(pl.col("label") == 1, pl.col("dense") == 1, (pl.col("pruned") == 1).cast(int))
    found = counts(read(str(save(frame, tmp_path / "t.parquet")), CLASSES))
    same = FRAME.with_columns(pl.col("label", "dense", "pruned") == 1).rows()
    expected = Counter(((g,), (lab == d) + 2 * (lab == p)) for lab, d, p, g in same)
    assert found == expected


GROUP_VALUES: list[tuple[Any, list[str | None]]] = [
    (pl.Series([1.0, 2.5, None, float("nan")]), ["1", "2.5", None]),
    (pl.Series([True, False, None, True]), ["false", "true", None]),
    (pl.Series([datetime.date(2024, 5, 1), datetime.date(2023, 5, 1)] * 2), ["2023-05-01", "2024-05-01"]),
    (pl.Series(["x", "y", "", None], dtype=pl.Categorical), ["x", "y", None]),
    (pl.Series([10, 9, 100, 9], dtype=pl.UInt8), ["9", "10", "100"]),
]


@pytest.mark.parametrize("ending", ["parquet", "feather"])
@pytest.mark.parametrize(("values", "texts"), GROUP_VALUES, ids=lambda v: str(getattr(v, "dtype", "")))
def test_group_values_become_text(tmp_path: Path, ending: str, values: pl.Series, texts: list[str]) -> None:
    frame = FRAME.head(4).with_columns(values.alias("group"))
    data = read(str(save(frame, tmp_path / f"t.{ending}")), CLASSES)
    assert [cell[0] for cell in data.cells] == texts
    assert data.samples == 4


ONE_HOT = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]


@pytest.mark.parametrize("ending", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("kind", [pl.List(pl.Float32), pl.Array(pl.Float64, 3)])
def test_scores_stand_for_their_highest_class(tmp_path: Path, ending: str, kind: Any) -> None:
    scores = pl.Series("dense", [ONE_HOT[d] for d in FRAME["dense"]], dtype=kind)
    frame = FRAME.with_columns(scores)
    assert counts(read(str(save(frame, tmp_path / f"t.{ending}")), CLASSES)) == EXPECTED


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_scores_in_npz(tmp_path: Path, dtype: Any) -> None:
    scores = (np.array(ONE_HOT)[FRAME["dense"].to_numpy()] * 10).astype(dtype)
    arrays = {name: FRAME[name].to_numpy() for name in ("label", "pruned")}
    groups = np.array([g or "" for g in FRAME["group"]]).astype("S")
    np.savez(tmp_path / "t.npz", dense=scores, group=groups, unused=np.zeros(3), **arrays)
    assert counts(read(str(tmp_path / "t.npz"), CLASSES)) == EXPECTED


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("spelling", [bool, int, float, str, lambda v: str(v).upper()])
def test_known_correctness(tmp_path: Path, ending: str, spelling: Any) -> None:
    right = FRAME.select(
        *(pl.Series(c, [spelling(x == y) for x, y in zip(FRAME[c], FRAME["label"], strict=True)]) for c in
          ("dense", "pruned")),
        pl.col("group"),
    )  # fmt: skip
    columns = Columns(answers="correct", dense="dense", pruned=("pruned",), groups=("group",))
    assert counts(read(str(save(right, tmp_path / f"t.{ending}")), columns)) == EXPECTED


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("measure", ["score", "loss"])
def test_scores_and_losses_keep_their_rows(tmp_path: Path, ending: str, measure: Any) -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"d": rng.random(50), "p": rng.random(50), "q": rng.random(50), "g": rng.integers(0, 3, 50)}
    ).with_columns(pl.col("g").cast(pl.String).replace("0", None))
    columns = Columns(answers=measure, dense="d", pruned=("p", "q"), groups=("g",))
    data = read(str(save(frame, tmp_path / f"t.{ending}")), columns)
    assert isinstance(data, Scores)
    assert data.measure == measure
    assert [data.cells[c][0] for c in data.cell] == frame["g"].to_list()
    np.testing.assert_array_equal(data.dense, frame["d"].to_numpy())
    np.testing.assert_array_equal(data.pruned, frame.select("p", "q").to_numpy().T)


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    first = read(str(save(FRAME, tmp_path / "a.parquet")), CLASSES)
    second = read(str(save(FRAME.reverse(), tmp_path / "b.parquet")), CLASSES)
    assert isinstance(first, Tally)
    assert isinstance(second, Tally)
    assert first.cells == second.cells
    for name in ("cell", "pattern", "count"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_a_model_that_is_never_right_is_no_problem(tmp_path: Path) -> None:
    frame = FRAME.with_columns(pruned=(pl.col("label") + 1) % 3)
    assert read(str(save(frame, tmp_path / "t.parquet")), CLASSES).samples == 6


def with_values(column: str, *values: Any) -> pl.DataFrame:
    return FRAME.with_columns(pl.Series(column, list(values), strict=False))


NAN = float("nan")
BAD_VALUES: list[tuple[pl.DataFrame, list[str]]] = [
    (with_values("label", 0, None, 2, NAN, 1, 0), ["'label' has 2 missing values", "in rows 2, 4"]),
    (with_values("dense", 0, 1, 2, 1, 1, NAN), ["'dense' has a missing value", "in row 6"]),
    (with_values("label", 7, 8, 9, 7, 8, 9), ["no label in column 'label' (7, 8, 9)", "'dense' (0, 1, 2)"]),
    (with_values("label", *"abcabc"), ["'label' holds text, for example 'a'", "'dense' holds numbers"]),
    (with_values("pruned", 0.0, 0.25, 1.0, 1.0, 0.5, 0.0), ["'pruned' holds fractions", "0.25, 0.5"]),
    (with_values("group", *"aaaaaa"), ["one group only, 'a'"]),
    (FRAME.clear(), ["has columns, but no rows"]),
]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("frame", "said"), BAD_VALUES, ids=lambda v: str(v[0])[:25] if isinstance(v, list) else ""
)
def test_bad_values_are_named(tmp_path: Path, ending: str, frame: pl.DataFrame, said: list[str]) -> None:
    message = problems(save(frame, tmp_path / f"t.{ending}"))
    for part in said:
        assert part in message


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    frame = with_values("label", 0, None, 2, 2, 1, 0).with_columns(pl.lit("x").alias("group"))
    columns = Columns(label="label", dense="Dense", pruned=("pruned", "pruned"), groups=("group",))
    message = problems(save(frame, tmp_path / "t.csv"), columns)
    for part in (
        "4 problems",
        "no column 'Dense' (did you mean 'dense'?)",
        "'label' has a missing",
        "one group",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([[0.5, 0.5]] * 6, "but the 2 scores a row in column 'dense' stand for the classes 0 to 1"),
        ([[0.5]] * 6, "one score a row"),
        ([[0.5, 0.2, 0.3]] * 5 + [[0.5, 0.5]], "lists of 2 to 3 scores"),
        ([[0.5, 0.2, 0.3]] * 5 + [[NAN, 0.5, 0.5]], "'dense' has a missing value"),
    ],
)  # fmt: skip
def test_scores_that_fit_no_label(tmp_path: Path, scores: list[list[float]], said: str) -> None:
    frame = FRAME.with_columns(pl.Series("dense", scores))
    assert said in problems(save(frame, tmp_path / "t.parquet"))


def test_text_labels_against_scores(tmp_path: Path) -> None:
    frame = with_values("label", *"abcabc").with_columns(pl.Series("dense", ONE_HOT * 2))
    assert "lists of scores, which stand for the classes 0, 1, 2" in problems(
        save(frame, tmp_path / "t.parquet")
    )


@pytest.mark.parametrize(
    ("answers", "values", "said"),
    [
        ("correct", [0, 1, 2, 1, 1, 0], "'dense' holds 2 (1 such values, first in row 3)"),
        ("score", [0.1, 1.5, 0.2, 0.3, -1.0, 0.0], "holds 1.5, -1.0 (2 such values, first in rows 2, 5)"),
        ("score", ["x", "y", "0.2", "0.3", "0.4", "0"], "'dense' holds text, for example 'x', 'y'"),
        ("loss", [0.1, 1.5, 0.2, float("inf"), 7.0, 0.0], "'dense' holds inf (1 such"),
        ("loss", [0.1, 1.5, 0.2, None, 7.0, 0.0], "'dense' has a missing value"),
    ],
)  # fmt: skip
def test_values_out_of_range(tmp_path: Path, answers: Any, values: list[Any], said: str) -> None:
    frame = with_values("dense", *values).with_columns(pl.lit(1).alias("pruned"))
    columns = Columns(answers=answers, dense="dense", pruned=("pruned",), groups=("group",))
    assert said in problems(save(frame, tmp_path / "t.csv"), columns)


def test_identifiers_are_no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_CELLS", 2)
    message = problems(save(FRAME, tmp_path / "t.csv"))
    assert "3 different groups (distinct values: 'group' 3)" in message


def test_too_long_rows_are_not_read_as_shorter_ones(tmp_path: Path) -> None:
    path = save(FRAME.with_columns(pl.lit("z").alias("last")), tmp_path / "t.csv")
    path.write_text(path.read_text() + "1,1,1,Smith, Jane,z\n")
    assert "more fields than the header" in problems(path)


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(FRAME.write_csv().replace("\n", "\n\n") + "\n")
    assert counts(read(str(path), CLASSES)) == EXPECTED


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("label,dense,dense,pruned,group\n1,1,1,1,a\n1,1,1,1,b\n")
    assert "two columns named 'dense'" in problems(path)


@pytest.mark.parametrize("start", [b"PAR1", b"ARROW1\0\0"])
def test_a_description_that_is_too_long_to_be_true(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(start)
    os.truncate(path, 10 * 2**30)
    with path.open("ab") as file:
        file.write(b"\x00\x00\x00\x70" + start.rstrip(b"\0"))
    assert "larger than any real one" in problems(path)


def test_a_name_like_those_of_repeated_columns_is_no_repetition(tmp_path: Path) -> None:
    path = save(FRAME.with_columns(pl.lit(1).alias("dense_duplicated_0")), tmp_path / "t.csv")
    assert counts(read(str(path), CLASSES)) == EXPECTED


def test_a_bad_file_does_not_hide_a_bad_choice(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, label=np.array([1, "x"], dtype=object), dense=np.zeros(3))
    message = problems(path, Columns(label="label", dense="dense", pruned=("dense",), groups=("sex",)))
    for part in ("4 problems", "given twice", "no column 'sex'", "Python objects", "'label' 2, 'dense' 3"):
        assert part in message


def test_nested_groups_are_refused(tmp_path: Path) -> None:
    frame = FRAME.with_columns(pl.Series("group", [[1]] * 6))
    assert "group column 'group' holds List(Int64)" in problems(save(frame, tmp_path / "t.parquet"))
